"""What a model may do besides what its tree says, and agree with it on the captured call or on every easy probe.

Each class has some of the steps of a block of ``own_models``, or of a model where ``of_the_model`` says so. Whatever is
read from such a model must be right on every other call, or refused. ``captured`` is the number of texts and tokens of
the captured call, where it matters.
"""

import math
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kit.own_models import DIM, Block, Model

FAULTS: dict[str, type] = {}


def fault(made: type) -> type:
    """Keep a class under the first line of its docstring.

    ``is_spelling`` says of one that it changes no number: then a tree of it is right, if there is one.
    """
    FAULTS[(made.__doc__ or "").strip().splitlines()[0].rstrip(".")] = made
    return made


# The stream is written to, cast, or reordered


@fault
class WritesItsInput(Block):
    """The block adds to its input in place."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x += 0.1 * self.fed(x)
        return super().forward(x, keep)


@fault
class WritesWithoutGradients(Block):
    """The block adds to its input in place where no gradient is wanted."""

    is_spelling = True

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return x + branch
        return x.add_(branch)


@fault
class WritesOnlyWhenShort(Block):
    """Branches are added through slices of a buffer, the second half of the channels twice."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        out = x.clone()
        out[..., : DIM // 2] += branch[..., : DIM // 2]
        out[..., DIM // 2 :].add_(branch[..., DIM // 2 :], alpha=2)
        return out


@fault
class Rounded(Block):
    """The stream is cast to integers and back."""

    def enter(self, x: Tensor) -> Tensor:
        return (x * 2**20).to(torch.int64).to(x.dtype) / 2**20


@fault
class FineRounding(Block):
    """The stream is rounded in its seventh digit."""

    def enter(self, x: Tensor) -> Tensor:
        return (x * 1e7).round() / 1e7


@fault
class ThroughHalf(Block):
    """The residual passes through bfloat16."""

    def leave(self, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).to(x.dtype)


@fault
class Reordered(Block):
    """Tokens are reordered by view, transpose and reshape."""

    def enter(self, x: Tensor) -> Tensor:
        texts, tokens, dim = x.shape
        if tokens % 3:
            return x
        return x.view(texts, 3, tokens // 3, dim).transpose(1, 2).reshape(texts, tokens, dim)


@fault
class TurnedRound(Block):
    """Texts and tokens are swapped where there are as many of both."""

    captured = (9, 9)

    def enter(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1) if x.shape[0] == x.shape[1] else x


@fault
class BatchReadAsTokens(Block):
    """Texts and tokens are read in the wrong order and written back as they were."""

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        texts, tokens, dim = h.shape
        q, k, v = super().heads(h.reshape(tokens, texts, dim).transpose(0, 1))
        return q, k, v


@fault
class Flipped(Block):
    """The MLP reads the tokens in reverse order."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h.flip(1))


@fault
class Rolled(Block):
    """Values are those of the token before."""

    def mixed(self, maps: Tensor, v: Tensor) -> Tensor:
        return maps @ v.roll(1, dims=-2)


@fault
class TokenShift(Block):
    """Half of the channels come from the token before, as in RWKV."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        h = norm(x)
        before = F.pad(h, (0, 0, 1, 0))[:, :-1]
        return torch.cat([h[..., : DIM // 2], before[..., DIM // 2 :]], dim=-1)


@fault
class Sorted(Block):
    """Tokens are sorted by their first channel, mixed in that order, and put back."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        order = h[..., 0].argsort(dim=-1)
        moved = h.gather(1, order[..., None].expand_as(h))
        kept = None if keep is None else keep.gather(1, order)
        out = super().attended(moved, kept)
        return torch.zeros_like(out).scatter(1, order[..., None].expand_as(out), out)


@fault
class SortedChannels(Block):
    """The channels of every token are sorted before the MLP."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h.sort(dim=-1).values)


# Dropout and other numbers from nowhere


@fault
class DropoutLeftOn(Block):
    """Dropout that does not ask whether the model is in training."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + F.dropout(branch, 0.1, training=True)


@fault
class DropoutSwitchedOn(Block):
    """A dropout module that the block switches to training."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + nn.Dropout(0.1).train()(branch)


@fault
class DropoutOfLarge(Block):
    """Dropout where some number is large."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + F.dropout(branch, 0.1, training=bool(x.abs().amax() > 25))


@fault
class SeededNoise(Block):
    """Noise from a seed of its own: the same in every pass of that shape."""

    def enter(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype)
        return x + 1e-3 * noise


@fault
class TinyNoise(Block):
    """Noise in the seventh digit."""

    def enter(self, x: Tensor) -> Tensor:
        return x + 1e-7 * torch.randn_like(x)


@fault
class CallCounter(Block):
    """The block counts its calls and grows with them."""

    count = 0

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        self.count = self.count + 1
        return x + branch * (1 + 0.001 * self.count)


@fault
class RunningMean(Block):
    """A buffer is moved towards the mean of every input, and taken off."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        held = self.__dict__.setdefault("held", torch.zeros(DIM, dtype=x.dtype))
        held.mul_(0.9).add_(0.1 * x.detach().mean(dim=(0, 1)))
        return norm(x - held)


@fault
class FirstInput(Block):
    """The mean of the first input ever seen is kept and taken off, as layers that start from data do."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        if "first" not in self.__dict__:
            self.__dict__["first"] = x.detach().mean(dim=(0, 1))
        return norm(x - self.first)


@fault
class FirstLength(Block):
    """A table is made at the first call for its length, and later calls are scaled by that length."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        first = self.__dict__.setdefault("first_length", q.shape[-2])
        return super().scores(q, k) * (1 + 0.01 * (q.shape[-2] - first))


# Position


@fault
class PositionGain(Block):
    """A multiplier per position, where there are as many tokens as channels."""

    captured = (2, DIM)

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        gain = 1 + 0.1 * torch.arange(branch.shape[1], dtype=x.dtype)
        return x + branch * gain[:, None]


@fault
class EpsByPosition(Block):
    """The eps of a norm grows with the position."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        eps = 1e-3 * (1 + torch.arange(x.shape[1], dtype=x.dtype))[:, None]
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + eps).sqrt() * norm.weight


@fault
class QueryByPosition(Block):
    """Queries are scaled by their position."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        where = torch.arange(q.shape[-2], dtype=q.dtype)
        return super().scores(q * (1 + where.log1p())[:, None], k)


@fault
class KeyPositions(Block):
    """Positions are added to keys alone."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        where = torch.arange(k.shape[-2], dtype=k.dtype)[:, None]
        return super().scores(q, k + (0.3 * where + torch.arange(k.shape[-1], dtype=k.dtype)).sin())


@fault
class SpreadPositions(Block):
    """Positions on queries and keys that are spread over the text: other ones for every length."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.linspace(0, 1, k.shape[-2], dtype=k.dtype)[:, None]
        added = (7 * place + torch.arange(k.shape[-1], dtype=k.dtype)).sin()
        return super().scores(q + added, k + added)


@fault
class PositionsOfTexts(Block):
    """Positions on keys that differ from text to text."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(k.shape[-2], dtype=k.dtype)[:, None] * (
            1 + torch.arange(len(k), dtype=k.dtype)[:, None, None, None]
        )
        return super().scores(q, k + (0.3 * place + torch.arange(k.shape[-1], dtype=k.dtype)).sin())


@fault
class HandedOnValues(Block):
    """Values of the first block are handed on to the next ones, beside the stream."""

    layers = 2
    first: dict[int, Tensor] = {}  # noqa: RUF012 - shared by all blocks on purpose

    def mixed(self, maps: Tensor, v: Tensor) -> Tensor:
        held = HandedOnValues.first
        if not held or next(iter(held)) == id(self) or next(iter(held.values())).shape != v.shape:
            held.clear()
            held[id(self)] = v
        return maps @ (0.5 * v + 0.5 * next(iter(held.values())))


@fault
class FirstToken(Block):
    """The first token is doubled."""

    def fed(self, h: Tensor) -> Tensor:
        out = super().fed(h)
        return torch.cat([2 * out[:, :1], out[:, 1:]], dim=1)


@fault
class LastToken(Block):
    """The last token is doubled."""

    def fed(self, h: Tensor) -> Tensor:
        out = super().fed(h)
        return torch.cat([out[:, :-1], 2 * out[:, -1:]], dim=1)


@fault
class EverySixteenth(Block):
    """The sixteenth token, the thirty-second and so on are doubled."""

    def fed(self, h: Tensor) -> Tensor:
        gain = 1 + (torch.arange(h.shape[1]) % 16 == 15).to(h.dtype)
        return super().fed(h) * gain[:, None]


@fault
class CutOff(Block):
    """Tokens from the seventeenth on are left as they are."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch * (torch.arange(x.shape[1]) < 16).to(x.dtype)[:, None]


@fault
class TextNumber(Block):
    """Texts are scaled by their place in the batch."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h) * (1 + 0.1 * torch.arange(len(h), dtype=h.dtype))[:, None, None]


@fault
class SecondTextMasked(Block):
    """Every second text has a mask of its own."""

    def allowed(self, scores: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
        count = scores.shape[-1]
        where = torch.arange(count)
        near = (where[:, None] - where).abs() < 2
        odd = (torch.arange(len(h)) % 2 == 1)[:, None, None, None]
        return super().allowed(scores, h, keep) & (near | ~odd)


# Length


@fault
class LongWindow(Block):
    """A window of 64 tokens."""

    def allowed(self, scores: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
        where = torch.arange(scores.shape[-1])
        return super().allowed(scores, h, keep) & ((where[:, None] - where).abs() < 64)


@fault
class LongChunks(Block):
    """Chunks of 16 tokens that do not read each other."""

    def allowed(self, scores: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
        chunk = torch.arange(scores.shape[-1]) // 16
        return super().allowed(scores, h, keep) & (chunk[:, None] == chunk)


@fault
class LengthBranch(Block):
    """Another scale from 33 tokens on, by a branch of Python."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (0.8 if q.shape[-2] > 32 else 1.0)


@fault
class LogLength(Block):
    """Logits are scaled by the logarithm of the length."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * math.log(2 + k.shape[-2])


@fault
class EarlyReturn(Block):
    """Short texts pass the block as they are."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return x if x.shape[1] < 8 else super().forward(x, keep)


@fault
class LongPassThrough(Block):
    """Long texts skip the MLP."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h) if h.shape[1] <= 16 else torch.zeros_like(h)


@fault
class OneToken(Block):
    """Nothing but a capture of one token, on which causal and full attention are the same."""

    captured = (2, 1)
    is_spelling = True


@fault
class OneText(Block):
    """A batch of one text takes another branch."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h) * (1.5 if len(h) == 1 else 1.0)


@fault
class ManyTexts(Block):
    """More than three texts take another branch."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h) * (1.5 if len(h) > 3 else 1.0)


@fault
class TopK(Block):
    """A query reads its twelve largest logits alone."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        scores = scores.masked_fill(~may, torch.finfo(scores.dtype).min)
        least = scores.topk(min(12, scores.shape[-1]), dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, torch.finfo(scores.dtype).min).softmax(dim=-1)


@fault
class SmallMapsDropped(Block):
    """Entries of a map below a thousandth are dropped and the rest adds up to one again."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        maps = super().maps(scores, may)
        kept = maps * (maps > 1e-3)
        return kept / kept.sum(dim=-1, keepdim=True)


@fault
class Buckets(Block):
    """A bias by distance in buckets that get wider, as in T5."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        where = torch.arange(q.shape[-2])
        distance = (where[:, None] - where).abs()
        far = 8 + (distance.clamp(min=1).to(q.dtype) / 8).log2().mul(4).long().clamp(max=7)
        bucket = torch.where(distance < 8, distance, far)
        return super().scores(q, k) + (1.7 * bucket.to(q.dtype)).sin()


@fault
class DistanceTable(Block):
    """A learned bias by distance that is zero beyond 24 tokens."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        where = torch.arange(q.shape[-2])
        distance = (where[:, None] - where).abs()
        bias = (0.9 * distance.to(q.dtype)).cos() * (distance < 24)
        return super().scores(q, k) + bias


@fault
class LayerNormOverBoth(Block):
    """LayerNorm over tokens and channels, where there are as many of both."""

    captured = (2, DIM)

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return F.layer_norm(x, x.shape[1:]) * norm.weight


@fault
class NormOverTokens(Block):
    """A norm over tokens in place of channels, where there are as many of both."""

    captured = (2, DIM)

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return F.layer_norm(x.mT, (x.shape[1],)).mT * norm.weight


@fault
class LengthChunkedRopeLike(Block):
    """Keys are stretched from 33 tokens on."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        stretch = max(1.0, k.shape[-2] / 32)
        where = torch.arange(k.shape[-2], dtype=k.dtype) / stretch
        return super().scores(q, k) - 0.05 * (where[:, None] - where).abs()


# Size


@fault
class ClampedLogits(Block):
    """Logits are clamped at 50."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(3 * q, k).clamp(max=50)


@fault
class ClippedValues(Block):
    """Values are clipped at 10000."""

    def mixed(self, maps: Tensor, v: Tensor) -> Tensor:
        return maps @ (v * 2e3).clamp(-1e4, 1e4) / 2e3


@fault
class ReluFarAway(Block):
    """The stream is cut off at -25."""

    def enter(self, x: Tensor) -> Tensor:
        return (x + 25).relu() - 25


@fault
class WrappedRound(Block):
    """The stream is wrapped round at 25."""

    def enter(self, x: Tensor) -> Tensor:
        return torch.remainder(x + 25, 50) - 25


@fault
class SlightlyBent(Block):
    """The residual is multiplied by 1 + 1e-7 times its size."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x * (1 + 1e-7 * x.abs()) + branch


@fault
class BentBranch(Block):
    """A branch bends where it is large."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + torch.where(branch.abs() > 15, branch.sign() * 15, branch)


@fault
class EpsOutside(Block):
    """The eps of a norm stands outside of the root."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return x / (x.pow(2).mean(dim=-1, keepdim=True).sqrt() + 1e-3) * norm.weight


@fault
class StdOfASample(Block):
    """A norm divides by the standard deviation of a sample, as many write it."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + 1e-6) * norm.weight


@fault
class EpsAsFloor(Block):
    """The eps of a norm is a floor."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return F.normalize(x, dim=-1, eps=0.05) * norm.weight


@fault
class HalfSoftmax(Block):
    """Softmax in float16."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        filled = scores.to(torch.float16).masked_fill(~may, torch.finfo(torch.float16).min)
        return filled.softmax(dim=-1).to(scores.dtype)


@fault
class Softmax1(Block):
    """One is added to the sum of a softmax."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        grown = scores.clamp(max=300).exp() * may
        return grown / (1 + grown.sum(dim=-1, keepdim=True))


@fault
class Sink(Block):
    """A learned sink takes part of every row."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        scores = scores.masked_fill(~may, torch.finfo(scores.dtype).min)
        sink = torch.full_like(scores[..., :1], 0.5)
        return torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]


@fault
class SoftmaxEps(Block):
    """A small number is added to the sum of a softmax."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        grown = (scores - scores.amax(dim=-1, keepdim=True)).exp() * may
        return grown / (grown.sum(dim=-1, keepdim=True) + 1e-6)


@fault
class OtherSoftmax(Block):
    """Softmax over queries."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        return scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(dim=-2) * may


@fault
class ThresholdedSquares(Block):
    """Attention by squared ReLU of logits above a threshold: few tokens read others."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        squares = ((scores - 4).relu() ** 2) * may
        return squares / len(squares[0, 0]) + torch.eye(scores.shape[-1], dtype=scores.dtype)


# Content


@fault
class MaskByContent(Block):
    """Tokens whose first channel is above 1.5 are read by nobody but themselves."""

    def allowed(self, scores: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
        loud = (h[..., 0] > 1.5)[:, None, None, :]
        own = torch.eye(scores.shape[-1], dtype=torch.bool)
        return super().allowed(scores, h, keep) & (~loud | own)


@fault
class MaskOfZeroRows(Block):
    """Rows of zeros are taken for padding."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        some = x.abs().sum(dim=-1) > 0
        return super().forward(x, some if keep is None else keep & some)


@fault
class ScaleByContent(Block):
    """The temperature of a head is the mean length of its queries."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) / q.norm(dim=-1).mean(dim=-1)[..., None, None]


@fault
class BatchMean(Block):
    """Attention reads the mean over the batch as well."""

    def mixed(self, maps: Tensor, v: Tensor) -> Tensor:
        return maps @ (v + 0.1 * v.mean(dim=0, keepdim=True))


@fault
class BatchNormInTraining(Block):
    """A norm over texts and tokens of the batch."""

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm((x - x.mean(dim=(0, 1))) / (x.var(dim=(0, 1), unbiased=False) + 1e-5).sqrt())


@fault
class GlobalGate(Block):
    """The sign of one sum decides on a branch of Python."""

    def fed(self, h: Tensor) -> Tensor:
        return super().fed(h) * (1.2 if float(h.detach().sum()) > 0 else 1.0)


@fault
class ThroughNumpy(Block):
    """A mean is computed in numpy, where no operation of torch is seen."""

    def fed(self, h: Tensor) -> Tensor:
        mean = numpy.mean(h.detach().cpu().numpy(), axis=1, keepdims=True)
        return super().fed(h) + torch.from_numpy(mean)


@fault
class InlineExperts(Block):
    """Each token is sent to one of two maps by its first channel."""

    def fed(self, h: Tensor) -> Tensor:
        out = torch.zeros_like(h)
        for sign in (1, -1):
            chosen = (sign * h[..., 0] > 0).nonzero(as_tuple=True)
            out[chosen] = sign * super().fed(sign * h[chosen])
        return out


@fault
class LoopOverTexts(Block):
    """A loop over texts, each scaled by the length that its own numbers give."""

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        rows = []
        for text in range(len(h)):
            one = super().attended(h[text : text + 1], None if keep is None else keep[text : text + 1])
            rows.append(one * (1 + 0.1 * float(h[text].norm() > 10.5)))
        return torch.cat(rows)


@fault
class MultiplicativeStream(Block):
    """A branch is multiplied by the stream."""

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch * (1 + 0.1 * x.tanh())


@fault
class OpaqueWithFixedShape(Block):
    """An operation that no part knows, between reshapes to the shape of the batch."""

    captured = (2, 12)

    def enter(self, x: Tensor) -> Tensor:
        texts, tokens, dim = x.shape
        summed = x.reshape(texts * tokens, dim).reshape(texts, tokens, dim).cumsum(dim=1)
        return x + 0.1 * summed.sin()


@fault
class OpaqueFromATurnedView(Block):
    """An operation that no part knows starts at a turned view of the stream."""

    def enter(self, x: Tensor) -> Tensor:
        return x + 0.1 * x.permute(1, 0, 2).cumsum(dim=0).sin().permute(1, 0, 2)


@fault
class MaskAddedAsNumbers(Block):
    """A boolean mask is added as zeros and ones."""

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        return (scores + 3 * may).softmax(dim=-1)


# Modes and surroundings


@fault
class KnowsInferenceMode(Block):
    """Another scale in inference mode."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (1.0 if torch.is_inference_mode_enabled() else 1.1)


@fault
class KnowsGradients(Block):
    """Another scale where gradients are wanted."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (1.0 if torch.is_grad_enabled() else 1.1)


@fault
class KnowsItsDtype(Block):
    """Another scale in float32, the dtype of the model, than in float64."""

    dtype = torch.float32

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (1.1 if q.dtype == torch.float32 else 1.0)


@fault
class ClosureOverItself(Block):
    """The forward of every block is a closure over the block."""

    is_spelling = True

    def __init__(self) -> None:
        super().__init__()
        own = super().forward
        self.forward = lambda x, keep=None: own(x, keep)


@fault
class Hooked(Block):
    """A hook of somebody else changes what the MLP puts out."""

    def __init__(self) -> None:
        super().__init__()
        self.down.register_forward_hook(lambda _module, _args, out: out.clamp(max=5))


@fault
class HookedBlock(Block):
    """A hook of somebody else changes what the block puts out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda _module, _args, out: 1.05 * out)


@fault
class HookedInput(Block):
    """A hook of somebody else changes what enters the block."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda _module, args: (1.05 * args[0], *args[1:]))


class _Listening(nn.Module):
    """A block that scales what the wrapped one adds by an attribute that others set."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.told = inner, None

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return x + self.told * (self.inner(x, keep) - x)


@fault
class AttributeFromOutside(Model):
    """The model tells its blocks a number of the batch by an attribute."""

    of_the_model = True

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.blocks = nn.ModuleList(_Listening(inner) for inner in self.blocks)

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for block in self.blocks:
            block.told = x.abs().mean(dim=(1, 2), keepdim=True).sigmoid()
        return super().through(x, keep)


@fault
class LengthByAttribute(Model):
    """The model tells its blocks the length of the batch by an attribute."""

    of_the_model = True

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.blocks = nn.ModuleList(_Listening(inner) for inner in self.blocks)

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for block in self.blocks:
            block.told = 1 + 0.01 * x.shape[1]
        return super().through(x, keep)


@fault
class BetweenBlocks(Model):
    """The model scales the stream between its blocks."""

    of_the_model = True

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = 1.05 * (block(x) if keep is None else block(x, keep))
        return x


@fault
class BetweenBlocksWhenLong(Model):
    """The model pools the stream between its blocks where texts are long."""

    of_the_model = True

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = block(x) if keep is None else block(x, keep)
            x = x if x.shape[1] <= 16 else 0.5 * (x + x.mean(dim=1, keepdim=True))
        return x


@fault
class SkipFromBefore(Model):
    """A skip from two blocks before."""

    of_the_model = True

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.blocks.append(block())

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        states = [x]
        for layer, block in enumerate(self.blocks):
            given = states[-1] + (0.5 * states[-3] if layer >= 2 else 0)
            states.append(block(given) if keep is None else block(given, keep))
        return states[-1]


class _Told(nn.Module):
    """A block that scales what the wrapped one adds by a number that it is told."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, keep: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        return x + scale * (self.inner(x, keep) - x)


@fault
class TiedAndTold(Model):
    """One block is called twice, each time with another number."""

    of_the_model = True

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.blocks = nn.ModuleList([_Told(self.blocks[0])] * 2)

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for scale, block in zip((0.7, 1.3), self.blocks, strict=True):
            x = block(x, scale=scale) if keep is None else block(x, keep, scale=scale)
        return x


@fault
class ToldTheLength(Model):
    """Blocks are told a number that depends on the length."""

    of_the_model = True

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.blocks = nn.ModuleList(_Told(inner) for inner in self.blocks)

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        scale = 1 / math.sqrt(x.shape[1])
        for block in self.blocks:
            x = block(x, scale=scale) if keep is None else block(x, keep, scale=scale)
        return x


@fault
class ToldByContent(Model):
    """Blocks are given a tensor made from what enters the first."""

    of_the_model = True

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.blocks = nn.ModuleList(_Told(inner) for inner in self.blocks)

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        scale: Any = x.mean(dim=(1, 2), keepdim=True).sigmoid()
        for block in self.blocks:
            x = block(x, scale=scale) if keep is None else block(x, keep, scale=scale)
        return x


@fault
class OrderByLength(Model):
    """Long texts run the blocks in reverse order."""

    of_the_model = True

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for block in self.blocks if x.shape[1] <= 16 else reversed(self.blocks):
            x = block(x) if keep is None else block(x, keep)
        return x


@fault
class BlockDropped(Model):
    """The second block is left out where texts are short."""

    of_the_model = True

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for block in self.blocks if x.shape[1] > 7 else self.blocks[:1]:
            x = block(x) if keep is None else block(x, keep)
        return x
