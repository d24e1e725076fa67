"""What one block does alone is named with its line; what all do, or what a design says, is not."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.findings.laws import LawResult, Laws
from rankscope.wiring import laws

TOKENS, DIM, HEADS = 9, 16, 2


class Attention(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.bare = number, ()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores if self.number in self.bare else scores.softmax(-1)  # bare
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class LinearAttention(Attention):
    """It says what it is."""


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.factor = number, 1.0
        self.norm, self.attention = nn.LayerNorm(DIM), Attention(number)
        self.other = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.factor * self.attention(self.norm(x))
        return x + self.factor * self.down(F.gelu(self.up(self.other(x))))  # factor


class Net(nn.Module):
    def __init__(self, blocks: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, DIM)
        self.place = nn.Parameter(torch.randn(TOKENS, DIM))
        self.blocks = nn.ModuleList(Block(number) for number in range(blocks))
        self.rolled = -1
        self.last = nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x) + self.place[: x.shape[1]]
        for number, block in enumerate(self.blocks):
            x = block(x if number != self.rolled else x.roll(1, 0))  # rolled
        return self.last(x)


X = torch.randn(4, TOKENS, 3, generator=torch.Generator().manual_seed(1))


def one(found: Laws, name: str) -> LawResult:
    assert found.forwards <= 40
    return found[name]


def test_the_healthy_net_is_silent() -> None:
    assert not laws(Net(), X).broken


def test_texts_that_are_answered_in_the_places_of_others() -> None:
    net = Net()
    net.rolled = 2
    found = one(laws(net, X), "batch")
    assert (found.state, found.reason, found.block) == ("broken", "texts exchanged", 3)
    assert "# rolled" in found.code


def test_a_softmax_that_one_block_forgot() -> None:
    for number in (0, 2, 4):
        net = Net()
        for block in net.blocks:
            block.attention.bare = (number,)
        found = one(laws(net, X), "rows")
        assert (found.state, found.reason, found.block) == ("broken", "softmax missing", number + 1)
        assert "# bare" in found.code or "weights @ v" in found.code, found.sentence


def test_attention_without_softmax_on_purpose() -> None:
    every = Net()
    for block in every.blocks:
        block.attention.bare = tuple(range(5))
    assert one(laws(every, X), "rows").state != "broken"
    named = Net()
    named.blocks[4].attention = LinearAttention(4)
    named.blocks[4].attention.bare = (4,)
    assert one(laws(named, X), "rows").state != "broken"


def test_blocks_that_write_nothing_at_all() -> None:
    net = Net()
    for block in net.blocks:
        block.factor = 0.0
    found = one(laws(net, X), "gradient")
    assert (found.state, found.reason, found.block) == ("broken", "zero gradient", 1)
    assert found.what == "every weight of the blocks"
    assert "self.factor" in found.code


def test_a_weight_that_is_not_of_the_size_of_all_others() -> None:
    net = Net()
    with torch.no_grad():
        net.blocks[1].down.weight.mul_(1e-4)
    found = one(laws(net, X), "alike")
    assert (found.state, found.reason, found.block) == ("broken", "odd weight", 2)
    assert "down.weight is far smaller" in found.sentence


def test_starts_that_fall_with_depth_are_a_design() -> None:
    net = Net()
    with torch.no_grad():
        for number, block in enumerate(net.blocks):
            block.down.weight.mul_(8.0**-number)
    assert not laws(net, X).broken


def test_numbers_of_rows_have_their_unit() -> None:
    found = LawResult(name="rows", state="broken", block=1, reason="wrong axis", number=2.48)
    assert found.sentence.endswith("(sums of rows are off by up to 2.48).")
    found = LawResult(name="rows", state="broken", block=1, reason="fully masked", number=0.125)
    assert found.sentence.endswith("(a share of 0.125 of them).")
