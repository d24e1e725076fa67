"""Attention whose logits follow no rule of ours, but whose values and output map do: its maps, as they run.

The maps are made by the operations that made them, from the state that the values are made of. So that state has to
be all that they read; a mask made of something else would stay what it was.
"""

import torch
from torch import Tensor

from rankscope.network import Attention, Context, Observed
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.influence import are_texts_alike
from rankscope.sources.operations.region import Known, Note, Unread
from rankscope.sources.recognise.combinations import EXACT
from rankscope.sources.recognise.head_weights import Own
from rankscope.sources.recognise.mixing import Mixing
from rankscope.sources.recognise.operands import Places


def observed(mixing: Mixing, why: Unread, own: Own) -> Known:
    """The part with recorded maps; raises ``why`` where the maps read something else, or tokens are not in place."""
    operands, state = mixing.operands, mixing.state
    region, places = operands.region, operands.places(state)
    if any(_reads_else(mixing, one.node) for one in mixing.maps) or places.tokens < 2 or mixing.loses_keys:
        raise why
    if _reads_texts(mixing, places.texts):
        raise why
    index, output = _index(mixing, places, why)
    nodes = [one.node for one in mixing.maps]

    def run(x: Tensor) -> Tensor:
        laid = x.reshape(-1, x.shape[-1])[places.rows].reshape(state.shape)
        found = region.replays(nodes, {state: laid})
        flat = torch.cat([found[node].reshape(-1) for node in nodes])
        return torch.where(index >= 0, flat[index.clamp(min=0)], 0.0)

    shape = (places.texts, places.tokens)
    if not are_texts_alike(run, (*shape, state.shape[-1])):
        raise Unread("the maps of one text depend on the other texts of the batch", mixing.where)
    order, note = torch.arange(mixing.heads), Note.of(why)

    def part(held: Own) -> Attention:
        mixer = Observed(
            run,
            mixing.heads,
            where=f"{note.line or 'an unknown line'} ({note.path or 'the block itself'})",
            what=why.what,
            shape=shape,
            alike=True,
            dtype=torch.float64,
        )
        return Attention(mixer, mixing.values(order, held))

    ours = part(lambda tensor: tensor)
    generator = torch.Generator().manual_seed(31)
    for size in (0.01, 1.0, 30.0):
        x = size * torch.randn(
            places.texts, places.tokens, state.shape[-1], generator=generator, dtype=torch.float64
        )
        laid = x.reshape(-1, x.shape[-1])[places.rows].reshape(state.shape)
        theirs = region.replay(output, {state: laid})
        found = ours(x, Context()).reshape(-1, output.shape[-1])[places.rows].reshape(theirs.shape)
        if not float((found - theirs).abs().max()) <= EXACT * float(theirs.abs().max()):
            raise why
    return Known(state, output, part(own))


def _reads_else(mixing: Mixing, node: Node) -> bool:
    """Whether a map depends on a root by another way than through the state."""
    operands, seen, waiting = mixing.operands, set[Node](), [node]
    while waiting:
        at = waiting.pop()
        if at is mixing.state or at in seen or at not in operands.live:
            continue
        if at in operands.region.roots:
            return True
        seen.add(at)
        waiting += at.inputs()
    return False


def _reads_texts(mixing: Mixing, texts: int) -> bool:
    """Whether the maps read an argument that differs from text to text, such as a mask of padding: it would stay."""
    graph, roots = mixing.operands.region.graph, mixing.operands.region.roots
    behind = graph.above([one.node for one in mixing.maps])
    given = [node.value for node in graph.inputs.values() if node in behind and node not in roots]
    return any(
        held.shape[axis] == texts > 1 and bool((held != held.narrow(axis, 0, 1)).any())
        for held in given
        for axis in range(held.ndim)
    )


def _index(mixing: Mixing, places: Places, why: Unread) -> tuple[Tensor, Node]:
    """For every text, head, query and key the flat element of the maps, -1 for none; and the output."""
    found = mixing.outputs(mixing.state)
    if not found:
        raise why
    output, rows = found[0]
    texts, tokens, heads = places.texts, places.tokens, mixing.heads
    group = torch.empty(texts * tokens, heads, dtype=torch.long)
    group[places.rows] = mixing.group_of[rows]
    index = torch.full((texts * tokens, heads, tokens + 1), -1)
    start = 0
    for one in mixing.maps:
        entries, first = mixing.entries[one], mixing.starts[one]
        element = torch.empty_like(entries.of_element)
        element[entries.of_element] = torch.arange(len(element))
        element = element.reshape(entries.count, entries.size) + start
        start += len(entries.of_element)
        here = (group >= first) & (group < first + entries.count)
        local = torch.where(here, group - first, 0)
        key = mixing.value_place[one][local]  # (n i) h s
        text = torch.arange(texts).repeat_interleave(tokens)[:, None, None]
        if bool((here[..., None] & (key >= 0) & (key // tokens != text)).any()):
            raise why
        target = torch.where(here[..., None] & (key >= 0), key % tokens, tokens)
        index.scatter_(2, target, element[local])
    return index[..., :tokens].reshape(texts, tokens, heads, tokens).transpose(1, 2), output
