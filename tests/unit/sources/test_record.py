"""The user's own calls of a model: what is kept of them, what is left as it was, what is refused."""

import contextlib
import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.handwritten import Gpt, Nested, causal, ids
from rankscope.errors import ConfigError, ModelError, RankscopeError

RATIO = "residual_ratio[frobenius,mean]"


@pytest.fixture(scope="module")
def gpt() -> Gpt:
    torch.manual_seed(0)
    return Gpt()


def states(model: Gpt, *args: Any, **kwargs: Any) -> list[Tensor]:
    """What the blocks of a model put out on one call, at rest, in three lines of torch."""
    found: list[Tensor] = []
    handles = [block.register_forward_hook(lambda _, __, out: found.append(out)) for block in model.blocks]
    with torch.no_grad():
        model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    return found


def ratios(x: Tensor) -> Tensor:
    return (x - x.mean(dim=1, keepdim=True)).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)


def measured(found: rs.ScanFinding, layer: int) -> Tensor:
    rows = found.table.frame.filter(
        (found.table.frame["layer"] == layer)
        & (found.table.frame["site"] == "block")
        & (found.table.frame["definition"] == RATIO)
    ).sort("sample")
    return torch.tensor(rows["value"].to_list())


def about(found: rs.ScanFinding) -> dict[str, Any]:
    return dict(found.table.sections["scan"])


def test_calls_of_any_size_are_scanned_as_they_were_made(gpt: Gpt) -> None:
    gpt.eval()
    calls = [(ids(3, 7), causal(7)), (ids(1, 9, 1), causal(9)), (ids(4, 4, 2), causal(4))]
    with rs.record(gpt) as seen:
        for tokens, mask in calls:
            gpt(tokens, mask=mask, flag=True)
    found = rs.scan(seen, spectra=False)
    assert len(seen) == 3
    assert about(found)["inputs"] == "3 recorded calls"
    expected = [states(gpt, tokens, mask=mask) for tokens, mask in calls]
    for layer in (1, 2):
        wanted = torch.cat([ratios(one[layer - 1]) for one in expected])
        torch.testing.assert_close(measured(found, layer), wanted, rtol=1e-6, atol=1e-6)
    without = rs.scan(gpt, inputs=calls[0][0], spectra=False)
    assert not torch.allclose(measured(without, 2), measured(found, 2)[:3], rtol=1e-4)  # the mask counts


def test_flags_texts_and_nested_arguments_pass_whole() -> None:
    torch.manual_seed(1)
    model = Nested().eval()
    batch = {"tokens": ids(3, 6), "more": {"mask": causal(6)}, "name": "one"}
    with rs.record(model) as seen:
        model(batch)
    one = rs.scan(seen, spectra=False)
    other = rs.scan(model, inputs=batch, spectra=False)  # no name of its own: the dict is the one argument
    plain = rs.scan(model.inner, call=lambda m: m(ids(3, 6), mask=causal(6)), spectra=False)
    for layer in (1, 2):
        assert torch.equal(measured(one, layer), measured(other, layer))
        assert torch.equal(measured(one, layer), measured(plain, layer))
    assert any(
        "the dict was passed as the one argument of Nested" in note for note in about(other)["warnings"]
    )


def test_a_step_of_training_is_left_as_it_was() -> None:
    def step(model: Gpt, *, recorded: bool) -> tuple[Tensor, list[Tensor], Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        tokens = ids(4, 6)
        if recorded:
            with rs.record(model) as seen:
                loss = model(tokens, tokens, mask=causal(6))[1]
                loss.backward()
            rs.scan(seen, spectra=False)
        else:
            loss = model(tokens, tokens, mask=causal(6))[1]
            loss.backward()
        return loss.detach(), [p.grad.clone() for p in model.parameters()], torch.rand(3)

    torch.manual_seed(0)
    model = Gpt().train()
    model.blocks[0].eval()  # asleep on purpose
    fired: list[int] = []
    model.blocks[1].register_forward_hook(lambda *_: fired.append(1))
    fast = torch.backends.mha.get_fastpath_enabled()
    plain, seen = step(model, recorded=False), step(model, recorded=True)
    assert torch.equal(plain[0], seen[0])
    assert torch.equal(plain[2], seen[2])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], seen[1], strict=True))
    assert model.training
    assert not model.blocks[0].training
    assert model.blocks[1].training
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled() == fast
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    assert sum(map(sum, hooks)) == 1
    assert len(fired) >= 2
    model(ids(2, 5), ids(2, 5))[1].backward()  # nothing of the recording is in the way


