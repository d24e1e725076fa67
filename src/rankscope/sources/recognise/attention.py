"""Attention in whatever spelling: found at its softmax, read by where each number comes from, checked on the graph.

A softmax row is a group of logits. Every logit is a product of a row of queries with a row of keys; labels sent through
the operations tell of which text, token and columns these rows are, so that nothing hangs on how axes are laid out,
split, fused, repeated or looped over. The same labels say which values a row mixes and where in the output map the
result goes. Several softmaxes that end in one output map (a module per head, chunks of queries) are one attention.

Axis letters: n text, h head, i query token, j key token, c channel of a head, g softmax row, s entry of that row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from rankscope.errors import RankscopeError
from rankscope.masks import Full
from rankscope.network import Attention, Context, CrossAttention, NoPosition, Norm, Part, QueryKey, Softmax
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Known, Note, Region, Unread
from rankscope.sources.recognise.combinations import EXACT
from rankscope.sources.recognise.head_weights import Own
from rankscope.sources.recognise.logits import LOW, Groups, Heads, at_places, read_logits
from rankscope.sources.recognise.mask_rules import ReadMask, read_mask
from rankscope.sources.recognise.mixing import Mix, Mixing, ends_of, equal_along, mixes_of
from rankscope.sources.recognise.observed import observed
from rankscope.sources.recognise.operands import Operands
from rankscope.sources.recognise.position_rules import fit_bias
from rankscope.sources.recognise.products import contraction, maps
from rankscope.sources.recognise.softmax_mixers import Side, owned, softmax_mixer

SIZES = (0.01, 1.0, 30.0)
"""Sizes of the random states that a part is checked on."""
SINGLE_OFF = 1e-5
"""How far off attention may be whose angles come from a table in float32: its seven digits, a few products later."""


def as_held(tensor: Tensor) -> Tensor:
    """Weights as the captured copy holds them."""
    return tensor


@torch.no_grad()
def find_attention(region: Region, *, tokens_first: bool, own: Own) -> None:
    """Fill ``region.known`` with every attention that is read, and ``region.notes`` with why others are not."""
    operands = Operands(region, tokens_first)
    ends: dict[Node, list[Mix]] = {}
    found = list(maps(region, operands.live))
    for one in found:
        with _noted(region, one.node):
            if one.node.shape[one.axis] < 2:
                raise Unread("one token alone: nothing can be read of attention", one.node)
            if region.stripped(one.logits) in region.linears:
                raise Unread("a softmax over channels, not over the keys of queries", one.node)
            for mix in mixes_of(operands, one):
                for end in ends_of(operands, mix.product.node):
                    ends.setdefault(end, []).append(mix)
    for end, mixes in ends.items():
        with _noted(region, mixes[0].map.node):
            known = _known(operands, end, mixes, own)
            region.known[known.output] = known
    if not found:
        product = next((node for node in region.order if contraction(operands.live, node) is not None), None)
        if product is not None:
            region.notes.append(Note.of(Unread("a product of two states, but no softmax of it", product)))


@contextmanager
def _noted(region: Region, where: Node) -> Iterator[None]:
    """What cannot be read is a note with the user's line, whatever went wrong with it."""
    try:
        yield
    except Unread as error:
        region.notes.append(Note.of(Unread(error.what, where if error.node is None else error.node)))
    except (RuntimeError, ValueError, IndexError, RankscopeError) as error:
        what = f"attention could not be read: {(str(error).splitlines() or [type(error).__name__])[0]}"
        region.notes.append(Note.of(Unread(what, where)))


def _known(operands: Operands, end: Node, mixes: list[Mix], own: Own) -> Known:
    """Attention as softmax of queries and keys; where only its logits are strange, with its maps as they ran."""
    mixing = Mixing(operands, end, mixes)
    try:
        return _Reading(mixing).known(own)
    except Unread as error:
        node = mixing.where if error.node is None else error.node
        known = observed(mixing, Unread(error.what, node), own)
        operands.region.notes.append(Note.of(Unread(error.what, node)))
        return known


