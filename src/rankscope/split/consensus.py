"""Order and rate predicted from what the network does near consensus, without running it on the tokens.

At consensus every map is what it is for equal tokens, and a small residual R obeys ``R -> sum_h P_h R W_h`` (with the
derivatives of norms and MLPs at the common row). If all heads share one map P, R falls by the second largest
eigenvalue modulus of P times what the value maps do to a row, and so does the common row but for the eigenvalue: their
quotient falls by the eigenvalue alone. That presumes that the common row goes through the value maps and nothing else.
A bias on the way holds it up while the residual falls (W = 1/2 and P causal: 1/4 per layer, not 1/2). There, and with
several maps, the linear map is followed, matrix-free, along the single common row.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rankscope.errors import NotUnderstood, NumericalError, ShapeError
from rankscope.findings.rate import Unpredicted
from rankscope.network import (
    Alibi,
    Attention,
    Chain,
    Context,
    Fixed,
    Mixer,
    Network,
    NoPosition,
    Norm,
    Part,
    QueryKey,
    RelativeBias,
    Scale,
    Softmax,
    Uniform,
    Values,
)
from rankscope.network.known import check_tree
from rankscope.network.masking import allowed_keys
from rankscope.network.parts import children, leaves
from rankscope.split.fit import fit_logs
from rankscope.split.maps import SPLIT
from rankscope.split.run import in_float64, stream_near
from rankscope.split.state import Split, normalized

Method = Literal["slem", "joint", "followed"]

TINY = -1e6
"""Log scale of the residual that is followed: its square is nothing beside it, so only the linear map is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What the map at consensus says; ``rate`` is None where nothing applies, and ``declined`` says why.

    ``uncertainty`` is one standard error of a rate that was followed, and half the width of what is certain about an
    eigenvalue. ``growth`` is the factor per layer of tokens that keep logits from vanishing, ``part`` the class of a
    part that has no rule.
    """

    order: float | None
    rate: float | None
    method: Method | None
    uncertainty: float | None = None
    declined: Unpredicted | None = None
    growth: float | None = None
    part: str = ""


def predict_rate(
    network: Network,
    common: Tensor,
    *,
    tokens: int,
    generator: torch.Generator,
    context: Context | None = None,
) -> Prediction:
    """Order and rate of collapse of ``network`` near ``tokens`` copies of the row ``common``."""
    network.check_length(tokens)
    try:
        context = Context() if context is None else context
        check_tree(SPLIT, network)
        shared = _shared_map(network, tokens, context)
        if shared is None:
            found = _by_following(network, common, tokens, generator, context)
        else:
            found = _by_eigenvalue(shared)
        return _if_logits_vanish(found, network, common, tokens, context)
    except NotUnderstood as error:
        name = type(error.part).__name__
        return Prediction(order=None, rate=None, method=None, declined="not known", part=name)
    except NumericalError:
        return Prediction(order=None, rate=None, method=None, declined="not known")


def _if_logits_vanish(
    found: Prediction, network: Network, common: Tensor, tokens: int, context: Context
) -> Prediction:
    """``found``, unless the tokens grow so fast that their logits stay apart although their residual ratio falls.

    Logits differ by about common row times residual, so without norms they change by ``rate * growth^2`` per layer.
    """
    if found.rate is None or found.rate == 1.0 or not _has_bare_logits(network):
        return found
    x = common.double().expand(tokens, -1)
    lengths = [x[0].norm()]
    for block in network.blocks:
        x = in_float64(block)(x, context)
        lengths.append(x[0].norm())
    logs = [float(length.log()) for length in lengths[len(lengths) // 2 :]]
    growth = math.exp((logs[-1] - logs[0]) / max(len(logs) - 1, 1))
    if not found.rate * growth**2 >= 1.0:
        return found
    return replace(found, rate=None, uncertainty=None, declined="growing tokens", growth=growth)


def _has_bare_logits(network: Network) -> bool:
    """Whether queries are made of tokens that no norm has brought to a fixed size."""
    held = [leaf for block in network.blocks for leaf in leaves(block)]
    mixers = [leaf.mixer for leaf in held if isinstance(leaf, Attention)]
    asking = [inner for mixer in mixers for inner in mixer.modules() if isinstance(inner, QueryKey)]
    bare = any(mixer.query_norm is None for mixer in asking)
    return bare and not any(isinstance(leaf, Norm) for leaf in held)


def _by_eigenvalue(shared: Tensor) -> Prediction:
    from rankscope.masks.spectrum import slem_bracket_of, slem_of  # here, not above: they import solvers

    second, certain = slem_of(shared.numpy()), slem_bracket_of(shared.numpy(), error=_map_error(shared))
    if bool((shared == shared[:1]).all()):
        return Prediction(order=3.0, rate=None, method="slem", declined="cubic")
    if second == 0.0:
        return Prediction(order=None, rate=0.0, method="slem", declined="nilpotent")
    if second >= 1.0:
        return Prediction(order=1.0, rate=1.0, method="slem", declined="apart")
    off = max(certain.high - second, second - certain.low, 0.0)
    return Prediction(order=1.0, rate=second, method="slem", uncertainty=off)


def _map_error(shared: Tensor) -> float:
    """Relative rounding of the weights of a softmax: that of its logits, at most their spread, and a few units."""
    weights = shared[shared > 0]
    spread = float((weights.max() / weights.min()).log())
    return (spread + shared.shape[-1] + 8) * torch.finfo(torch.float64).eps


def _by_following(
    network: Network, common: Tensor, tokens: int, generator: torch.Generator, context: Context
) -> Prediction:
    method: Method = "joint" if _is_linear(network) else "followed"
    residual = torch.randn(tokens, common.shape[-1], generator=generator, dtype=torch.float64)
    start = normalized(
        Split(common=common.double(), residual=residual, log_scale=torch.tensor(TINY, dtype=torch.float64))
    )
    logs, rows = [], []
    for state in stream_near(network, start, context):
        logs.append(float(state.log_scale))
        rows.append(float(state.common.norm().log()))
        if logs[-1] < 2 * TINY:
            return Prediction(order=3.0, rate=None, method=method, declined="cubic")
    fit = fit_logs(np.array(logs), np.array(rows))
    if fit.regime != "linear":
        return Prediction(order=None, rate=None, method=method, declined=fit.declined)
    return Prediction(order=1.0, rate=fit.rate, method=method, uncertainty=fit.uncertainty)


def factor_near(
    network: Network, common: Tensor, *, tokens: int, generator: torch.Generator
) -> tuple[float | None, float | None]:
    """Order 1 with the mean factor per block by which a small residual changes relative to the common row, or order 3.

    The factor is the geometric mean over the blocks there are, whether or not they have settled to a rate. Order and
    factor are None where some part has no map at consensus, or where its numbers leave the floats.
    """
    residual = torch.randn(tokens, common.shape[-1], generator=generator, dtype=torch.float64)
    start = normalized(
        Split(common=common.double(), residual=residual, log_scale=torch.tensor(TINY, dtype=torch.float64))
    )
    try:
        logs = list[float]()
        for state in stream_near(network, start, Context()):
            logs.append(float(state.log_scale) - float(state.common.norm().log()))
            if logs[-1] < 2 * TINY:
                return 3.0, None
    except (NotUnderstood, NumericalError, ShapeError):
        return None, None
    change = (logs[-1] - logs[0]) / max(len(logs) - 1, 1)
    return (1.0, math.exp(change)) if math.isfinite(change) else (None, None)


def _shared_map(network: Network, tokens: int, context: Context) -> Tensor | None:
    """The one map that all heads of all layers have at consensus; None where there is more than that to a layer."""
    shared: Tensor | None = None
    for block in network.blocks:
        part = _only_attention(block)
        if part is None or not is_constant(part.mixer) or _has_bias(part.values):
            return None
        maps = consensus_maps(part.mixer, tokens, context)
        if not bool((maps == maps[:1]).all()) or (shared is not None and not torch.equal(shared, maps[0])):
            return None
        shared = maps[0]
    return shared


def consensus_maps(mixer: Mixer, tokens: int, context: Context) -> Tensor:
    """Maps ``heads tokens tokens`` of a mixer for equal tokens, where they do not depend on the common row."""
    if not isinstance(mixer, Softmax):
        return mixer(torch.zeros(tokens, 1, dtype=torch.float64), context)
    at_rest = torch.zeros(mixer.heads, tokens, mixer.head_dim, dtype=torch.float64)
    bias = mixer.position.bias(at_rest, context, mixer.scale)
    logits = at_rest.new_zeros(mixer.heads, tokens, tokens) if bias is None else bias
    allowed = allowed_keys(mixer.rule, tokens, context, logits.device)
    return torch.softmax(logits if allowed is None else logits.masked_fill(~allowed, -torch.inf), dim=-1)


def _only_attention(block: Part) -> Attention | None:
    while isinstance(block, Chain) and len(block.parts) == 1:
        block = children(block)[0]
    return block if isinstance(block, Attention) else None


def is_constant(mixer: Mixer) -> bool:
    """Whether the map at consensus is the same whatever the common row."""
    if not isinstance(mixer, Softmax):
        return isinstance(mixer, Uniform | Fixed)
    return isinstance(mixer.position, NoPosition) or (
        isinstance(mixer.position, Alibi | RelativeBias) and mixer.softcap is None
    )


def _has_bias(values: Values) -> bool:
    """Whether something is added to the common row on its way through the value maps."""
    biases = (values.value_bias, values.out_bias)
    return any(bias is not None and bool(bias.any()) for bias in biases)


def _is_linear(network: Network) -> bool:
    """Whether nothing at consensus depends on the common row: constant maps, skips and scales alone, no biases."""
    held = [leaf for block in network.blocks for leaf in leaves(block)]
    return all(
        isinstance(leaf, Scale)
        or (isinstance(leaf, Attention) and is_constant(leaf.mixer) and not _has_bias(leaf.values))
        for leaf in held
    )
