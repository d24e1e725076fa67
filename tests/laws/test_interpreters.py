"""Which interpreter understands which part, against a written table."""

import pytest
import torch

from rankscope.bounds import certify
from rankscope.errors import NotUnderstood
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    Network,
    Part,
    Scale,
    Skip,
    Sum,
    TokenMap,
    Uniform,
    stages,
    without,
)
from rankscope.paths import spectrum
from rankscope.split import split_states
from trees import DIM, Draws, attention, mlp, norm, values

DRAW = Draws(0)
MAPS = torch.softmax(DRAW(2, 5, 5), dim=-1)
PARTS: dict[str, Part] = {
    "Chain": Chain([mlp(DRAW)]),
    "Sum": Sum([mlp(DRAW), norm("layer", DRAW)]),
    "Skip": Skip(mlp(DRAW)),
    "Scale": Scale(0.5),
    "Softmax": attention(DRAW),
    "Uniform": Attention(Uniform(heads=2), values(DRAW)),
    "Fixed": Attention(Fixed(MAPS), values(DRAW)),
    "Mlp": mlp(DRAW),
    "LayerNorm": norm("layer", DRAW),
    "RMSNorm": norm("rms", DRAW),
    "Sphere": norm("sphere", DRAW),
    "TokenMap": TokenMap(torch.nn.Tanh()),
}
INTERPRETERS = {
    "forward": lambda net, x: net(x),
    "trace": lambda net, x: net.trace(x, sites=["attention", "mlp"], maps=True),
    "surgery": lambda net, x: without(without(without(net, "skip"), "mlp"), "norm")(x),
    "split": split_states,
    "stages": lambda net, x: stages(net.blocks[0], x, Context()),
    "paths": spectrum,
    "certify": certify,
}
NOT_UNDERSTOOD = {("TokenMap", "split"), ("TokenMap", "paths"), ("TokenMap", "certify")}


@pytest.mark.parametrize("interpreter", list(INTERPRETERS))
@pytest.mark.parametrize("part", list(PARTS))
def test_every_interpreter_knows_every_part_or_refuses_it_by_name(part: str, interpreter: str) -> None:
    net, x = Network([PARTS[part]]), DRAW(5, DIM)
    if (part, interpreter) in NOT_UNDERSTOOD:
        with pytest.raises(NotUnderstood, match=f"{interpreter} has no rule for the part {part}"):
            INTERPRETERS[interpreter](net, x)
    else:
        INTERPRETERS[interpreter](net, x)


def test_the_context_is_optional_everywhere() -> None:
    net, x = Network([PARTS["Softmax"]]), DRAW(5, DIM)
    torch.testing.assert_close(net(x), net(x, Context()))