class _Reading:
    """One attention: everything between the states that it reads and the end of its output map."""

    def __init__(self, mixing: Mixing) -> None:
        self.mixing, self.operands, self.region = mixing, mixing.operands, mixing.operands.region
        self.where, self.heads, self.group_of = mixing.where, mixing.heads, mixing.group_of

    def known(self, own: Own) -> Known:
        """The part, seen to give what the graph gives."""
        self._read_heads()
        mask = self._read_mask()
        output = self.mixing.output_node(self.state, self.row_place)
        part = self._part(mask, as_held)
        self._check(part, mask, output)
        part = part if own is as_held else self._part(mask, own)
        return Known(self.state, output, part, self.memory, mask.rules)

    # --- heads

    def _read_heads(self) -> None:
        """Queries and keys of every text, token and head, and what is added to their logits."""
        every = {one: read_logits(self.operands, one) for one in self.mixing.maps}
        groups = Groups.of(list(every.values()))
        states = {(logits.queries.operand.state, logits.keys.operand.state) for logits in every.values()}
        if len(states) != 1:
            raise Unread("queries or keys of different heads are made of different states", self.where)
        (query_state, key_state), value_state = next(iter(states)), self.mixing.state
        asked, offered = query_state, key_state
        query_state, key_state = (
            value_state if _without_constant(self.operands, one) is value_state else one
            for one in (asked, offered)
        )
        for one, logits in every.items():
            value_place, key_place = (
                self.mixing.value_place[one],
                at_places(logits.keys.places, logits.key_row),
            )
            if bool(((value_place >= 0) & (key_place >= 0) & (value_place != key_place)).any()):
                raise Unread("a map mixes values of other tokens than its keys", one.node)
            if self.mixing.loses_keys and bool(((value_place < 0) & (key_place >= 0)).any()):
                raise Unread("the maps lose keys before they mix the values", one.node)
        if query_state is None or key_state is None:
            raise Unread("queries, keys or values do not depend on the states", self.where)
        if key_state is not value_state:
            raise Unread("keys and values are made of different states", self.where)
        self.state, self.memory = query_state, None if key_state is query_state else key_state
        if self.memory is not None and not self._is_memory(query_state, key_state):
            raise Unread("queries are made of another state than keys and values", self.where)
        self.memory_norm: Norm | None = None
        normed = None if self.memory is None else self.region.known.get(self.memory)
        if normed is not None and isinstance(normed.part, Norm) and normed.input in self.region.roots:
            self.memory, self.memory_norm = normed.input, normed.part
        read, held = self.operands.places(query_state), self.operands.places(key_state)
        if read.texts != held.texts:
            raise Unread("the states of queries and keys have different numbers of texts", self.where)
        self.texts, self.tokens, self.keys = read.texts, read.tokens, held.tokens
        place = groups.query_place[self.group_of]  # rows h
        if bool((place != place[:, :1]).any()):
            raise Unread("heads of different tokens stand in one row of the output map's input", self.where)
        self.row_place = place[:, 0]
        if not torch.equal(self.row_place.sort().values, torch.arange(self.texts * self.tokens)):
            raise Unread("tokens are lost or repeated by attention", self.where)
        by_place = torch.empty_like(self.group_of)
        by_place[self.row_place] = self.group_of
        heads = self.heads
        group = by_place.reshape(self.texts, self.tokens, heads)
        key_place = groups.key_place[group]  # n i h s
        text = torch.arange(self.texts)[:, None, None, None]
        if bool(((key_place >= 0) & (key_place // self.keys != text)).any()):
            raise Unread("queries of one text read keys of another", self.where)
        shape = (self.texts, self.tokens, heads, self.keys)
        place_in_text = torch.where(key_place >= 0, key_place % self.keys, self.keys)

        def by_key(value: Tensor, empty: float) -> Tensor:
            out = torch.full((*shape[:3], self.keys + 1), empty, dtype=value.dtype)
            return out.scatter_(3, place_in_text, value[group])[..., : self.keys].transpose(1, 2)

        self.added = by_key(groups.added, -torch.inf)  # n h i j
        self.capped, self.factor = by_key(groups.capped, 0.0), by_key(groups.factor, torch.nan)
        self.sink = self._read_sink(groups.sink[group])
        softcaps = {logits.softcap for logits in every.values()}
        if len(softcaps) != 1:
            raise Unread("heads have different soft-caps", self.where)
        self.softcap = next(iter(softcaps))
        self.query = groups.side(groups.query_row[group], "query", self.where)
        key_row = torch.full((*shape[:1], heads, self.keys + 1), -1)
        index = place_in_text.permute(0, 2, 1, 3).reshape(self.texts, heads, -1)
        rows = groups.key_row[group].permute(0, 2, 1, 3).reshape(self.texts, heads, -1)
        key_row.scatter_(2, index, rows)
        key_row = key_row[..., : self.keys].transpose(1, 2)
        if bool((key_row < 0).any()):
            raise Unread("some tokens are keys of no query", self.where)
        self.key = groups.side(key_row, "key", self.where)
        if asked is not None and asked is not query_state:
            self.query = self._moved(self.query, asked, query_state)
        if offered is not None and offered is not key_state:
            self.key = self._moved(self.key, offered, key_state)

    def _read_sink(self, sink: Tensor) -> Tensor | None:
        """The logit of a sink for every head, from n i h; None where no head has one."""
        if not bool((sink > -torch.inf).any()):
            return None
        if self.memory is not None:
            raise Unread("attention to a memory has a sink", self.where)
        first = sink[:1, :1]
        if not bool(first.isfinite().all()) or bool(((sink - first).abs() > EXACT * (1 + first.abs())).any()):
            raise Unread("the sink of attention differs from token to token", self.where)
        return self._held(first[0, 0])

    def _held(self, sink: Tensor) -> Tensor:
        """The parameter or buffer that these numbers are, where there is one; the numbers themselves otherwise."""
        above = self.region.graph.above([one.logits for one in self.mixing.maps])
        named = (node for node in above if node.name and node.shape.numel() == len(sink))
        same = [node for node in named if torch.equal(node.value.flatten().double(), sink)]
        return min(same, key=lambda node: node.id).value.flatten() if same else sink

    def _moved(self, heads: Heads, made_of: Node, state: Node) -> Heads:
        """Queries or keys of ``state`` plus a constant, as those of the state: what maps make of the constant is added.

        ``(x + p) W`` is ``x W + p W``: an offset of its own for every token, n t h c.
        """
        if heads.norm is not None:
            raise Unread("something is added to the state of queries or keys before their norm", self.where)
        places = self.operands.places(made_of)
        rows = self.region.replay(made_of, {state: torch.zeros(state.shape, dtype=torch.float64)})
        added = torch.empty(places.texts * places.tokens, made_of.shape[-1], dtype=torch.float64)
        added[places.rows] = rows.reshape(-1, made_of.shape[-1])
        made = added @ torch.cat([one.matrix for one in self.operands.maps], -1)
        made = torch.cat([made, torch.zeros(len(made), 1, dtype=made.dtype)], -1)  # column -1 is none
        texts, tokens, count, width, both = heads.columns.shape
        index = heads.columns.reshape(texts * tokens, -1) % made.shape[-1]
        found = made.gather(1, index).reshape(texts, tokens, count, width, both)
        return replace(heads, offset=heads.offset + (found * heads.factors).sum(-1))

    def _is_memory(self, query: Node, key: Node) -> bool:
        first, others = self.region.roots[0], self.region.roots[1:]
        reads = self.operands._reads
        return reads(query, first) and not reads(key, first) and any(reads(key, root) for root in others)

    # --- mask and positions

    def _read_mask(self) -> ReadMask:
        allowed = self.added > LOW
        if bool((allowed != allowed[:, :1]).any()):
            raise Unread("heads have different masks", self.where)
        allowed = allowed[:, 0]
        if self.memory is not None:
            if bool((allowed != allowed[:, :1]).any()):
                raise Unread("tokens read different parts of the memory", self.where)
            return ReadMask((Full(),), allowed[:, 0])
        found = read_mask(allowed)
        if found is None:
            raise Unread(
                "which keys a query reads follows no rule, and differs from text to text", self.where
            )
        return found

    # --- the part

    def _part(self, mask: ReadMask, own: Own) -> Part:
        text = int(mask.is_token.sum(1).argmax())
        keys = mask.is_token[text]
        rows = keys if self.memory is None else torch.ones(self.tokens, dtype=torch.bool)
        behind = self.added[text][:, rows][:, :, keys]
        allowed = behind[0] > LOW
        factor = self.factor[text][:, rows][:, :, keys][:, allowed]
        if not equal_along(factor):
            raise Unread("logits are multiplied with numbers that differ from token to token", self.where)
        behind = torch.where(allowed, behind, 0.0)
        if self.softcap is not None:
            if not isinstance(fit_bias(behind, allowed), NoPosition):
                raise Unread("something is added to the logits behind their soft-cap", self.where)
            inside = self.capped[text][:, rows][:, :, keys]
            behind = torch.where(allowed, inside, 0.0) * self.softcap
        order = self._order(text)
        mixer, self.is_single = softmax_mixer(
            _of_text(self.query, text, rows),
            _of_text(self.key, text, keys),
            factor=factor[:, 0],
            position=fit_bias(behind[order], allowed),
            rule=mask.rules[0],
            softcap=self.softcap,
            sinks=self.sink,
            order=order,
            maps=self.operands.maps,
            own=own,
        )
        values = self.mixing.values(order, own)
        if not isinstance(mixer, Softmax) or self.memory is None:
            return Attention(mixer, values)
        norm = None if self.memory_norm is None else owned(self.memory_norm, own)
        return CrossAttention(mixer, values, memory_norm=norm)

    def _order(self, text: int) -> Tensor:
        """Heads in the order of the output map, those that share keys side by side."""
        first: dict[tuple[int, ...], int] = {}
        columns = self.key.columns[text, 0].flatten(1).tolist()
        group = [first.setdefault(tuple(sorted(one)), head) for head, one in enumerate(columns)]
        return torch.tensor(sorted(range(self.heads), key=lambda head: (group[head], head)))

    def _check(self, part: Part, mask: ReadMask, output: Node) -> None:
        """The part against the graph, on other numbers than those it was read from."""
        generator = torch.Generator().manual_seed(29)
        places = self.operands.places(self.state)
        is_padded, is_checked = not bool(mask.is_token.all()), False
        for size in SIZES[:2] if self.is_single else SIZES:

            def drawn(node: Node, size: float = size) -> tuple[Tensor, Tensor]:
                held = self.operands.places(node)
                x = size * torch.randn(
                    held.texts * held.tokens, node.shape[-1], generator=generator, dtype=torch.float64
                )
                return x.reshape(held.texts, held.tokens, -1), x[held.rows].reshape(node.shape)

            x, laid = drawn(self.state)
            given, context = {self.state: laid}, Context(is_token=mask.is_token if is_padded else None)
            if self.memory is not None:
                memory, given[self.memory] = drawn(self.memory)
                held = mask.is_token if is_padded else None
                context = Context(memory=memory, memory_is_token=held)
            if self._leaks(part, x, context):
                continue
            ours = part(x, context).reshape(-1, output.shape[-1])[places.rows]
            theirs = self.region.replay(output, given).reshape(ours.shape)
            if self.memory is None:
                real = mask.is_token.reshape(-1)[places.rows]
                ours, theirs = ours[real], theirs[real]
            if size > 1 and not bool(theirs.isfinite().all()):
                continue  # exponentials without their largest taken out: the model itself ends there
            off = float((ours - theirs).abs().max() / theirs.abs().max())
            if not off <= (SINGLE_OFF if self.is_single else EXACT):
                raise Unread(f"attention as it was read is off by {off:.0e}", self.where)
            is_checked = True
        if not is_checked:
            raise Unread("logits are too large for a mask of a moderate number", self.where)

    def _leaks(self, part: Part, x: Tensor, context: Context) -> bool:
        """Whether logits are so large that a mask of a moderate number lets something through."""
        masked = self.added[(self.added <= LOW) & self.added.isfinite()]
        if not masked.numel() or float(masked.max()) < -1e6 or not isinstance(part, Attention):
            return False
        mixer = part.mixer
        return (
            isinstance(mixer, QueryKey)
            and float(mixer.logits(x, context).abs().max()) > -float(masked.max()) / 4
        )


def _without_constant(operands: Operands, state: Node | None) -> Node | None:
    """The state that a sum with a constant is made of; the state itself where it is no such sum."""
    if state is None:
        return None
    live = [leaf for leaf in state.inputs() if leaf in operands.live]
    is_sum = state.kind == "add" and not state.kwargs and len(state.args) == 2 and len(live) == 1
    return live[0] if is_sum and live[0].shape == state.shape else state


def _of_text(heads: Heads, text: int, tokens: Tensor) -> Side:
    """One text without its padding: t h c."""
    slots = heads.inner[text][tokens] % max(heads.width, 1)
    return Side(
        heads.columns[text][tokens],
        heads.factors[text][tokens],
        heads.offset[text][tokens],
        slots,
        heads.norm,
        heads.width,
    )
