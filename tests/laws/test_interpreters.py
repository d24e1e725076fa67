"""Which interpreter understands which part, against a written table; subclasses are understood by none."""

import copy
from collections.abc import Callable
from pathlib import Path as FsPath

import pytest
import torch

from kit.trees import (
    DIM,
    MEMORY_DIM,
    WHERE,
    Draws,
    attention,
    cross,
    gated,
    mixer,
    mlp,
    norm,
    observed,
    opaque,
    position,
    sequence,
    value_residual,
    values,
)
from rankscope.bounds import certify, facts_of
from rankscope.bounds.apriori_layers import apriori
from rankscope.dynamics.system import repeat
from rankscope.errors import ConfigError, NotUnderstood
from rankscope.masks import parse_mask
from rankscope.mechanism import moves
from rankscope.network import (
    ACTIVATIONS,
    Activation,
    Attention,
    Chain,
    Context,
    CrossAttention,
    Fixed,
    GatedAttention,
    LayerNorm,
    Mlp,
    Network,
    NoPosition,
    Observed,
    Opaque,
    Part,
    Position,
    Scale,
    SeenBias,
    Segments,
    SequenceMap,
    Several,
    Skip,
    Softmax,
    Sphere,
    Sum,
    TokenMap,
    Uniform,
    ValueResidual,
    stages,
    with_mask,
    with_skip_scale,
    with_temperature,
    without,
)
from rankscope.network.known import HELD_MAPS, NORMS, PIECES
from rankscope.pathways import Path, counts_of, run_path, spectrum, top_paths, without_heads
from rankscope.split import Split, predict_rate, split_stages, split_states, split_tokens
from rankscope.split.rules import split_part

DRAW = Draws(0)
MAPS = torch.softmax(DRAW(2, 5, 5), dim=-1)
PARTS: dict[str, Part] = {
    "Chain": Chain([mlp(DRAW)]),
    "Sum": Sum([mlp(DRAW), norm("layer", DRAW)]),
    "Skip": Skip(mlp(DRAW)),
    "Scale": Scale(0.5),
    "Softmax": attention(DRAW),
    "SeenBias": attention(DRAW, place="seen"),
    "SeenOffsets": attention(DRAW, place="offsets"),
    "HeadFactors": attention(DRAW, place="factors"),
    "Several": attention(DRAW, place="several"),
    "Uniform": Attention(Uniform(heads=2), values(DRAW)),
    "Fixed": Attention(Fixed(MAPS), values(DRAW)),
    "Mlp": mlp(DRAW),
    "LayerNorm": norm("layer", DRAW),
    "RMSNorm": norm("rms", DRAW),
    "Sphere": norm("sphere", DRAW),
    "TokenMap": TokenMap(torch.nn.Tanh()),
    "Opaque": opaque(),
    "Observed": observed(DRAW),
    "CrossAttention": cross(DRAW),
    **{
        name: Attention(mixer(DRAW, known), values(DRAW))
        for name, known in {
            "SinkSoftmax": "sinks",
            "Sigmoid": "sigmoid",
            "Gaussian": "gaussian",
            "Entmax": "sparsemax",
            "Differential": "differential",
            "Linear": "linear",
            "LinearSums": "linear-sums",
            "Linformer": "linformer",
            "Retention": "retention",
            "HeadGate": "head-gate",
        }.items()
    },
    "GatedAttention": gated(DRAW),
    "ValueResidual": value_residual(DRAW),
    "SequenceMap": sequence(),
}
MEMORY = DRAW(5, MEMORY_DIM)
INTERPRETERS = {
    "forward": lambda net, x, context: net(x, context),
    "trace": lambda net, x, context: net.trace(x, context, sites=["attention", "mlp"], maps=True),
    "surgery": lambda net, x, context: without(without(without(net, "skip"), "mlp"), "norm")(x, context),
    "split": split_states,
    "stages": lambda net, x, context: stages(net.blocks[0], x, context),
    "paths": spectrum,
    "certify": certify,
    "theorems": facts_of,
    "mechanism": lambda net, x, context: list(moves(net, x, context)),
}
FOREIGN = ("Opaque", "Observed", "CrossAttention", "GatedAttention", "ValueResidual", "SequenceMap")
NOT_ONE = ("SinkSoftmax", "Sigmoid", "Differential", "LinearSums", "Linformer", "Retention", "HeadGate")
"""Mixers whose rows do not sum to one."""
SPLIT = ("SinkSoftmax", "Gaussian", "Differential", "Linear", "HeadGate")
"""Mixers beyond softmax that the split pass has a rule for."""
NOT_UNDERSTOOD = {("TokenMap", "split"), ("TokenMap", "paths"), ("TokenMap", "certify")} | {
    (part, interpreter)
    for part in (*FOREIGN, *NOT_ONE, "Gaussian", "Entmax", "Linear")
    for interpreter in ("split", "certify", "theorems")
    if (part, interpreter) not in {("Gaussian", "certify"), *((one, "split") for one in SPLIT)}
}


