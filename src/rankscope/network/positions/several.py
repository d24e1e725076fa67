"""Rules that act on queries and keys besides a turn, and several rules one after the other."""

from collections.abc import Iterable

from torch import Tensor, nn

from rankscope.errors import ConfigError, ShapeError
from rankscope.network.context import Context
from rankscope.network.parts import weight
from rankscope.network.positions.alibi import Alibi
from rankscope.network.positions.base import Position
from rankscope.network.positions.relative import RelativeBias
from rankscope.network.positions.rotary import Rotary
from rankscope.network.positions.seen import SeenBias


class HeadFactors(Position):
    """A temperature for every head: queries times one number each, behind their norm.

    Without a norm such factors belong into the weights; a norm would undo them there.

    Args:
        factors: ``heads``.
    """

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.factors = weight(factors)

    def rotate(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        return query * self.factors.to(query.dtype)[:, None, None], key


class SeenOffsets(Position):
    """Positions that are added to queries and keys, and not to values, as in DETR: one row per column of the input.

    Rows were seen for as many tokens as the tables have, and are known for no more.

    Args:
        query: ``heads tokens width``, what is added to the queries; ``key`` likewise, one table per head of queries.
        is_exact: whether shorter texts have other rows, so that only texts of exactly that length are known.
    """

    def __init__(self, query: Tensor, key: Tensor, *, is_exact: bool = False) -> None:
        super().__init__()
        if query.shape != key.shape:
            raise ConfigError(
                f"what is added to queries has shape {tuple(query.shape)} and to keys {tuple(key.shape)}; give both as "
                "heads tokens width"
            )
        self.query, self.key = weight(query), weight(key)
        self.is_exact = is_exact

    @property
    def tokens(self) -> int:
        return int(self.query.shape[-2])

    def rotate(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        tokens = query.shape[-2]
        if tokens > self.tokens or (self.is_exact and tokens != self.tokens):
            raise ShapeError(
                f"what is added to queries and keys was seen for {'' if self.is_exact else 'at most '}{self.tokens} "
                f"tokens, got {tokens}; record texts of that length"
            )
        asked, offered = (one[..., :tokens, :].to(query.dtype) for one in (self.query, self.key))
        return query + asked, key + offered


_PARTS = (HeadFactors, SeenOffsets, Rotary, Alibi, RelativeBias, SeenBias)
"""Rules that can be one of several: none of their biases asks for queries, which the others change."""


class Several(Position):
    """Rules in the order in which they act on queries and keys; their biases are added up.

    >>> import torch
    >>> rule = Several([Rotary.from_base(4), Alibi(torch.tensor([0.5, 0.25]))])
    >>> [type(one).__name__ for one in rule.rules]
    ['Rotary', 'Alibi']
    """

    def __init__(self, rules: Iterable[Position]) -> None:
        super().__init__()
        self._rules = nn.ModuleList(rules)
        for rule in self.rules:
            if not isinstance(rule, _PARTS):
                names = ", ".join(kind.__name__ for kind in _PARTS)
                raise ConfigError(f"{type(rule).__name__} cannot be one of several rules; {names} can")

    @property
    def rules(self) -> tuple[Position, ...]:
        """In the order in which they act."""
        return tuple(self._rules)  # type: ignore[arg-type]  # the constructor lets no other module in

    def pieces(self) -> tuple[object, ...]:
        """The rules that it is made of."""
        return self.rules

    def rotate(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        for rule in self.rules:
            query, key = rule.rotate(query, key, context)
        return query, key

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        total = None
        for rule in self.rules:
            found = rule.bias(query, context, scale)
            if found is not None:
                total = found if total is None else total + found
        return total
