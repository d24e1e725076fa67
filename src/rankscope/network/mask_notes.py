"""What the masks of a network say about its collapse, before anything is computed."""

from collections.abc import Sequence
from itertools import chain, groupby

import numpy as np
from scipy.sparse import csr_array

from rankscope.masks import Full, MaskGraph, union
from rankscope.masks.patterns import Indices, SparseMask
from rankscope.network.attention import SelfAttention
from rankscope.network.cross import CrossAttention
from rankscope.network.mixers import Fixed, Mixer
from rankscope.network.opaque import Opaque
from rankscope.network.parts import Part
from rankscope.network.sequence import SequenceMap
from rankscope.network.tree import Network
from rankscope.network.value_residual import ValueResidual

_SHOWN = 4  # components, and runs of tokens in each, that a sentence lists


def mask_note(network: Network, tokens: int) -> str | None:
    """One sentence if groups of tokens can never influence each other, and so need not agree; otherwise None.

    Tokens are bound to agree only if one of them reaches all through the layers: their mask graph is quasi-strongly
    connected (Wu et al. 2024, arXiv:2405.18781). If not, several components of it read nothing outside themselves.
    The graph is that of all layers together, which no order or number of them can exceed; where their masks differ,
    the sentence names each.

    >>> import torch
    >>> from rankscope.network import Spec, build
    >>> network = build(Spec(layers=2, heads=1, dim=4, mask="blocks:2"), torch.Generator().manual_seed(0))
    >>> print(mask_note(network, 6).replace(": ", ":\\n"))
    mask blocks:2 on 6 tokens:
    2 components read nothing outside themselves (tokens 0-2 | 3-5), so each has a limit of its own, at any depth
    """
    if any(isinstance(part, CrossAttention | ValueResidual) for part in network.modules()):
        return (
            None  # one memory that all read can bring them to one limit, one of their own can keep them apart
        )
    layers = {layer: _mixers(block) for layer, block in enumerate(network.blocks, start=1)}
    layers = {layer: mixers for layer, mixers in layers.items() if mixers}
    graph = None if _mixes_unseen(network) else _together(list(chain(*layers.values())), tokens)
    if graph is None or graph.is_quasi_strongly_connected:
        return None
    apart = self_contained(graph)
    shown = " | ".join(_runs(component) for component in apart[:_SHOWN])
    more = " | ..." if len(apart) > _SHOWN else ""
    return (
        f"{_masks(layers)} on {tokens} tokens: {len(apart)} components read nothing outside themselves "
        f"(tokens {shown}{more}), so each has a limit of its own, at any depth"
    )


def reading_graph(what: Part | Network, tokens: int) -> MaskGraph | None:
    """The graph of what a token may read in any attention part; None where that is everything, or nothing mixes.

    Tokens of different strongly connected components of it influence each other one way at most, through any number
    of such parts in any order.

    >>> from rankscope.masks import parse_mask
    >>> from rankscope.network import Attention, Uniform, Values
    >>> import torch
    >>> eye = torch.eye(2)
    >>> part = Attention(Uniform(heads=1, rule=parse_mask("causal")), Values(eye, eye, heads=1))
    >>> [component.tolist() for component in reading_graph(part, 3).components()]
    [[0], [1], [2]]
    """
    return None if _mixes_unseen(what) else _together(_mixers(what), tokens)


def _mixes_unseen(what: Part | Network) -> bool:
    """Whether tokens may read each other in a region of which nothing is known."""
    return any(isinstance(part, Opaque | SequenceMap) and not part.tokenwise for part in what.modules())


def _mixers(what: Part | Network) -> list[Mixer]:
    return [part.mixer for part in what.modules() if isinstance(part, SelfAttention)]


def _together(mixers: Sequence[Mixer], tokens: int) -> MaskGraph | None:
    """The graph of what any mixer lets a token read; None where that is everything, or nothing mixes."""
    rules = {mixer.rule for mixer in mixers if not isinstance(mixer, Fixed)}
    if not mixers or Full() in rules:
        return None
    masks = [rule.sparse(tokens) for rule in sorted(rules, key=str)]
    masks += [_support(mixer) for mixer in mixers if isinstance(mixer, Fixed)]
    return MaskGraph(mask=sum(masks[1:], start=masks[0]))


def _support(mixer: Fixed) -> SparseMask:
    """Where a fixed map of any head or seed is not zero: its rule does not say."""
    return csr_array((mixer.maps > 0).flatten(0, -3).any(dim=0).cpu().numpy())


def self_contained(graph: MaskGraph) -> list[Indices]:
    """Strongly connected components none of whose tokens reads a token of another."""
    found = []
    for component in graph.components():
        inside = np.zeros(graph.tokens, dtype=np.bool_)
        inside[component] = True
        if inside[graph.mask[component].indices].all():
            found.append(component)
    return found


def _masks(layers: dict[int, list[Mixer]]) -> str:
    """The mask of all layers if they agree, otherwise of each run of layers."""
    named = [(layer, _name(mixers)) for layer, mixers in layers.items()]
    runs = [(name, [layer for layer, _ in run]) for name, run in groupby(named, key=lambda pair: pair[1])]
    if len({name for name, _ in runs}) == 1:
        return f"mask {runs[0][0]}"
    shown = [f"layers {_runs(np.array(of))} {name}" for name, of in runs]
    return "masks (" + ", ".join(shown) + ") together"


def _name(mixers: Sequence[Mixer]) -> str:
    if any(isinstance(mixer, Fixed) for mixer in mixers):
        return "of fixed maps"
    return union(*(mixer.rule for mixer in mixers)).text


def _runs(numbers: Indices) -> str:
    """Sorted numbers, with runs of neighbors as ``first-last``."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join(shown[:_SHOWN]) + (",..." if len(shown) > _SHOWN else "")