def test_a_call_of_a_function_leaves_gradients_and_modes() -> None:
    model = Gpt().train()
    model(ids(2, 5), ids(2, 5))[1].backward()
    before = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()

    def call(m: nn.Module) -> None:
        assert not m.training
        m(ids(2, 6), ids(2, 6))[1].backward()

    rs.scan(model, call=call, spectra=False)
    assert all(torch.equal(p.grad, old) for p, old in zip(model.parameters(), before, strict=True))
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_recorded_in_inference_mode_still_has_gradients(gpt: Gpt) -> None:
    gpt.eval()
    with torch.inference_mode(), rs.record(gpt) as seen:
        gpt(ids(2, 6), mask=causal(6))
    assert not any(value.is_inference() for value in seen.batches[0].inputs.values())
    gpt(seen.batches[0].inputs[""], ids(2, 6))[1].backward()


def test_inputs_are_kept_from_what_the_model_and_its_caller_write() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
            )

        def forward(self, x: Tensor) -> Tensor:
            x += 1.0
            return self.inner(x)

    torch.manual_seed(0)
    model, x = Writes().eval(), torch.randn(3, 5, 8)
    with rs.record(model) as seen, torch.no_grad():
        model(given := x.clone())
    assert torch.equal(seen.batches[0].inputs[""], x)
    assert not torch.equal(given, x)
    given.zero_()
    assert seen.notes == (
        "the model writes into its input (first); it is run on copies of what it was given",
    )
    first, second = rs.scan(seen, spectra=False), rs.scan(model.inner, inputs=x + 1.0, spectra=False)
    assert torch.equal(measured(first, 2), measured(second, 2))
    assert torch.equal(seen.batches[0].inputs[""], x)


def test_one_tensor_in_two_places_stays_one() -> None:
    class Compares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Gpt()

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            return self.inner(source)[0] * (1.0 if source is target else float("nan"))

    model, tokens = Compares().eval(), ids(2, 6)
    with rs.record(model) as seen:
        model(tokens, tokens)
    args, kwargs = seen.batches[0].arguments()
    assert model(*args, **kwargs).isfinite().all()
    with rs.record(model) as seen:
        model(tokens, tokens.clone())
    args, kwargs = seen.batches[0].arguments()
    assert model(*args, **kwargs).isnan().all()


def test_generate_is_its_first_full_pass() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=30, n_embd=8, n_layer=2, n_head=2, n_positions=32, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    tokens = ids(2, 7)
    with rs.record(model) as seen:
        model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=5, do_sample=False)
    assert len(seen) == 1
    assert seen.notes == ("4 of 5 calls go on from a cache (past_key_values); the first full pass is used",)
    found, plain = rs.scan(seen, spectra=False), rs.scan(model, inputs=tokens, spectra=False)
    assert torch.equal(measured(found, 2), measured(plain, 2))
    assert seen.notes[0] in about(found)["warnings"]
    assert torch.equal(
        measured(rs.scan(seen, spectra=False), 2), measured(found, 2)
    )  # nothing is left behind


def test_an_argument_by_place_or_by_name_is_the_same(gpt: Gpt) -> None:
    gpt.eval()
    with rs.record(gpt) as seen:
        gpt(ids(2, 5), mask=causal(5))
        gpt(idx=ids(1, 6), mask=causal(6))
    assert about(rs.scan(seen, spectra=False))["texts"] == 3


