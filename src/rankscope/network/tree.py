"""The root of the tree, and what one pass through it leaves behind."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from rankscope.core.processor import safe_products
from rankscope.core.registry import unknown_name
from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError, ShapeError
from rankscope.network.attention import SelfAttention
from rankscope.network.context import Context
from rankscope.network.cross import CrossAttention
from rankscope.network.norms import Norm
from rankscope.network.parts import Part, Parts, shallow_copy

SITES = frozenset({"attention", "mlp"})
"""Sites that may be asked of any network, whether or not it has such parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """States and maps of one pass.

    Args:
        states: token matrix of layers 0 .. L; layer 0 enters the first block.
        final: the last state after the final norm; equal to it where there is none.
        sites: output of the part with that site name in that layer's block, before any skip or norm after it.
            A second part of the same name in one block is called ``name.2``, and so on.
        maps: attention maps of the attention part with that site name in that layer's block.
    """

    states: tuple[TokenMatrix, ...]
    final: TokenMatrix
    sites: Mapping[tuple[int, str], TokenMatrix] = field(default_factory=dict)
    maps: Mapping[tuple[int, str], AttentionMap] = field(default_factory=dict)


class Network(nn.Module):
    """Blocks applied one after the other. Layer 0 is what enters block 1, layer l is after ``blocks[l-1]``.

    The final norm is outside the layers: ``states`` end before it, ``forward`` applies it. ``longest`` is the number
    of tokens up to which the tree was seen to be that of a model; more are refused. None is any number.
    """

    def __init__(
        self, blocks: Iterable[Part], final_norm: Norm | None = None, *, longest: int | None = None
    ) -> None:
        super().__init__()
        self.blocks = Parts(blocks)
        self.final_norm = final_norm
        self.longest = longest
        self.borrows = False
        self.training = (
            False  # parts do nothing else in training; whoever calls train() says that weights move
        )

    def with_blocks(self, blocks: Iterable[Part]) -> "Network":
        """The same network around other blocks, which share weights with these: it refuses to be moved or cast."""
        twin = shallow_copy(self)
        twin.blocks = Parts(blocks)
        twin.borrows = True
        return twin

    def owned(self) -> "Network":
        """A copy with weights of its own, which can be moved, cast and trained without touching any other network."""
        twin = copy.deepcopy(self)
        twin.borrows = False
        return twin

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Network":
        if self.borrows:
            raise ConfigError(
                "this network shares its weights with another, which .to() would change as well; "
                "move or cast the original first, or take net.owned().to(...)"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def forward(self, x: TokenMatrix, context: Context | None = None) -> TokenMatrix:
        """The last state, after the final norm."""
        context = self.checked(x, context)
        with safe_products(x):
            for block in self.blocks:
                x = block(x, context)
            return self.finish(x)

    def states(self, x: TokenMatrix, context: Context | None = None) -> tuple[TokenMatrix, ...]:
        """Token matrices of layers 0 .. L, before the final norm."""
        context = self.checked(x, context)
        states = [x]
        with safe_products(x):
            for block in self.blocks:
                states.append(block(states[-1], context))
        return tuple(states)

    def trace(
        self, x: TokenMatrix, context: Context | None = None, *, sites: Iterable[str] = (), maps: bool = False
    ) -> Trace:
        """States of every layer, and what the named sites and the mixers put out on the way."""
        context = self.checked(x, context)
        if isinstance(sites, str):
            raise ShapeError(f"sites={sites!r} is one name; give a list of names, such as [{sites!r}]")
        wanted = frozenset(sites)
        if wanted - SITES:
            known = {
                str(part.site) for part in self.modules() if isinstance(part, Part) and hasattr(part, "site")
            }
            for site in sorted(wanted - known - SITES):
                raise unknown_name("site", site, known | SITES)
        states, seen, seen_maps = [x], dict[tuple[int, str], Tensor](), dict[tuple[int, str], Tensor]()
        for layer, block in enumerate(self.blocks, start=1):
            with safe_products(x), _tapped(block, layer, wanted, seen, seen_maps if maps else None):
                states.append(block(states[-1], context))
        return Trace(states=tuple(states), final=self.finish(states[-1]), sites=seen, maps=seen_maps)

    def finish(self, x: TokenMatrix) -> TokenMatrix:
        """``x`` after the final norm, if there is one."""
        return x if self.final_norm is None else self.final_norm(x, Context())

    def checked(self, x: Tensor, context: Context | None) -> Context:
        """The context, or an empty one; raises unless tokens and context can be run through this network."""
        if not isinstance(x, Tensor):
            raise ShapeError(
                f"expected tokens as a torch tensor, got {type(x).__name__}; use torch.as_tensor(x)"
            )
        if x.ndim < 2 or x.shape[-2] < 1 or x.shape[-1] < 1 or not x.is_floating_point():
            raise ShapeError(
                f"expected floating-point tokens (*batch, tokens, dim) with at least one token, "
                f"got {str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
            )
        first = next((p for p in self.parameters() if p.is_floating_point()), None)
        if first is not None and first.dtype != x.dtype:
            names = [str(dtype).removeprefix("torch.") for dtype in (x.dtype, first.dtype)]
            raise ShapeError(
                f"tokens are {names[0]} and the network is {names[1]}; use x.to(torch.{names[1]})"
            )
        self.check_length(x.shape[-2])
        context = Context() if context is None else context
        context.check(x)
        return context

    def check_length(self, tokens: int) -> None:
        """Raise if the tree was not seen to hold for so many tokens."""
        if self.longest is not None and tokens > self.longest:
            raise ShapeError(
                f"this tree was seen to hold up to {self.longest} tokens, got {tokens}; shorten the texts, or make "
                "the tree from texts as long as these"
            )


@contextmanager
def _tapped(
    block: nn.Module,
    layer: int,
    wanted: frozenset[str],
    seen: dict[tuple[int, str], Tensor],
    seen_maps: dict[tuple[int, str], Tensor] | None,
) -> Iterator[None]:
    """Record the output of every wanted site, and of every mixer, while ``block`` runs once."""
    handles = []
    for part in block.modules() if wanted or seen_maps is not None else ():
        site = getattr(part, "site", None)
        if isinstance(part, Part) and site in wanted:
            handles.append(part.register_forward_hook(_Tap(seen, layer, str(site))))
        if isinstance(part, SelfAttention | CrossAttention) and seen_maps is not None:
            handles.append(part.mixer.register_forward_hook(_Tap(seen_maps, layer, part.site)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Tap:
    """A hook that keeps the output of a part; a second part of the same name in the block gets a number."""

    def __init__(self, seen: dict[tuple[int, str], Tensor], layer: int, site: str) -> None:
        self.seen, self.layer, self.site = seen, layer, site

    def __call__(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        name, count = self.site, 1
        while (self.layer, name) in self.seen:
            count += 1
            name = f"{self.site}.{count}"
        self.seen[self.layer, name] = output
