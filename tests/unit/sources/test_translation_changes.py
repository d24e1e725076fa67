"""A model that changes after its translation: the tree follows in place, and is refused where it cannot."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS
from kit.translations import Case
from rankscope.errors import NotTranslated
from rankscope.network import TokenMap
from rankscope.sources.plain_run import plain_run
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation

CASES = ENCODERS | DECODERS
NAMES = ("bert", "albert", "xlnet", "mpnet", "t5", "gpt2", "llama", "gemma3", "mixtral", "vit", "torch-post")
each = pytest.mark.parametrize("name", NAMES)


@cache
def _own(name: str) -> Translation:
    case = CASES[name]
    return translate(copy.deepcopy(case.model(torch.float64)), stack=case.stack)


@contextmanager
def own_translation(name: str) -> Iterator[tuple[Case, Translation]]:
    """A tree of a copy of a model, which may be changed inside; afterwards the copy is what it was, in its memory."""
    case, translation = CASES[name], _own(name)
    translation.embed(case.batch(torch.float64))  # not refused before the change
    held = [
        (vars(module), {name: dict(vars(module)[name]) for name in ("_parameters", "_buffers", "_modules")})
        for module in translation.model.modules()
    ]
    tensors = (*translation.model.parameters(), *translation.model.buffers())
    numbers = [(one, one.data, one.data.clone()) for one in tensors]
    try:
        yield case, translation
    finally:
        for inside, before in held:
            inside.update(before)
        for one, memory, values in numbers:
            one.data = memory.copy_(values)
            one.grad = None


def last_states(case: Case, translation: Translation) -> tuple[Tensor, Tensor]:
    """The last state of the tree and of the model, and after their final norms, on tokens that are no padding."""
    batch = case.batch(torch.float64)
    x, context = translation.embed(batch)
    with torch.no_grad():
        trace = translation.network.trace(x, context)
    plain = plain_run(translation.model, translation.stack, batch)
    theirs = plain.states[-1] if plain.final is None else plain.final
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if context.is_token is None else context.is_token
    return trace.final[keep], theirs[keep]


# changes in place


@pytest.mark.slow
@each
def test_a_step_of_an_optimizer_changes_the_tree_as_it_does_the_model(name: str) -> None:
    with own_translation(name) as (case, translation):
        before, _ = last_states(case, translation)
        optimizer = torch.optim.SGD(translation.model.parameters(), lr=0.05)
        for number, parameter in enumerate(translation.model.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        optimizer.step()
        ours, theirs = last_states(case, translation)
        assert float((ours - before).abs().max()) > 1e-2
        # those that cast compute some steps in float32
        close = 1e-4 if case.casts else 1e-9
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close)
        translation.proven_on(case.batch(torch.float64))


@pytest.mark.slow
@each
def test_loading_numbers_in_place_keeps_the_tree(name: str) -> None:
    with own_translation(name) as (case, translation):
        halved = {
            key: value / 2 if value.is_floating_point() else value
            for key, value in translation.model.state_dict().items()
        }
        translation.model.load_state_dict(halved)
        translation.proven_on(case.batch(torch.float64))


def test_experts_follow_changes_in_place() -> None:
    with own_translation("mixtral") as (case, translation):
        experts = [part for part in translation.network.modules() if isinstance(part, TokenMap)]
        assert len(experts) == 2
        names = [name for name, _ in translation.model.named_parameters() if ".mlp." in name]
        assert names
        before, _ = last_states(case, translation)
        with torch.no_grad():
            for name in names:
                translation.model.get_parameter(name).mul_(1.5)
        ours, theirs = last_states(case, translation)
        assert float((ours - before).abs().max()) > 1e-2
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)  # its norms are computed in float32
        translation.proven_on(case.batch(torch.float64))


@pytest.mark.parametrize("name", CASES)
def test_no_parameter_of_the_tree_is_one_of_the_models(name: str) -> None:
    """They share numbers, and neither flags nor gradients."""
    translation = CASES[name].translation(torch.float64)
    held = {id(parameter) for parameter in translation.model.parameters()}
    assert not any(id(parameter) in held for parameter in translation.network.parameters())
    assert not any(parameter.requires_grad for parameter in translation.network.parameters())


def test_flags_that_are_mixed_stay_mixed() -> None:
    model = copy.deepcopy(CASES["mixtral"].model(torch.float32))
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 3 == 0)
    before = [parameter.requires_grad for parameter in model.parameters()]
    translation = translate(model)
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    translation.network.requires_grad_(True)
    assert [parameter.requires_grad for parameter in model.parameters()] == before


# changes that the tree cannot follow


def _assign(model: nn.Module) -> None:
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)


def _data(model: nn.Module) -> None:
    weight = model.encoder.layer[1].output.dense.weight
    weight.data = weight.data.clone()


def _bias(model: nn.Module) -> None:
    dense = model.encoder.layer[0].output.dense
    dense.bias = nn.Parameter(dense.bias.detach().clone())


def _submodule(model: nn.Module) -> None:
    model.encoder.layer[1].output.dense = copy.deepcopy(model.encoder.layer[1].output.dense)


def _removed(model: nn.Module) -> None:
    del model.encoder.layer[1]


def _added(model: nn.Module) -> None:
    model.encoder.layer.append(copy.deepcopy(model.encoder.layer[0]))


def _exchanged(model: nn.Module) -> None:
    first, second = model.encoder.layer
    model.encoder.layer = nn.ModuleList([second, first])


def _no_bias(model: nn.Module) -> None:
    model.encoder.layer[0].output.dense.bias = None


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "loaded with assign": _assign,
    "other data": _data,
    "another bias": _bias,
    "another submodule": _submodule,
    "a layer less": _removed,
    "a layer more": _added,
    "layers exchanged": _exchanged,
    "a bias less": _no_bias,
    "half": nn.Module.half,
    "float": nn.Module.float,
    "there and back": lambda model: model.float().double(),
}


def assert_refused(case: Case, translation: Translation) -> None:
    words = (
        "the weights of the model were moved, replaced or cast since it was translated; translate it again"
    )
    for use in (translation.embed, translation.proven_on):
        with pytest.raises(NotTranslated, match=words):
            use(case.batch(torch.float64))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_that_are_not_in_place_are_refused(change: Callable[[nn.Module], object]) -> None:
    with own_translation("bert") as (case, translation):
        translation.embed(case.batch(torch.float64))
        change(translation.model)
        assert_refused(case, translation)


@each
def test_a_cast_is_refused_for_every_kind(name: str) -> None:
    with own_translation(name) as (case, translation):
        translation.model.float()
        assert_refused(case, translation)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("llama", "norm"),
        ("gpt2", "transformer.ln_f"),
        ("t5", "encoder.final_layer_norm"),
        ("mpnet", "encoder.relative_attention_bias"),
    ],
)
def test_what_the_tree_shares_outside_of_the_blocks_is_watched_too(name: str, path: str) -> None:
    with own_translation(name) as (case, translation):
        module = translation.model.get_submodule(path)
        module.weight = nn.Parameter(module.weight.detach() * 2)
        assert_refused(case, translation)


def test_what_the_tree_does_not_share_may_change() -> None:
    with own_translation("bert") as (case, translation):
        words = translation.model.embeddings.word_embeddings
        words.weight = nn.Parameter(words.weight.detach() * 2)
        ours, theirs = last_states(case, translation)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
