"""Models whose tokens go other ways than from block to block, and what the blocks are told besides them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rankscope as rs
from rankscope.errors import NotTranslated

DIM, HEADS, VOCABULARY = 12, 2, 40


class Block(nn.Module):
    """Pre-norm; ``allowed`` is True where a key is read, ``handed`` are values of an earlier block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 20), nn.GELU(), nn.Linear(20, DIM))

    def forward(
        self, x: Tensor, allowed: Tensor | None = None, handed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = v if handed is None else (v + handed) / 2
        y = F.scaled_dot_product_attention(q, k, mixed, attn_mask=allowed).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.mlp(x), v


class Model(nn.Module):
    """Ids in; ``through`` runs the blocks."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.embed = nn.Embedding(VOCABULARY, DIM)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.double().eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.through(self.embed(ids))

    def through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)[0]
        return x


class HandsOn(Model):
    def through(self, x: Tensor) -> Tensor:
        values = None
        for block in self.blocks:
            x, new = block(x, handed=values)
            values = new if values is None else values
        return x


class SkipsBlocks(Model):
    def through(self, x: Tensor) -> Tensor:
        first = self.blocks[0](x)[0]
        second = self.blocks[1](first)[0]
        return self.blocks[2](second + 0.5 * first)[0]


def ids(texts: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(1, VOCABULARY, (texts, tokens), generator=torch.Generator().manual_seed(seed))


def recorded(model: nn.Module, *args: Tensor, **kwargs: Tensor) -> "rs.Seen":
    with rs.record(model) as seen:
        model(*args, **kwargs)
    return seen


def test_values_that_are_handed_on_are_no_constants() -> None:
    """A change of the tree would change them too: as constants of one run they would belong to another model."""
    with pytest.raises(
        NotTranslated, match=r"'handed' besides their tokens.*made of what an earlier block was given"
    ):
        rs.translate(recorded(HandsOn(), ids(2, 9)))


def test_a_skip_between_blocks_is_named() -> None:
    with pytest.raises(NotTranslated, match="what enters block 3 is not what left block 2"):
        rs.translate(recorded(SkipsBlocks(), ids(2, 9)))


class OwnAutocast(Model):
    def forward(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(ids)


def test_autocast_inside_a_model_is_named() -> None:
    model = OwnAutocast().float()
    seen = recorded(model, ids(2, 9))
    assert rs.scan(seen).verdict
    with pytest.raises(NotTranslated, match="runs its blocks under autocast"):
        rs.translate(seen)


# --- padding that only the blocks are told of


class Told(Model):
    """Lengths, or a mask between tokens for every text, from which the blocks get their mask."""

    def __init__(self, mask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(layers=2)
        self.mask = mask

    def forward(self, ids: Tensor, told: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.mask(ids, told))[0]
        return x


def by_length(ids: Tensor, lengths: Tensor) -> Tensor:
    return (torch.arange(ids.shape[1]) < lengths[:, None])[:, None, None, :]


def added(ids: Tensor, pairs: Tensor) -> Tensor:
    return torch.zeros(pairs.shape).double().masked_fill(~pairs, torch.finfo(torch.float64).min)


def lengths(texts: int, tokens: int) -> Tensor:
    return torch.tensor([tokens - 2 * text for text in range(texts)])


def pairs(texts: int, tokens: int) -> Tensor:
    """Causal, and without padding."""
    keys = torch.arange(tokens) < lengths(texts, tokens)[:, None]
    return torch.ones(tokens, tokens).bool().tril() & keys[:, None, None, :]


CASES = {"lengths": (by_length, lengths), "masks between tokens": (added, pairs)}


@pytest.mark.parametrize("name", CASES)
def test_padding_that_the_blocks_are_told_of_is_left_out(name: str) -> None:
    mask, told = CASES[name]
    model = Told(mask)
    states: list[Tensor] = []

    def keep(_: nn.Module, args: object, output: tuple[Tensor, Tensor]) -> None:
        states.append(output[0].detach())

    for block in model.blocks:
        block.register_forward_hook(keep)
    seen = recorded(model, ids(3, 9), told(3, 9))
    is_token = torch.arange(9) < lengths(3, 9)[:, None]
    ratios = []
    for state in states:
        for text, real in zip(state, is_token, strict=True):
            rows = text[real]
            ratios.append((rows - rows.mean(0)).norm() / rows.norm())
    frame = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
    measured = frame.sort("layer", "sample")["value"].to_torch()[3:]
    torch.testing.assert_close(measured, torch.stack(ratios), rtol=1e-9, atol=0)

    found = rs.translate(seen)
    assert all(one.covered == 1.0 for one in found.recognised)
    for texts, tokens in ((2, 9), (1, 20), (4, 12)):
        states.clear()
        other = recorded(model, ids(texts, tokens, seed=3), told(texts, tokens))
        theirs = list(states)
        real = torch.arange(tokens) < lengths(texts, tokens)[:, None]
        ours = found.network.states(*found.embed(other.batches[0]))[1:]
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one[real], two[real], rtol=0, atol=1e-11)


# --- inputs with one axis, norms that are not called, blocks that are not run


class OneText(Model):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids[None])[0]


def test_a_text_that_gets_its_axis_inside_is_one_text() -> None:
    seen = recorded(OneText(), ids(1, 9)[0])
    frame = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
    assert len(frame.rows()) == 4  # one text, the input and three blocks
    found = rs.translate(seen)
    x, _ = found.embed(recorded(OneText(), ids(1, 7)[0]).batches[0])
    assert x.shape == (1, 7, DIM)


class IdleNorm(Model):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM).double()


def test_a_norm_that_is_not_called_is_no_final_norm() -> None:
    seen = recorded(IdleNorm(), ids(2, 9))
    assert rs.scan(seen).verdict
    assert rs.translate(seen).network.final_norm is None
