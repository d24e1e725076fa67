"""A monitor runs its probe as training runs the model, and training does not notice: bits with and without it."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.tiny_training import assert_same_weights, states, tiny_encoder, tiny_gpt2, tokens

pytestmark = [
    pytest.mark.filterwarnings("ignore::rankscope.errors.AlarmWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]

Look = Callable[..., object]


def loss_of(model: nn.Module, step: int, part: int = 0) -> Tensor:
    return (model(states(seed=100 + step + 50 * part)) - 1).square().mean()


def autocast(model: nn.Module, look: Look) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        look(step, loss=loss)


def inside_autocast(model: nn.Module, look: Look) -> None:
    """The whole step is inside, the call of the monitor too."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            look(step, loss=loss)


def accumulated(model: nn.Module, look: Look) -> None:
    """The monitor is called between two gradients that are added up, which it must not lose."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(8):
        loss = loss_of(model, step)
        loss.backward()
        look(step, loss=loss)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def in_bfloat16(model: nn.Module, look: Look) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        loss = (model(states(seed=step).bfloat16()) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        look(step, loss=loss)


def with_accelerate(model: nn.Module, look: Look) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    for one in (AcceleratorState, PartialState):
        one._reset_state()
    made = Accelerator(cpu=True, mixed_precision="bf16")
    ready, optimizer = made.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    try:
        for step in range(4):
            loss = loss_of(ready, step)
            optimizer.zero_grad()
            made.backward(loss)
            optimizer.step()
            look(step, loss=loss)
    finally:
        for one in (AcceleratorState, PartialState):
            one._reset_state()


RUNS = {
    "autocast": (autocast, "bfloat16"),
    "inside autocast": (inside_autocast, "bfloat16"),
    "accumulated": (accumulated, "float32"),
    "bfloat16 weights": (in_bfloat16, "bfloat16"),
    "accelerate": (with_accelerate, "bfloat16"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_same_bit_for_bit_and_is_read_in_its_precision(name: str) -> None:
    run, dtype = RUNS[name]
    alone, watched = tiny_encoder(), tiny_encoder()
    if name == "bfloat16 weights":
        alone, watched = alone.bfloat16(), watched.bfloat16()
    torch.manual_seed(7)
    run(alone, lambda step, loss: None)
    left = torch.get_rng_state()
    probe = states().bfloat16() if name == "bfloat16 weights" else states()
    monitor = rs.watch(watched, probe, every=1)
    torch.manual_seed(7)
    run(watched, monitor.step)
    assert_same_weights(alone, watched)
    for one, other in zip(alone.parameters(), watched.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.equal(one.grad, other.grad)
    assert torch.equal(left, torch.get_rng_state())
    assert monitor.readings[-1].dtype == dtype
    assert "ratio" in monitor.readings[-1].signals
    plain = rs.watch(watched, probe, every=1, precision="weights")
    plain.step(99)
    own = dtype if name == "bfloat16 weights" else "float32"
    assert plain.readings[-1].dtype == own
    if own != dtype:  # rounding of the autocast is seen, and left out where that is asked for
        again = rs.watch(watched, probe, every=1, autocast=("cpu", torch.bfloat16))
        again.step(99)
        assert again.readings[-1].signals["ratio"] != plain.readings[-1].signals["ratio"]


def test_both_precisions_are_read_where_accelerate_casts() -> None:
    model = tiny_encoder()
    monitor = rs.watch(model, states(), every=1, precision="both")
    with_accelerate(model, monitor.step)
    signals = monitor.readings[-1].signals
    assert signals["ratio"] != signals["float32_ratio"]
    assert signals["ratio"]["blocks"] == pytest.approx(signals["float32_ratio"]["blocks"], rel=0.05)


def test_blocks_that_are_compiled_do_not_hide_the_autocast() -> None:
    model = tiny_encoder()
    for place, layer in enumerate(model.layers):
        model.layers[place] = torch.compile(layer, backend="eager")
    monitor = rs.watch(model, states(), every=1)
    autocast(model, monitor.step)
    assert monitor.readings[-1].dtype == "bfloat16"


def test_a_compiled_step_stays_one_graph() -> None:
    """The model is called inside of a compiled function: nothing of the monitor may stand in its graph."""
    graphs = []
    for is_watched in (False, True):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        model = tiny_encoder().eval()
        monitor = rs.watch(model, states(), every=1) if is_watched else None
        step = torch.compile(lambda x, model=model: model(x).square().mean(), backend="eager", fullgraph=True)
        for at in range(3):
            step(states(seed=at)).backward()
            if monitor is not None:
                monitor.step(at)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] == 1


def test_attention_has_the_kernel_of_training() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    seen: list[bool] = []

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = tiny_encoder()

        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.backends.cuda.flash_sdp_enabled())
            return self.encoder(x)

    model = Noting()
    monitor = rs.watch(model, states(), every=1)
    with sdpa_kernel(SDPBackend.MATH):
        model(states()).mean().backward()
    seen.clear()
    monitor.step(1)
    assert set(seen) == {False}
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("how", ["mean", "cls", "last", "max"])
def test_inputs_are_pooled_where_the_model_returns_tokens(how: str) -> None:
    model = tiny_gpt2()
    monitor = rs.watch(model, tokens(6), every=1, pooling=how)
    monitor.step(0)
    wanted = rs.scan(model.eval(), inputs=tokens(6), across="inputs", pooling=how).last
    units = wanted.measured.spread
    assert units is not None
    found = monitor.readings[0].signals["inputs_ratio"]["blocks"]
    with torch.no_grad():
        hidden = model.transformer(**tokens(6)).last_hidden_state.double()
    keep = tokens(6)["attention_mask"].bool()
    rows = {
        "mean": (hidden * keep[..., None]).sum(dim=1) / keep.sum(dim=1, keepdim=True),
        "cls": hidden[:, 0],
        "last": torch.stack([row[mask][-1] for row, mask in zip(hidden, keep, strict=True)]),
        "max": hidden.masked_fill(~keep[..., None], -torch.inf).amax(dim=1),
    }[how]
    units = nn.functional.normalize(rows, dim=-1)
    assert found == pytest.approx(float((units - units.mean(dim=0)).norm() / units.norm()), rel=1e-5)


# a notebook


def test_a_notebook_shows_a_picture_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Place:
        def update(self, html: str) -> None:
            shown.append(html)

    def display(html: str, *, display_id: bool) -> Place:
        assert display_id
        shown.append(html)
        return Place()

    module: Any = ModuleType("IPython.display")
    module.HTML, module.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rankscope.monitor.notebook.PAUSE", 0.0)
    model = tiny_encoder()
    monitor = rs.watch(model, states(), every=1, steps=300)
    monitor.step(0, loss=2.0)
    monitor._ipython_display_()
    for step in (1, 2):
        monitor.step(step, loss=1.0)
    assert len(shown) == 3
    assert "step 0 of 300" in shown[0]
    assert "step 2 of 300" in shown[-1]
    assert all("<svg" in one for one in shown)
    Place.update = lambda self, html: 1 / 0  # the reader has closed the notebook
    with pytest.warns(rs.errors.RankscopeWarning, match="cannot be drawn again"):
        monitor.step(3)
    monitor.step(4)
    assert len(monitor.readings) == 5
