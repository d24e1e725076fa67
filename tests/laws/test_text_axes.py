"""Neither the layout of the inputs nor the batch size nor the order of texts moves a number.

Which axis holds texts is a matter of cause and effect: texts do not read each other, tokens do.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from rankscope.errors import ShapeError
from rankscope.sources import Batch, layout_of
from rankscope.sources.axes import located

DIM, TEXTS, TOKENS, RATIO = 16, 3, 12, "residual_ratio[frobenius,mean]"


def encoder(*, batch_first: bool, layers: int = 3, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=batch_first, dtype=dtype)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def tokens(texts: int = TEXTS, count: int = TOKENS) -> Tensor:
    drawn = torch.randn(texts, count, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (
        drawn + torch.arange(texts)[:, None, None]
    )  # texts of different means, so that no two share a number


def ratio(state: Tensor) -> list[float]:
    centered = state - state.mean(dim=1, keepdim=True)
    return (centered.flatten(1).norm(dim=1) / state.flatten(1).norm(dim=1)).tolist()


def ratios_by_hand(model: nn.Module, x: Tensor) -> list[list[float]]:
    """By layer and text, of a model that reads texts first."""
    with torch.no_grad():
        states = [x]
        for layer in model.layers:
            states.append(layer(states[-1]))
    return [ratio(state) for state in states]


def found(table: Any, **where: Any) -> dict[tuple[Any, ...], float]:
    """All numbers of a table by what they are of."""
    names = [
        name
        for name in (
            "stack",
            "variant",
            "layer",
            "site",
            "definition",
            "sample",
            "head",
            "quantity",
            "length",
        )
        if name in table.frame.columns
    ]
    rows = table.where(**where).frame.select(*names, "value").rows()
    assert rows
    return {tuple(row[:-1]): row[-1] for row in rows}


def agree(one: dict[Any, float], other: dict[Any, float]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        close = value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)
        assert other[key] == close, key


def by_hand(scan: Any, expected: list[list[float]]) -> None:
    rows = getattr(scan, "table", scan).where(definition=RATIO, site="block").frame
    got = {row[:2]: row[2] for row in rows.select("layer", "sample", "value").rows()}
    assert got == pytest.approx(
        {(layer, text): value for layer, texts in enumerate(expected) for text, value in enumerate(texts)},
        rel=1e-9,
    )


@pytest.mark.parametrize("batch_first", [True, False], ids=["texts first", "tokens first"])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_scan_reads_texts_along_their_own_axis(batch_first: bool, batch_size: int) -> None:
    x = tokens()
    given = x if batch_first else x.transpose(0, 1)
    scan = rs.scan(encoder(batch_first=batch_first), inputs=given, batch_size=batch_size)
    by_hand(scan, ratios_by_hand(encoder(batch_first=True), x))
    about = scan.table.sections["scan"]
    assert (about["texts"], about["tokens"]) == (TEXTS, TOKENS)
    assert about["text axes"] == {"inputs": {"": 0 if batch_first else 1}, "how": "moved"}
    assert f"texts are axis {int(not batch_first)} of the inputs" in about["special rule"]


@pytest.mark.parametrize("shape", [(4, 4), (1, 6), (6, 2), (9, 5)], ids=str)
@pytest.mark.parametrize("batch_first", [True, False], ids=["texts first", "tokens first"])
def test_sizes_do_not_matter(batch_first: bool, shape: tuple[int, int]) -> None:
    x = tokens(*shape)
    scan = rs.scan(
        encoder(batch_first=batch_first), inputs=x if batch_first else x.transpose(0, 1), batch_size=4
    )
    by_hand(scan, ratios_by_hand(encoder(batch_first=True), x))


@pytest.mark.parametrize("batch_first", [True, False], ids=["texts first", "tokens first"])
def test_a_lone_text_and_equal_tokens(batch_first: bool) -> None:
    model, one = encoder(batch_first=batch_first), tokens(1)
    by_hand(rs.scan(model, inputs=one[0]), ratios_by_hand(encoder(batch_first=True), one))
    equal = torch.randn(TEXTS, 1, DIM, dtype=torch.float64).expand(-1, TOKENS, -1)
    scan = rs.scan(model, inputs=equal if batch_first else equal.transpose(0, 1))
    assert scan.table.sections["scan"]["texts"] == TEXTS
    assert all(value < 1e-12 for value in found(scan.table, definition=RATIO, site="block").values())


def test_the_order_of_texts_moves_no_number() -> None:
    x, order = tokens(), [2, 0, 1]
    model = encoder(batch_first=False)
    plain, turned = (rs.scan(model, inputs=one.transpose(0, 1)).table for one in (x, x[order]))
    for place, text in enumerate(order):
        one, other = (
            {key[:-2]: value for key, value in found(table, sample=sample, definition=RATIO).items()}
            for table, sample in ((plain, text), (turned, place))
        )
        agree(one, other)


class Names(nn.Module):
    """Reads ids of ``(tokens, texts)``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(40, DIM, dtype=torch.float64)
        self.encoder = encoder(batch_first=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(self.embed(ids))


class TurnsAround(nn.Module):
    """Reads texts first and runs its blocks on tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder(batch_first=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x.transpose(0, 1)).transpose(0, 1)


class Mixes(nn.Module):
    """A block in which tokens read tokens, or texts read texts, or both, or neither."""

    def __init__(self, *, tokens: bool, texts: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.MultiheadAttention(DIM, 2, batch_first=True, dtype=torch.float64) if tokens else None
        self.texts = nn.MultiheadAttention(DIM, 2, dtype=torch.float64) if texts else None
        self.mlp = nn.Sequential(nn.Linear(DIM, DIM, dtype=torch.float64), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        for attention in filter(None, (self.tokens, self.texts)):
            x = x + attention(x, x, x)[0]
        return x + self.mlp(x)


def stack(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers=nn.Sequential(*blocks)))


def test_ids_of_tokens_and_texts() -> None:
    model, ids = Names(), torch.randint(40, (TOKENS, TEXTS), generator=torch.Generator().manual_seed(0))
    expected = ratios_by_hand(encoder(batch_first=True), model.embed(ids.T).detach())
    by_hand(rs.scan(model, inputs=ids, batch_size=2), expected)
    drawn = rs.scan(model, random_tokens="2x7").table.sections["scan"]
    assert (drawn["texts"], drawn["tokens"]) == (2, 7)


def test_a_model_that_turns_its_inputs_around() -> None:
    x = tokens(5, 5)  # as many texts as tokens: sizes tell nothing
    by_hand(rs.scan(TurnsAround(), inputs=x), ratios_by_hand(encoder(batch_first=True), x))


@pytest.mark.parametrize("mask", ["causal", "reversed"])
def test_masks_between_tokens(mask: str) -> None:
    x, later = tokens(), torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    given = {"src": x.transpose(0, 1), "mask": later if mask == "causal" else later.T}
    scan = rs.scan(encoder(batch_first=False), inputs=given, batch_size=2)
    with torch.no_grad():
        last = encoder(batch_first=True)(x, mask=given["mask"])
    got = found(scan.table, definition=RATIO, site="block", layer=3)
    assert list(got.values()) == pytest.approx(ratio(last), rel=1e-9)


def test_padding_is_not_measured_in_either_layout() -> None:
    x, padding = tokens(), torch.zeros(TEXTS, TOKENS, dtype=torch.bool)
    padding[1, 7:] = True
    given = {"src": x.transpose(0, 1), "src_key_padding_mask": padding}
    padded = rs.scan(encoder(batch_first=False), inputs=given).table
    alone = rs.scan(encoder(batch_first=True), inputs=x[1:2, :7]).table
    for layer in range(4):
        one, other = (
            list(found(table, sample=sample, layer=layer, site="block", definition=RATIO).values())
            for table, sample in ((padded, 1), (alone, 0))
        )
        assert one == pytest.approx(other, rel=1e-9)


def test_where_texts_read_each_other_the_model_is_refused() -> None:
    x = tokens()
    model = stack(Mixes(tokens=True, texts=False), Mixes(tokens=True, texts=True))
    with pytest.raises(ShapeError, match=r"at layer 2 .* along axis 0 and along axis 1.*one text at a time"):
        rs.scan(model, inputs=x, blocks="layers")
    assert rs.scan(model, inputs=x[:1], blocks="layers").table.sections["scan"]["texts"] == 1


class MixesALittle(nn.Module):
    """Every token moves by a hundredth of the mean over tokens, and as much or half as much of that over texts."""

    def __init__(self, texts: float) -> None:
        super().__init__()
        self.texts = texts
        self.attention = nn.Linear(DIM, DIM, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01 * x.mean(dim=1, keepdim=True) + self.texts * x.mean(dim=0, keepdim=True)


@pytest.mark.parametrize("texts", [0.005, 0.01])
def test_texts_that_read_each_other_a_little_are_not_taken_for_apart(texts: float) -> None:
    with pytest.raises(ShapeError, match="along axis 0 and along axis 1"):
        rs.scan(stack(MixesALittle(texts), MixesALittle(texts)), inputs=tokens(5, 5), blocks="layers")


def test_where_no_token_reads_another_the_layout_is_said_to_be_assumed() -> None:
    model = stack(*(Mixes(tokens=False, texts=False) for _ in range(2)))
    scan = rs.scan(model, inputs=tokens(), blocks="layers")
    assert scan.table.sections["scan"]["text axes"] == {"inputs": {"": 0}, "how": "assumed"}
    assert "assumed" in scan.table.sections["scan"]["special rule"]


class StartsAtZero(nn.Module):
    """A block of tokens first whose attention is written by hand and puts out nothing yet, as many do at the start."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.out = (
            nn.Linear(DIM, DIM, dtype=torch.float64) for _ in range(4)
        )
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part(x).transpose(0, 1) for part in (self.query, self.key, self.value))
        return x + self.out(((query @ key.mT).softmax(dim=-1) @ value).transpose(0, 1))