def test_a_model_may_be_called_with_texts_and_modules() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Gpt()

        def forward(self, texts: list[str], norm: nn.Module, log: list[str]) -> Tensor:
            log.append("once")
            assert len(log) == 1  # every call has a list of its own
            assert norm is last
            return norm(self.inner(torch.tensor([[ord(letter) % 30 for letter in one] for one in texts]))[0])

    model, last = Reads().eval(), nn.Identity()
    found = rs.scan(model, call=lambda m: m(["hello", "world", "tests"], last, []), spectra=False)
    assert about(found)["texts"] == 3
    assert about(found)["special rule"].startswith("texts are the first axis of the states")


def test_texts_that_grow_are_one_call_each(gpt: Gpt) -> None:
    gpt.eval()
    with rs.record(gpt) as seen:
        gpt.grow(ids(2, 4), 3)
    assert [one.inputs[""].shape[1] for one in seen.batches] == [4, 5, 6]
    assert about(rs.scan(seen, spectra=False))["texts"] == 6


def test_steps_on_one_token_go_on_from_a_state_inside_the_model() -> None:
    class Keeps(Gpt):
        """Keeps its own past, as first versions of Llama did."""

        def forward(self, idx: Tensor, start: int) -> Any:  # type: ignore[override]
            self.past = idx if start == 0 else torch.cat([self.past[:, :start], idx], dim=1)
            return super().forward(self.past)

    torch.manual_seed(0)
    model = Keeps().eval()
    with rs.record(model) as seen:
        model(ids(3, 6), 0)
        for step in range(2):
            model(ids(3, 1), 6 + step)
    found = rs.scan(seen, spectra=False)
    assert about(found)["texts"] == 3
    assert any("2 calls on one token go on from earlier ones" in one for one in about(found)["warnings"])
    with rs.record(model) as seen:  # the last batch of an epoch may be one text: that is no such step
        model(ids(3, 6), 0)
        model(ids(1, 6), 0)
    assert about(rs.scan(seen, spectra=False))["texts"] == 4


def test_wrappers_are_looked_through_and_named(gpt: Gpt) -> None:
    gpt.eval()
    plain = rs.scan(gpt, inputs=ids(2, 6), spectra=False)
    compiled = torch.compile(gpt, backend="eager")
    for wrapped in (nn.DataParallel(gpt), compiled, _Peft(gpt)):
        words = f"the Gpt inside of {type(wrapped).__name__} is used"
        with rs.record(wrapped) as seen:
            wrapped(ids(2, 6))
        assert seen.model is gpt
        assert seen.notes == (words,)
        for found in (
            rs.scan(seen, spectra=False),
            rs.scan(wrapped, inputs=ids(2, 6), spectra=False),
            rs.scan(wrapped, call=lambda m: m(ids(2, 6)), spectra=False),
        ):
            assert torch.equal(measured(found, 2), measured(plain, 2))
            assert about(found)["warnings"].count(words) == 1