@pytest.mark.parametrize("interpreter", list(INTERPRETERS))
@pytest.mark.parametrize("part", list(PARTS))
def test_every_interpreter_knows_every_part_or_refuses_it_by_name(part: str, interpreter: str) -> None:
    net, x, context = Network([PARTS[part]]), DRAW(5, DIM), Context(memory=MEMORY)
    if (part, interpreter) in NOT_UNDERSTOOD:
        with pytest.raises(NotUnderstood, match=f"{interpreter} has no rule for the part {part}") as refused:
            INTERPRETERS[interpreter](net, x, context)
        assert WHY.get(part, "") in str(refused.value)
    else:
        INTERPRETERS[interpreter](net, x, context)


WHY = {
    "Opaque": f"; nothing is known inside it: a running mean at {WHERE}",
    "Observed": f"; its maps are known as they ran, their rule is not: a clamp at {WHERE}",
    "CrossAttention": "; at the site 'cross' it reads a memory",
    "GatedAttention": "; at the site 'attention' the tokens gate what they read, channel by channel",
    "ValueResidual": "; at the site 'attention' it mixes values of the first layer",
    "SequenceMap": "; it is a map of tokens to tokens of which nothing else is known: running_mean",
    **dict.fromkeys(NOT_ONE, "; rows of its maps do not sum to one, which the answer rests on"),
}
"""What is said besides the name: the line of the user, or what the part reads."""


def test_the_table_of_the_docs_says_the_same() -> None:
    page = (FsPath(__file__).parents[2] / "docs" / "parts.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in page.splitlines()
        if line[:1] == "|"
    ]
    header, _, *body = rows
    told = {
        (row[0].strip("`"), name): cell
        for row in body
        for name, cell in zip(header[1:], row[1:], strict=True)
    }
    asked = [name for name in INTERPRETERS if name != "trace"]
    assert {part for part, _ in told} == set(PARTS)
    assert set(header[1:]) == set(asked)
    for (part, name), cell in told.items():
        if name == "paths" and part in SOURCES:
            assert cell == SOURCES[part]
        else:
            assert cell == ("-" if (part, name) in NOT_UNDERSTOOD else "yes"), (part, name)


SOURCES = {"TokenMap": "mlps"} | dict.fromkeys(set(FOREIGN) - {"Observed"}, "source")


def test_the_context_is_optional_everywhere() -> None:
    net, x = Network([PARTS["Softmax"]]), DRAW(5, DIM)
    torch.testing.assert_close(net(x), net(x, Context()))


# ---------------------------------------------------------------------------------------------- subclasses

ASKING = {
    "surgery": lambda net, x: without(net, "skip"),
    "surgery of norms": lambda net, x: without(net, "norm"),
    "surgery of masks": lambda net, x: with_mask(net, parse_mask("causal")),
    "surgery of scales": lambda net, x: with_skip_scale(net, 0.5),
    "surgery of temperatures": lambda net, x: with_temperature(net, 2.0),
    "split": split_states,
    "split stages": lambda net, x: split_stages(net.blocks[0], split_tokens(x), Context()),
    "stages": lambda net, x: stages(net.blocks[0], x, Context()),
    "paths": lambda net, x: spectrum(net, x, mlps="source"),
    "paths, counted": lambda net, x: counts_of(net),
    "paths, ranked": lambda net, x: top_paths(net, x, count=1, mlps="source"),
    "paths, one": lambda net, x: run_path(net, x, Path((0,) * 9), mode="isolated"),
    "paths, cut": lambda net, x: without_heads(net, [(1, 0)]),
    "certify": certify,
    "theorems": facts_of,
    "a-priori bounds": lambda net, x: apriori(net),
    "mechanism": lambda net, x: list(moves(net, x, Context())),
}
"""Every question that is answered by rules about parts; running the parts themselves is right for any subclass."""