def test_an_attention_that_starts_at_zero_is_looked_into() -> None:
    x = tokens().transpose(0, 1)
    about = rs.scan(stack(StartsAtZero(), StartsAtZero()), inputs=x, blocks="layers").table.sections["scan"]
    assert about["text axes"] == {"inputs": {"": 1}, "how": "moved"}
    assert (about["texts"], about["tokens"]) == (TEXTS, TOKENS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_axis_is_found_in_coarse_dtypes(dtype: torch.dtype) -> None:
    model = encoder(batch_first=False, layers=12, dtype=dtype)
    about = rs.scan(model, inputs=tokens().transpose(0, 1).to(dtype)).table.sections["scan"]
    assert (about["texts"], about["text axes"]["how"]) == (TEXTS, "moved")


STUDIES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "ablate": lambda model, x: (
        rs.ablate(model, inputs=x, batch_size=2, variants=("san", "transformer")).table
    ),
    "certify": lambda model, x: rs.certify(model, inputs=x, variant="san").table,
    "paths": lambda model, x: rs.paths(model, inputs=x, mlps="source", seconds=0.0).table,
    "rate": lambda model, x: rs.rate(model, inputs=x, batch_size=2, layers=6).table,
}


@pytest.mark.parametrize("name", STUDIES)
def test_studies_of_trees_read_the_same_texts(name: str) -> None:
    x = tokens(3, 5)
    first, second = encoder(batch_first=True, layers=2), encoder(batch_first=False, layers=2)
    agree(found(STUDIES[name](first, x)), found(STUDIES[name](second, x.transpose(0, 1))))