class _Peft(nn.Module):
    """Wraps a model as adapters of the library peft do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model
        self.peft_config = {"default": None}

    def get_base_model(self) -> nn.Module:
        return self.base_model.model  # type: ignore[return-value]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.get_base_model()(*args, **kwargs)


def test_code_compiled_in_place_is_recorded_and_left_compiled() -> None:
    torch.manual_seed(0)
    model = Gpt().eval()
    model.compile(backend="eager")
    before = model(ids(2, 6))[0]
    with rs.record(model) as seen:
        model(ids(2, 6))
    assert len(seen) == 1
    torch.testing.assert_close(model(ids(2, 6))[0], before)
    assert model._compiled_call_impl is not None


def test_autocast_is_part_of_a_call(gpt: Gpt) -> None:
    gpt.eval()
    with rs.record(gpt) as seen, torch.autocast("cpu", dtype=torch.bfloat16):
        gpt(ids(3, 6), mask=causal(6))
    assert not torch.is_autocast_enabled("cpu")
    assert seen.notes == (
        "recorded under autocast to bfloat16: a scan runs under it too, a tree is compared without it",
    )
    found = rs.scan(seen, spectra=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = ratios(states(gpt, ids(3, 6), mask=causal(6))[-1].double())
    torch.testing.assert_close(measured(found, 2), expected.float(), rtol=1e-3, atol=1e-3)
    plain = rs.scan(gpt, call=lambda m: m(ids(3, 6), mask=causal(6)), spectra=False)
    assert not torch.equal(measured(plain, 2), measured(found, 2))
    floors = [about_floor(one) for one in (found, plain)]
    assert floors[0] > 1000 * floors[1]  # numbers of bfloat16 are judged by its rounding


def about_floor(found: rs.ScanFinding) -> float:
    rows = found.table.frame.filter(
        (found.table.frame["definition"] == RATIO) & (found.table.frame["layer"] == 2)
    )
    return float(rows["floor"].min())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: None, "Gpt was never called while it was recorded; call it inside"),
        (lambda m: copy.deepcopy(m)(ids(2, 5)), "record the same object that is called"),
        (lambda m: m.blocks[1](torch.randn(2, 3, 8)), "but its part 'blocks.1' was"),
        (lambda m: m.forward(ids(2, 5)), "by a method such as forward; call the model"),
        (
            lambda m: m(ids(2, 5).float()),
            "the function that was given to run the model, failed with RuntimeError",
        ),
        (lambda m: m(), "the function that was given to run the model, failed with TypeError"),
        (lambda m: m(ids(2, 1)), "the blocks see one token of each text"),
        (lambda m: m(ids(2, 5)[:0]), "no text was given"),
        (
            lambda m: (m(ids(2, 5)), m(ids(2, 5), mask=causal(5))),
            r"is called with \(idx: 2 axes\) and in call 2 with \(idx: 2 axes, mask: 2 axes\)",
        ),
    ],
)
def test_calls_that_cannot_be_used_are_one_line(gpt: Gpt, call: Any, words: str) -> None:
    gpt.eval()
    with pytest.raises(RankscopeError, match=words) as caught:
        rs.scan(gpt, call=call)
    assert "\n" not in str(caught.value)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in gpt.modules())


class _Around(nn.Module):
    """A module as trainers have it: a network inside, a loss, and steps in place of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = Gpt(), nn.MSELoss()

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        found = self.net(batch)[0]
        return self.loss(found, torch.zeros_like(found))


def test_a_step_that_calls_the_network_inside_records_that() -> None:
    model = _Around().eval()
    with rs.record(model) as seen:
        model.training_step(ids(3, 6), 0)
    assert seen.model is model.net
    assert seen.notes == ("_Around itself was not called; its part 'net' was, and is recorded",)
    truth = states(model.net, ids(3, 6))
    torch.testing.assert_close(measured(rs.scan(seen, spectra=False), 2), ratios(truth[1]), rtol=1e-6, atol=0)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_axes_that_change_from_call_to_call_are_refused() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    with pytest.raises(ConfigError, match=r"\(src: 3 axes\) and in call 2 with \(src: 2 axes\)"):
        rs.scan(model, call=lambda m: (m(torch.randn(2, 5, 8)), m(torch.randn(5, 8))))


def test_an_output_without_a_tensor_is_refused() -> None:
    class Silent(Gpt):
        def forward(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            super().forward(*args, **kwargs)
            return {"loss": 0.5}

    model = Silent().eval()
    with pytest.raises(ConfigError, match="Silent returned a dict without any tensor"), rs.record(model):
        model(ids(2, 5))


def test_an_error_of_the_users_own_stays_his(gpt: Gpt) -> None:
    def fails() -> None:
        gpt(ids(2, 5))
        _ = 1 / 0

    def swallows() -> None:
        with contextlib.suppress(IndexError):
            gpt(ids(2, 5) + 100)

    with pytest.raises(ZeroDivisionError), rs.record(gpt) as seen:
        fails()
    with pytest.raises(ConfigError, match="ended in an error"):
        rs.scan(seen)
    with pytest.raises(ModelError, match="Gpt failed while it was recorded with IndexError"), rs.record(gpt):
        swallows()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in gpt.modules())


