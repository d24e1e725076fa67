"""What printed bounds are made of on one text: constants of every block, and the one that the measurement implies."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.bounds.certificate import COMPOSITE, Certificate
from rankscope.bounds.enclosure import Enclosed
from rankscope.bounds.facts import Facts, LayerFacts
from rankscope.bounds.facts_attention import AttentionFacts
from rankscope.bounds.norm_rules import view
from rankscope.network import Context, Network, Norm, Part
from rankscope.split.run import in_float64
from rankscope.studies.certify_found import Line
from rankscope.studies.certify_printed import Printed


def explained(
    facts: Facts,
    certificate: Certificate,
    printed: Mapping[str, Printed],
    lines: list[Line],
    norms: list[list[float]],
    gamma: float,
) -> list[dict[str, Any]]:
    """One entry per block; ``norms`` are Lipschitz factors of its norms on this text.

    ``beta = max_h |W_QK|_1 |W_h|_{1,inf}`` and ``K = 4 gamma beta H lambda / sqrt(d_qk)`` as Dong, Cordonnier and
    Loukas (2021) define them, with ``lambda`` the Lipschitz factor of the block's MLPs: ``rho' <= K rho^3`` shrinks
    residuals below ``K^{-1/2}``. ``cubic`` is the K with which that would be an equality. K, its root, residuals and
    Theorem A's constant are natural logarithms.
    """
    logs = [float(layer.measured[COMPOSITE]) for layer in certificate.layers]
    return [
        {"layer": layer}
        | _attention(block.attentions, block, gamma)
        | {
            "residual": logs[layer - 1],
            "cubic": logs[layer] - 3 * logs[layer - 1] if math.isfinite(logs[layer - 1]) else None,
            "mlp": [float(one.l2.exp()) for one in block.mlps],
            "norm": norms[layer - 1],
            "shape": block.shape,
            "first_failing": _first(layer, printed, lines),
        }
        for layer, block in enumerate(facts.layers, start=1)
    ]


def _attention(found: tuple[AttentionFacts, ...], block: LayerFacts, gamma: float) -> dict[str, Any]:
    """Constants of the only attention of a block; of none where there are several."""
    if len(found) != 1:
        return {"heads": sum(one.heads for one in found)}
    one = found[0]
    told: dict[str, Any] = {"heads": one.heads, "d_qk": one.head_dim, "gamma": gamma}
    told["value_norms"] = _listed(one.value["spectral"])
    if one.beta is None or one.query_key is None or one.scale is None:
        return told
    scaled, slopes = float(one.beta), sum(float(mlp.composite) for mlp in block.mlps)
    constant = _log(4 * gamma * one.heads * scaled) + slopes
    spread = float((one.query_key["spectral"] * one.value["spectral"]).sum(dim=-1)) / 4
    return told | {
        "beta": scaled / abs(one.scale),
        "query_key_norms": [norm / abs(one.scale) for norm in _listed(one.query_key["spectral"])],
        "K": constant,
        "critical_radius": -constant / 2,
        "theorem_a": _log(spread) if _is_plain(one, block) else None,
    }


def _is_plain(one: AttentionFacts, block: LayerFacts) -> bool:
    """Whether Theorem A speaks of the block: attention alone, all keys read, nothing but content in the logits."""
    return block.shape == "attention" and not one.extras and one.mask.is_full


@torch.no_grad()
def norm_factors(network: Network, x: Tensor, context: Context) -> list[list[float]]:
    """For every block, by how much each of its norms enlarges distances of the tokens ``tokens dim`` at most.

    That is ``max |gain| / min_i s_i`` with ``s_i`` what token ``i`` is divided by.
    """
    found = []
    state = x.double()
    for block in map(in_float64, network.blocks):
        with _norm_inputs(block) as seen:
            state = block(state, context)
        found.append([_factor(norm, entered) for norm, entered in seen])
    return found


@contextmanager
def _norm_inputs(block: Part) -> Iterator[list[tuple[Norm, Tensor]]]:
    """What enters every norm of a block while it runs once, in order."""
    seen: list[tuple[Norm, Tensor]] = []

    def note(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(part, Norm):
            seen.append((part, inputs[0]))

    handles = [part.register_forward_pre_hook(note) for part in block.modules() if isinstance(part, Norm)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _factor(norm: Norm, x: Tensor) -> float:
    normed = view(norm, Enclosed(x=x, error=x.new_zeros(x.shape[:-1])))
    least = float(normed.range()[0])
    return float(normed.weight[1]) * math.exp(-least) if least > -math.inf else math.inf


def _first(layer: int, printed: Mapping[str, Printed], lines: list[Line]) -> str:
    """The first assumption of a printed bound that fails in the block, or else what the certificate lacked there."""
    failing = [one.failing[layer] for one in printed.values() if len(one.log_bounds) > layer]
    known = [words for words in failing if words]
    if known:
        return known[0][0]
    own = ((*line.no_lower, *line.no_upper) for line in lines if line.layer == layer)
    return next((failed[0] for failed in own if failed), "")


def _listed(values: Tensor) -> list[float]:
    return [float(value) for value in values.reshape(-1)]


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