def test_a_monitor_reads_the_same_texts() -> None:
    x, model = tokens(), encoder(batch_first=False).train()
    expected = ratios_by_hand(encoder(batch_first=True), x)
    labels = tuple("abc")
    for probes in (
        x.transpose(0, 1),
        {"src": x.transpose(0, 1)},
        Batch(inputs={"": x.transpose(0, 1)}, is_token=None, labels=labels),
    ):
        by_hand(rs.CollapseMonitor(model, probes).scan(0), expected)
    wrong = Batch(inputs={"": x.transpose(0, 1)}, is_token=None, labels=("text",) * TOKENS)
    with pytest.raises(ShapeError, match=r"names 12 texts, but texts are axis 1 .* which has 3"):
        rs.CollapseMonitor(model, wrong).scan(0)


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_run_beside_another_tells_texts_from_tokens(batch_first: bool) -> None:
    """Both axes are held against the same moved inputs: a trial is two passes, one of them as the inputs are."""
    model, passes = encoder(batch_first=batch_first), []
    model.register_forward_hook(lambda *_: passes.append(1))
    x = tokens(5, 20)
    given = Batch(inputs={"src": x if batch_first else x.transpose(0, 1)}, is_token=None, labels=())
    found, axes = located(model, layout_of(model), given)
    assert (axes.axis, len(found)) == (0 if batch_first else 1, 5)
    assert len(passes) == 2