def test_a_recording_is_used_after_its_block_and_alone(gpt: Gpt) -> None:
    gpt.eval()
    with rs.record(gpt) as seen:
        gpt(ids(2, 5))
        with pytest.raises(ConfigError, match="still being recorded"):
            rs.scan(seen)
    with pytest.raises(ConfigError, match="brings its own inputs; leave out inputs"):
        rs.scan(seen, inputs=ids(2, 5))
    with pytest.raises(ConfigError, match="another model"):
        rs.scan(Gpt(), inputs=seen)
    assert repr(seen) == "Seen(Gpt: 1 call)"


@pytest.mark.parametrize("verb", [rs.scan, rs.ablate, rs.paths, rs.certify, rs.rate, rs.record, rs.translate])
def test_what_is_no_model_is_named_with_what_to_give(verb: Any) -> None:
    def build() -> Gpt:
        return Gpt()

    no_model = "the function build is no model; pass the module itself"
    for wrong, words in (
        (Gpt, "Gpt is a class, not a model; make one and pass it"),
        (build, "build takes no tokens; a layer is a function of a tensor" if verb is rs.rate else no_model),
        (Gpt().state_dict(), "a state dict holds weights and not the model"),
        (3, "an int is no model"),
    ):
        with pytest.raises(ConfigError, match=words):
            verb(wrong).__enter__() if verb is rs.record else verb(wrong)


def test_models_that_cannot_run_are_one_line(gpt: Gpt) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    for verb in (rs.scan, rs.ablate, rs.certify, rs.translate):
        with pytest.raises(RankscopeError, match="is TorchScript, whose parts call no hooks"):
            verb(traced)
    with pytest.raises(RankscopeError, match="is TorchScript, whose parts call no hooks"), rs.record(traced):
        pass
    with torch.device("meta"):
        empty = Gpt()
    with pytest.raises(ConfigError, match="device meta"), rs.record(empty):
        pass

    class FullyShardedDataParallel(nn.Linear):
        pass

    sharded = nn.Sequential(FullyShardedDataParallel(2, 2))
    with pytest.raises(ConfigError, match="sharded over processes"), rs.record(sharded):
        pass


def test_more_calls_than_are_kept_are_counted(gpt: Gpt) -> None:
    gpt.eval()
    with rs.record(gpt, most=2) as seen:
        for number in range(4):
            gpt(ids(2, 5 + number))
    assert len(seen) == 2
    assert seen.notes == ("the first 2 of 4 calls are used",)


def test_quantised_weights_are_scanned_and_their_tree_is_refused() -> None:
    class Coarse(nn.Module):
        def __init__(self, whole: nn.Linear) -> None:
            super().__init__()
            self.step = nn.Parameter(whole.weight.abs().max() / 127, requires_grad=False)
            numbers = (whole.weight / self.step).round().to(torch.int8)
            self.weight, self.bias = nn.Parameter(numbers, requires_grad=False), whole.bias

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight.to(x.dtype) * self.step, self.bias)

    def dynamic(model: Gpt) -> nn.Module | None:
        if torch.backends.quantized.engine == "none":
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})

    torch.manual_seed(0)
    model = Gpt().eval()
    exact = measured(rs.scan(model, inputs=ids(3, 6), spectra=False), 2)
    packed = dynamic(model)
    for block in model.blocks:
        block.qkv, block.mlp[0] = Coarse(block.qkv), Coarse(block.mlp[0])
    for coarse in (model, packed) if packed is not None else (model,):
        with rs.record(coarse) as seen:
            coarse(ids(3, 6))
        found = rs.scan(seen, spectra=False)
        torch.testing.assert_close(measured(found, 2), exact, rtol=0.1, atol=0.0)
        assert any("weights are quantised, such as blocks.0.qkv" in one for one in about(found)["warnings"])
        with pytest.raises(RankscopeError, match="quantised weights, such as qkv"):
            rs.ablate(seen)
