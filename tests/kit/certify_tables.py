"""Certificates made of formulas, and the findings that ``rankscope certify`` makes of them; no network is run."""

import math

import torch

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.certificate import CERTIFIED, Certificate, LayerBounds
from rankscope.findings.certify import CertifiedBlock, CertifyConfig, Failed, Printed
from rankscope.findings.reading import TokensRead
from rankscope.network import Spec, build
from rankscope.studies import certify as study
from rankscope.studies.certify import OnText, TextCertificate, lines_of
from rankscope.studies.cuts import Cut
from rankscope.studies.subjects import About

DEFAULT_DEFINITIONS = ("residual[frobenius,mean]", "diameter[l2]", "residual[composite,mean]")
LOGITS = Failed(of="dong-2.3", name="logits below 1.256", found=3.25, limit=1.256)

HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e" + "model" * 30
METHODS = ("row sums", "stacked operator", "skip minus branch")
LOST = "branch below its skip"
GROWS = "the block contracts"


def number(value):
    return torch.tensor(float(value), dtype=torch.float64)


def layer_of(layer, lower, measured, upper, trivial, *, failed=(), no_upper=(), definitions=CERTIFIED):
    """One layer with the same numbers, shifted a little, in every definition."""
    shift = {name: 0.3 * place for place, name in enumerate(definitions)}

    def named(value):
        return {name: number(value + shift[name]) for name in definitions}

    gains = {name: number(-1.0) for name in definitions} if layer else {}
    return LayerBounds(
        layer=layer,
        lower=named(lower),
        measured=named(measured),
        measured_floor=named(measured - 25.0),  # ten digits below
        upper=named(upper),
        trivial=named(trivial),
        gain_lower=gains,
        gain_upper={name: value + 2 for name, value in gains.items()},
        lower_by={name: torch.tensor(2) for name in gains},
        upper_by={name: torch.tensor(1) for name in gains},
        methods=METHODS,
        no_lower=tuple(failed),
        no_upper=tuple(no_upper),
        error=number(1e-13 * 10**layer),
    )


def certificate_of(lowers, measured, uppers, trivials, failed=None, notes=(), no_upper=None):
    """Layers in order; ``failed`` and ``no_upper`` map a layer to what its lower and its upper bound lacked."""
    layers = [
        layer_of(
            place, *values, failed=(failed or {}).get(place, ()), no_upper=(no_upper or {}).get(place, ())
        )
        for place, values in enumerate(zip(lowers, measured, uppers, trivials, strict=True))
    ]
    return Certificate(layers=tuple(layers), notes=tuple(notes))


def lost(layer, value=1.7):
    return {layer: (Assumption.at_most(LOST, value, 1.0, says="the lower bound needs it"),)}


def collapsing(layers=4):
    """Attention alone: no lower bound, the upper one falls with the cube, the printed one explodes."""
    measured = [math.log(12.0)] + [2.0 - 0.9 * 3.0**layer for layer in range(1, layers + 1)]
    uppers = [measured[0]] + [value + 1.2**layer for layer, value in enumerate(measured) if layer]
    lowers = [measured[0]] + [-math.inf] * layers
    failed = {layer: lost(1, math.inf)[1] for layer in range(1, layers + 1)}
    return certificate_of(lowers, measured, uppers, [3.0] * (layers + 1), failed)


def standing_still(layers=4):
    """Attention with skips: a lower bound at every layer, an upper one that grows above the trivial."""
    measured = [2.5 + 0.1 * layer for layer in range(layers + 1)]
    lowers = [2.5 - 0.3 * layer for layer in range(layers + 1)]
    uppers = [2.5 + 0.5 * layer for layer in range(layers + 1)]
    return certificate_of(lowers, measured, uppers, [3.2] * (layers + 1))


def lost_midway(layers=6, until=3):
    """A transformer with norms: something up to a layer, nothing after."""
    measured = [2.5] * (layers + 1)
    lowers = [2.5 - 0.4 * layer if layer <= until else -math.inf for layer in range(layers + 1)]
    uppers = [2.5 + 0.9 * layer if layer <= until else math.inf for layer in range(layers + 1)]
    grows = {layer: (Assumption.at_most(GROWS, 2.5, 1.0),) for layer in range(1, layers + 1)}
    return certificate_of(lowers, measured, uppers, [3.0] * (layers + 1), lost(until + 1), no_upper=grows)


def printed_of(layers, base=2.0, failing_from=1, name="dong-2.3"):
    logs = tuple(base * (3.0**layer - 1) / 2 for layer in range(layers + 1))
    failing = tuple((LOGITS,) if layer >= failing_from else () for layer in range(layers + 1))
    stated = Printed(name=name, authors="Dong, Cordonnier, Loukas (2021)", where="Theorem 2.3")
    return {"residual[composite,mean]": OnText(name=name, log_bounds=logs, failing=failing, printed=stated)}


def explain_of(layers):
    return tuple(
        CertifiedBlock(
            layer=layer,
            heads=2,
            d_qk=8,
            beta=1.5 * layer,
            gamma=1.0,
            K=math.log(4.0 * layer),
            critical_radius=-0.5 * math.log(4.0 * layer),
            residual=2.0 - layer,
            residual_resolved=True,
            cubic=-1.0,
            cubic_resolved=layer < layers,
            value_norms=(0.5, 0.7 * layer),
            query_key_norms=(1.5, 1.5),
            theorem_a=math.log(0.3),
            shape="attention",
            first_failing=LOGITS,
        )
        for layer in range(1, layers + 1)
    )


def text_of(certificate, *, sample=0, model="random", printed=None, definitions=DEFAULT_DEFINITIONS, **more):
    layers = len(certificate.layers) - 1
    printed = printed_of(layers) if printed is None else printed
    about = {"model": model, "variant": "san", "mask": "full", "norm": "none"}
    return TextCertificate(
        about=about,
        seed=0,
        sample=sample,
        tokens=8,
        lines=lines_of(certificate, printed, definitions, (8, 64)),
        explain=explain_of(layers),
        printed=printed,
        **more,
    )


def finding_from(*certificates, model="random", definitions=DEFAULT_DEFINITIONS, warnings=(), **more):
    found = [
        text_of(one, sample=place, model=model, definitions=definitions, **more)
        for place, one in enumerate(certificates)
    ]
    about = About(
        model=model,
        family="random",
        kind="random",
        weights="random",
        parameters=1024,
        dtype="float64",
        read=TokensRead(inputs="Gaussian tokens", read="tokens"),
    )
    network = build(Spec(layers=1, heads=1, dim=2), torch.Generator().manual_seed(0))
    cut = Cut(network=network, variant="san", mask="full", norm="none", skip_scale=None)
    return study.finding_of(found, about, cut, CertifyConfig(definitions=definitions), list(warnings))


FINDINGS = {
    "collapsing": lambda: finding_from(collapsing()),
    "far": lambda: finding_from(collapsing(layers=9)),
    "standing": lambda: finding_from(standing_still()),
    "lost": lambda: finding_from(lost_midway()),
    "texts": lambda: finding_from(standing_still(), standing_still(), lost_midway(layers=4)),
    "one_layer": lambda: finding_from(collapsing(layers=1)),
}
