"""The same block in other words: what people write for softmax, heads, linear maps and norms.

Each class has some of the steps of a block of ``own_models``. ``kinds`` are those whose steps it fits; all three
where nothing is said.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kit.own_models import DIM, HEADS, Block, split

SPELLINGS: dict[str, type] = {}


def spelling(made: type) -> type:
    """Keep a class under the first line of its docstring."""
    SPELLINGS[(made.__doc__ or "").strip().splitlines()[0].rstrip(".")] = made
    return made


def _filled(scores: Tensor, may: Tensor) -> Tensor:
    return scores.masked_fill(~may, torch.finfo(scores.dtype).min)


# Softmax


@spelling
class ExpOverSum(Block):
    """Softmax as exp over its sum, minus the maximum."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        scores = _filled(scores, may)
        grown = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        return grown / grown.sum(dim=-1, keepdim=True)


@spelling
class LogSoftmax(Block):
    """Softmax as exp of log_softmax."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        return F.log_softmax(_filled(scores, may), dim=-1).exp()


@spelling
class LogSumExp(Block):
    """Softmax as exp of logits minus their logsumexp."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        scores = _filled(scores, may)
        return (scores - scores.logsumexp(dim=-1, keepdim=True)).exp()


@spelling
class MaskAdded(Block):
    """A mask added as zeros and minus infinity."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        bias = torch.zeros(may.shape, dtype=scores.dtype).masked_fill(~may, -1e9)
        return (scores + bias).softmax(dim=-1)


@spelling
class MaskByWhere(Block):
    """A mask by torch.where."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        return torch.where(may, scores, -1e30).softmax(dim=-1)


@spelling
class MaskTimesBig(Block):
    """A mask as (1 - mask) times a large negative number."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        return (scores + (1.0 - may.to(scores.dtype)) * -1e9).softmax(dim=-1)


@spelling
class MapOnTheRight(Block):
    """Keys by queries, softmax over axis -2, values on the left."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        scores = k @ q.mT / math.sqrt(q.shape[-1])
        may = self.allowed(scores, h, keep).mT
        maps = _filled(scores, may).softmax(dim=-2)
        return self.out((v.mT @ maps).mT.transpose(1, 2).flatten(2))


@spelling
class FusedAttention(Block):
    """torch's scaled_dot_product_attention with a boolean mask."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        may = self.allowed(q @ k.mT, h, keep)
        may = may if keep is None else may | torch.eye(h.shape[1], dtype=torch.bool)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=may).transpose(1, 2).flatten(2))


@spelling
class FusedWithAScale(Block):
    """torch's scaled_dot_product_attention with a scale of its own."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        may = self.allowed(q @ k.mT, h, keep)
        may = may if keep is None else may | torch.eye(h.shape[1], dtype=torch.bool)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=may, scale=0.3)
        return self.out(mixed.transpose(1, 2).flatten(2))


@spelling
class QueriesInChunks(Block):
    """Queries in two chunks, each with a softmax of its own."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        may = self.allowed(q @ k.mT, h, keep).expand(*q.shape[:-1], h.shape[1])
        half = (h.shape[1] + 1) // 2
        mixed = [
            _filled(self.scores(q[..., rows, :], k), may[..., rows, :]).softmax(dim=-1) @ v
            for rows in (slice(0, half), slice(half, None))
        ]
        return self.out(torch.cat(mixed, dim=-2).transpose(1, 2).flatten(2))


@spelling
class LoopOverHeads(Block):
    """A loop over heads, joined by cat."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        may = self.allowed(q @ k.mT, h, keep)
        outs = []
        for head in range(q.shape[1]):
            scores = q[:, head] @ k[:, head].transpose(1, 2) / q.shape[-1] ** 0.5
            outs.append(_filled(scores, may if may.ndim == 2 else may[:, 0]).softmax(dim=-1) @ v[:, head])
        return self.out(torch.cat(outs, dim=-1))


# Heads


@spelling
class Einsum(Block):
    """Products by einsum."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5

    def mixed(self, maps: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhij,bhjd->bhid", maps, v)


@spelling
class OneEinsumOut(Block):
    """Maps, values and the output map in one einsum of three operands."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        scores = self.scores(q, k)
        maps = self.maps(scores, self.allowed(scores, h, keep))
        out = self.out.weight.T.unflatten(0, (q.shape[1], -1))
        mixed = torch.einsum("bhij,bhjd,hde->bie", maps, v, out)
        return mixed if self.out.bias is None else mixed + self.out.bias