FOREIGN_CLASSES = (Opaque, CrossAttention, GatedAttention, ValueResidual, SequenceMap)
NOWHERE = ("OddTokenMap", *(f"Odd{one.__name__}" for one in (*FOREIGN_CLASSES, *HELD_MAPS)))


def odd(thing):
    """The same thing as a subclass that might do anything."""
    if type(thing) is Activation:
        made = type("OddActivation", (Activation,), {})
        return made("odd", "h", thing.fn, thing.slope, thing.secant)
    thing.__class__ = type(f"Odd{type(thing).__name__}", (type(thing),), {})
    return thing


def relu_with(activation: Activation) -> Mlp:
    part = mlp(DRAW)
    part.activation = activation
    return part


def softmax_with(**given: object) -> Attention:
    weights = [DRAW(DIM, DIM) for _ in range(2)]
    return Attention(Softmax(*weights, heads=2, **given), values(DRAW))


def odd_mixer(name: str) -> Attention:
    part = copy.deepcopy(PARTS[name])
    assert isinstance(part, Attention)
    odd(part.mixer)
    return part


def odd_values() -> Attention:
    return Attention(Uniform(heads=2), odd(values(DRAW)))


ODD: dict[str, Callable[[], Part]] = {
    **{
        f"Odd{one.__name__}": lambda name=one.__name__: odd_mixer(name)
        for one in HELD_MAPS
        if one is not Observed
    },
    "OddGatedAttention": lambda: odd(gated(DRAW)),
    "OddValueResidual": lambda: odd(value_residual(DRAW)),
    "OddSequenceMap": lambda: odd(sequence()),
    "OddChain": lambda: odd(Chain([attention(DRAW)])),
    "OddSum": lambda: odd(Sum([attention(DRAW)])),
    "OddSkip": lambda: odd(Skip(attention(DRAW))),
    "OddScale": lambda: odd(Scale(0.5)),
    "OddAttention": lambda: odd(attention(DRAW)),
    "OddMlp": lambda: odd(mlp(DRAW)),
    "OddTokenMap": lambda: odd(TokenMap(torch.nn.Tanh())),
    "OddOpaque": lambda: odd(opaque()),
    "OddCrossAttention": lambda: odd(cross(DRAW)),
    "OddObserved": lambda: Attention(odd(observed(DRAW).mixer), values(DRAW)),
    "OddLayerNorm": lambda: odd(norm("layer", DRAW)),
    "OddRMSNorm": lambda: odd(norm("rms", DRAW)),
    "OddSphere": lambda: odd(norm("sphere", DRAW)),
    "OddValues": odd_values,
    "OddSoftmax": lambda: Attention(odd(softmax_with().mixer), values(DRAW)),
    "OddUniform": lambda: Attention(odd(Uniform(heads=2)), values(DRAW)),
    "OddFixed": lambda: Attention(odd(Fixed(MAPS)), values(DRAW)),
    "OddNoPosition": lambda: softmax_with(position=odd(NoPosition())),
    "OddRotary": lambda: softmax_with(position=odd(position("rotary", DRAW))),
    "OddAlibi": lambda: softmax_with(position=odd(position("alibi", DRAW))),
    "OddRelativeBias": lambda: softmax_with(position=odd(position("relative", DRAW))),
    "OddTransformerXL": lambda: softmax_with(position=odd(position("transformer-xl", DRAW))),
    "OddSeenBias": lambda: softmax_with(position=odd(SeenBias(DRAW(2, 5, 5)))),
    "OddSeenOffsets": lambda: softmax_with(position=odd(position("offsets", DRAW))),
    "OddHeadFactors": lambda: softmax_with(position=odd(position("factors", DRAW))),
    "OddSeveral": lambda: softmax_with(position=odd(position("several", DRAW))),
    "OddSegments": lambda: softmax_with(position=odd(segments(NoPosition()))),
    "OddActivation": lambda: relu_with(odd(ACTIVATIONS["relu"])),
}
INSIDE: dict[str, Callable[[], Part]] = {
    "OddLayerNorm": lambda: softmax_with(query_norm=odd(LayerNorm(eps=1e-5))),
    "OddSphere": lambda: softmax_with(key_norm=odd(Sphere())),
    "OddAlibi": lambda: softmax_with(position=segments(odd(position("alibi", DRAW)))),
    "OddRotary": lambda: softmax_with(position=Several([odd(position("rotary", DRAW))])),
    "OddSkip": lambda: Chain([norm("layer", DRAW), Sum([Skip(odd(Skip(attention(DRAW)))), mlp(DRAW)])]),
}


