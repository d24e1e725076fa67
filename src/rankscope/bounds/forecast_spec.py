"""The outline of a random network, from its description."""

from rankscope.bounds.forecast import Outline
from rankscope.errors import ConfigError
from rankscope.network import INITS, VARIANTS, Spec


def outline_of(spec: Spec, *, tokens: int) -> tuple[Outline, tuple[str, ...]]:
    """What ``spec`` says about the covariance of tokens, and in words what a forecast has to leave out.

    >>> outline, notes = outline_of(Spec(layers=2, heads=2, dim=8, norm="layer"), tokens=16)
    >>> round(outline.attention_gain, 9), round(outline.logit_variance, 9), outline.has_skip, notes
    (1.0, 1.0, False, ())
    """
    if spec.mixer != "softmax":
        raise ConfigError(
            f"mixer={spec.mixer!r}: the covariance of tokens is known behind softmax attention; use mixer='softmax'"
        )
    init, dim, layers = INITS[spec.init], spec.dim, spec.layers
    narrow = (spec.key_heads or spec.heads) * spec.head_dim
    inner, outer = init.inner_gain(layers), init.outer_gain(layers)
    branch = init.branch_scale(layers)
    scale = (1.0 if branch is None else branch) ** 2
    lost = set(VARIANTS[spec.variant.removesuffix("-norm")])
    if scale == 0.0 and "skip" in lost:
        raise ConfigError(
            f"init={spec.init!r} starts branches at zero, and without skips nothing else is left; use another init"
        )
    if (init.values or spec.values) == "gaussian":
        values = init.std(dim, narrow) ** 2 * dim * init.std(dim, dim) ** 2 * dim
    else:
        values = 1.0
    queries = init.std(dim, dim) * init.std(dim, narrow) * dim * init.query_key_gain**2
    width = spec.mlp_width or 4 * dim
    wide, back = init.std(dim, width) ** 2 * dim, init.std(width, dim) ** 2 * width
    outline = Outline(
        layers=layers,
        dim=dim,
        tokens=tokens,
        attention_gain=values * (inner * outer) ** 2 * scale,
        logit_variance=queries**2,
        up_gain=wide * inner**2,
        gate_gain=wide if spec.gated else None,
        down_gain=back * outer**2 * scale,
        activation=spec.activation,
        placement=spec.placement,
        norm="none" if spec.variant.endswith("-norm") else spec.norm,
        eps={"layer": 1e-5, "rms": 1e-6}.get(spec.norm, 0.0),
        has_skip="skip" not in lost,
        has_mlp="mlp" not in lost,
        skip_scale=init.skip_scale(layers),
        same_channels=(init.values or spec.values) == "identity",
        mask=spec.mask,
        slope=_slope(spec.position),
    )
    return outline, _left_out(spec)


def _slope(position: str) -> float:
    kind, _, rest = position.partition(":")
    try:
        return float(rest) if kind == "alibi" else 0.0
    except ValueError:
        return 0.0


def _left_out(spec: Spec) -> tuple[str, ...]:
    if spec.position == "none" or _slope(spec.position):
        return ()
    return (f"positions in the logits ({spec.position}) are left out",)