@spelling
class HeadsFirst(Block):
    """Texts and heads in one axis, products by bmm."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = (part.flatten(0, 1) for part in self.heads(h))
        heads = len(q) // len(h)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        scores = scores.view(len(h), heads, *scores.shape[1:])
        maps = self.maps(scores, self.allowed(scores, h, keep)).flatten(0, 1)
        mixed = torch.bmm(maps, v).view(len(h), heads, h.shape[1], -1)
        return self.out(mixed.permute(0, 2, 1, 3).reshape(len(h), h.shape[1], -1))


@spelling
class Baddbmm(Block):
    """Logits by baddbmm onto the mask."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = (part.flatten(0, 1) for part in self.heads(h))
        heads = len(q) // len(h)
        may = self.allowed(torch.zeros(len(h), heads, h.shape[1], h.shape[1]), h, keep)
        bias = torch.zeros(len(h), heads, h.shape[1], h.shape[1], dtype=h.dtype).masked_fill(~may, -1e9)
        scores = torch.baddbmm(bias.flatten(0, 1), q, k.mT, alpha=q.shape[-1] ** -0.5)
        mixed = (scores.softmax(dim=-1) @ v).unflatten(0, (len(h), heads))
        return self.out(mixed.transpose(1, 2).flatten(2))


@spelling
class TemperaturePerHead(Block):
    """A learned temperature per head."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q * (0.5 + 0.3 * torch.arange(q.shape[1], dtype=q.dtype))[:, None, None], k)


@spelling
class ScaleOnBoth(Block):
    """The scale on queries and keys, half each."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        part = q.shape[-1] ** -0.25
        return (q * part) @ (k * part).mT


@spelling
class SoftCapped(Block):
    """Logits bent by tanh, as in Gemma."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return 5.0 * torch.tanh(super().scores(q, k) / 5.0)


@spelling
class ShortWindow(Block):
    """A window of four tokens."""

    def allowed(self, scores: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
        where = torch.arange(scores.shape[-1])
        return super().allowed(scores, h, keep) & ((where[:, None] - where).abs() < 4)


@spelling
class AlibiAdded(Block):
    """ALiBi added to the logits."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        where = torch.arange(q.shape[-2], dtype=q.dtype)
        slopes = 2.0 ** -(1 + torch.arange(q.shape[1], dtype=q.dtype))
        return super().scores(q, k) - slopes[:, None, None] * (where[:, None] - where).abs()


@spelling
class QueryKeyNorm(Block):
    """Queries and keys of unit length, with a scale that is learned."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (part * torch.rsqrt(part.pow(2).mean(dim=-1, keepdim=True) + 1e-6) for part in (q, k))
        return 0.7 * (q @ k.mT)


@spelling
class NoOutputMap(Block):
    """Heads are joined and that is all."""

    kinds = ("nano", "encoder")

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        scores = self.scores(q, k)
        return (self.maps(scores, self.allowed(scores, h, keep)) @ v).transpose(1, 2).flatten(2)


@spelling
class SlicedHeads(Block):
    """Heads by slices of the columns, joined by cat."""

    kinds = ("encoder",)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = DIM // HEADS

        def cut(part: Tensor) -> Tensor:
            return torch.stack([part[..., n * wide : (n + 1) * wide] for n in range(HEADS)], dim=1)

        return cut(self.q(h)), cut(self.k(h)), cut(self.v(h))


@spelling
class HeadsInnermost(Block):
    """Heads are the innermost axis of the columns."""

    kinds = ("encoder",)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (m(h).unflatten(-1, (-1, HEADS)).permute(0, 3, 1, 2) for m in (self.q, self.k, self.v))
        return q, k, v


@spelling
class PaddedHeads(Block):
    """Heads padded with zeros to a round width."""

    kinds = ("encoder",)

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = (F.pad(part, (0, 2)) for part in self.heads(h))
        scores = q @ k.mT / math.sqrt(DIM // HEADS)
        maps = self.maps(scores, self.allowed(scores, h, keep))
        return self.out((maps @ v)[..., : DIM // HEADS].transpose(1, 2).flatten(2))


# Linear maps, sums and norms


@spelling
class Convolved(Block):
    """Linear maps as convolutions of kernel one."""

    kinds = ("nano", "encoder")

    def fed(self, h: Tensor) -> Tensor:
        up = F.conv1d(h.mT, self.up.weight[..., None], self.up.bias)
        act = F.gelu(up) if "Nano" in type(self).__name__ else up.relu()
        return F.conv1d(act, self.down.weight[..., None], self.down.bias).mT


@spelling
class MatrixHeads(Block):
    """Queries, keys and values by einsum with a weight per head."""

    kinds = ("encoder",)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def one(m: nn.Linear) -> Tensor:
            weight = m.weight.T.unflatten(1, (HEADS, -1))
            return torch.einsum("btd,dhk->bhtk", h, weight) + m.bias.unflatten(0, (HEADS, -1))[:, None]

        return one(self.q), one(self.k), one(self.v)


@spelling
class FlatTokens(Block):
    """Texts and tokens in one axis for the MLP."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h.reshape(-1, DIM)).view_as(h)