def segments(inner: Position) -> Segments:
    return Segments(inner, DRAW(2, 2, DIM // 2), DRAW(2, DIM // 2))


def test_every_class_of_the_tree_has_an_odd_subclass_here() -> None:
    classes = {*PIECES, *NORMS, Chain, Sum, Skip, Scale, Attention, Mlp, TokenMap}
    classes |= {*FOREIGN_CLASSES, *HELD_MAPS}
    assert {f"Odd{one.__name__}" for one in classes} == set(ODD)


@pytest.mark.parametrize("name", list(ODD))
def test_a_subclass_does_not_inherit_the_rule_of_its_parent(name: str) -> None:
    x = DRAW(5, DIM)
    net = Network([ODD[name]()])
    assert net(x, Context(memory=MEMORY)).shape == x.shape, "its own code runs all the same"
    for ask in ASKING.values():
        with pytest.raises(NotUnderstood, match=f"has no rule for the part {name}") as refused:
            ask(net, x)
        if name not in NOWHERE:  # whose parent has no rule either, in some
            assert "whose rule need not hold for it; register a rule of its own" in str(refused.value)


@pytest.mark.parametrize("question", list(ASKING))
@pytest.mark.parametrize("name", list(INSIDE))
def test_nor_does_it_where_it_is_hidden_inside(name: str, question: str) -> None:
    with pytest.raises(NotUnderstood, match=f"has no rule for the part {name}; "):
        ASKING[question](Network([INSIDE[name]()]), DRAW(5, DIM))


@pytest.mark.parametrize("question", list(ASKING))
def test_nor_does_a_part_whose_method_was_replaced(question: str) -> None:
    part = Skip(attention(DRAW))
    part.forward = part.inner.forward  # type: ignore[method-assign]
    with pytest.raises(NotUnderstood, match="no rule for the part Skip; its method forward was replaced"):
        ASKING[question](Network([part]), DRAW(5, DIM))


def test_a_rate_is_not_predicted_by_the_rule_of_a_parent() -> None:
    net = Network([ODD["OddSoftmax"]()])
    found = predict_rate(net, DRAW(DIM), tokens=4, generator=torch.Generator().manual_seed(0))
    assert found.rate is None
    assert found.order is None
    assert (found.declined, found.part) == ("not known", "OddSoftmax")


def test_a_subclass_of_the_sphere_is_not_known_to_end_on_it() -> None:
    assert repeat(Chain([attention(DRAW), Sphere()])).is_on_sphere
    assert not repeat(Chain([attention(DRAW), odd(Sphere())])).is_on_sphere


class Halved(Skip):
    """What the law is about: ``x / 2 + inner(x)``, in the words of a user."""

    def forward(self, x, context):
        return x / 2 + self.inner(x, context)


def test_a_subclass_with_a_rule_of_its_own_is_understood() -> None:
    net, x = Network([Halved(attention(DRAW))]), DRAW(5, DIM)
    with pytest.raises(NotUnderstood):
        split_states(net, x)

    @split_part.register(Halved)
    def rule(part: Halved, state: Split, context: Context) -> Split:
        return split_part(Skip(part.inner, 0.5), state, context)

    try:
        torch.testing.assert_close(split_states(net, x)[-1].tokens(), net(x))
        with pytest.raises(NotUnderstood):
            certify(net, x)
    finally:
        split_part.forget(Halved)


def test_no_activation_takes_the_name_of_another() -> None:
    with pytest.raises(ConfigError, match="an activation called relu exists"):
        Activation("relu", "h", torch.tanh, torch.ones_like, torch.ones_like)