@spelling
class SumOfBranches(Block):
    """Branches added by Python's sum."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return sum([x, branch])


@spelling
class AddedInPlace(Block):
    """Branches added in place to a copy, through views."""

    said = 4  # rows that are counted are run as they ran, for texts of that length

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        out = x.clone()
        out[..., :5] += branch[..., :5]
        out.view(-1, DIM)[:, 5:].add_(branch.reshape(-1, DIM)[:, 5:])
        return out


@spelling
class AddedOut(Block):
    """Branches added with out=."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        made = torch.empty_like(x)
        torch.add(x.detach(), branch.detach(), out=made)
        return made


@spelling
class Lerp(Block):
    """A skip and its branch weighed by a number."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return 0.75 * x + 1.25 * branch


@spelling
class NormByHand(Block):
    """A norm written out, with eps inside the root."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        x = x - x.mean(dim=-1, keepdim=True)
        return norm.weight * (x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5))


@spelling
class NormByVar(Block):
    """A norm by torch.var_mean."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(var + 1e-5) * norm.weight


@spelling
class EvalBatchNorm(Block):
    """BatchNorm at rest, over channels."""

    kinds = ("encoder",)

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM)

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x.transpose(1, 2)).transpose(1, 2)


@spelling
class NoNorm(Block):
    """No norm at all."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return x


@spelling
class TanhNorm(Block):
    """tanh in place of a norm."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm.weight * torch.tanh(0.5 * x)


@spelling
class ReadInFloat32(Block):
    """The model is in float32."""

    dtype = torch.float32


@spelling
class TokensFirstInside(Block):
    """The block turns the stream and works on tokens first."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        turned = h.transpose(0, 1).contiguous()
        q, k, v = self.heads(turned.transpose(0, 1))
        scores = self.scores(q, k)
        mixed = self.maps(scores, self.allowed(scores, h, keep)) @ v
        return self.out(mixed.permute(2, 0, 1, 3).flatten(2)).transpose(0, 1)


@spelling
class SquaredRelu(Block):
    """Squared ReLU."""

    kinds = ("nano", "encoder")

    def fed(self, h: Tensor) -> Tensor:
        return self.down(self.up(h).relu().square())


@spelling
class QuickGelu(Block):
    """GELU as x times sigmoid of 1.702 x."""

    kinds = ("nano", "encoder")

    def fed(self, h: Tensor) -> Tensor:
        up = self.up(h)
        return self.down(up * torch.sigmoid(1.702 * up))


@spelling
class GatedByHalves(Block):
    """A gate from halves of one map."""

    kinds = ("nano", "encoder")

    def fed(self, h: Tensor) -> Tensor:
        one, two = self.up(h).chunk(2, dim=-1)
        return F.linear(one * F.silu(two), self.down.weight[:, :10], self.down.bias)


@spelling
class SplitHeads(Block):
    """Heads by split and unbind."""

    kinds = ("encoder",)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (torch.stack(m(h).split(DIM // HEADS, dim=-1), dim=1) for m in (self.q, self.k, self.v))
        return q, k, v

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        scores = self.scores(q, k)
        mixed = self.maps(scores, self.allowed(scores, h, keep)) @ v
        return self.out(torch.cat(mixed.unbind(1), dim=-1))


# Positions and temperatures


@spelling
class PositionsOnQueriesAndKeys(Block):
    """Positions that are added to the state of queries and keys, and not to that of values, as in DETR."""

    kinds = ("encoder",)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place = torch.arange(h.shape[1], dtype=h.dtype)[:, None]
        moved = h + (0.7 * place + torch.arange(DIM, dtype=h.dtype)).sin()
        return split(self.q(moved), HEADS), split(self.k(moved), HEADS), split(self.v(h), HEADS)


@spelling
class PositionsOnKeys(Block):
    """Positions that are added to keys alone."""

    kinds = ("nano", "encoder")

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(k.shape[-2], dtype=k.dtype)[:, None]
        return super().scores(q, k + (0.3 * place + torch.arange(k.shape[-1], dtype=k.dtype)).sin())


@spelling
class TemperatureBehindNorms(Block):
    """A temperature per head behind norms of queries and keys."""

    kinds = ("nano", "encoder")

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        return q @ k.mT * (2.0 + torch.arange(q.shape[1], dtype=q.dtype))[:, None, None]


@spelling
class NormsTurnsAndTemperatures(Block):
    """Norms of queries and keys, then their turn, then a temperature per head and a slope."""

    kinds = ("llama",)

    def turned(self, x: Tensor) -> Tensor:
        return super().turned(x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        head = 1.0 + torch.arange(q.shape[1], dtype=q.dtype)[:, None, None]
        place = torch.arange(q.shape[-2], dtype=q.dtype)
        return super().scores(q * head, k) - (place[:, None] - place).abs() / head


@spelling
class Mish(Block):
    """An activation that no part has."""

    kinds = ("nano", "encoder")

    def fed(self, h: Tensor) -> Tensor:
        return self.down(F.mish(self.up(h)))


@spelling
class SigmoidGate(Block):
    """A gate by sigmoid, as in GLU."""

    kinds = ("nano",)

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 40)

    def fed(self, h: Tensor) -> Tensor:
        return self.down(F.glu(self.up(h), dim=-1))
