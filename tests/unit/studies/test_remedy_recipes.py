"""Recipes: the lines before and after are the model's own, and the code after them is the surgery."""

import ast
import inspect
import textwrap
import types

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from kit import small_lms
from kit.small_lms import (
    BareBlock,
    LoopBlock,
    NamedBlock,
    PostBlock,
    PreBlock,
    SmallLM,
    TwoLineBlock,
    id_batch,
    small_lm,
)
from rankscope.findings.remedies import Kind, Remedies, Remedy
from rankscope.network import with_branch_scale, with_placement, with_skip_scale, with_skips, with_temperature
from rankscope.sources.translate import translate
from rankscope.studies.recipes import GENERAL, Recipe, Written, recipe_of, with_recipes, written_of

SURGERY = {
    "placement": lambda net: with_placement(net, "pre"),
    "branch-scale": lambda net: with_branch_scale(net, 0.25),
    "skip-scale": lambda net: with_skip_scale(net, 2.0),
    "skip": with_skips,
}
FACTORS = {"branch-scale": 0.25, "skip-scale": 2.0, "temperature": 0.5, "bias": 0.0, "deepnorm": 1.5}


def remedy(kind: Kind) -> Remedy:
    return Remedy(name=kind, kind=kind, factor=FACTORS.get(kind))


def written(model: SmallLM, *, network: bool = False) -> Written:
    tree = translate(model, id_batch()).network if network else None
    return written_of(model, [f"blocks.{place}" for place in range(len(model.blocks))], tree)


def rewritten_model(model: SmallLM, recipe: Recipe) -> SmallLM:
    """The model with the lines of its block replaced, as a reader of the recipe would do it."""
    kind = type(model.blocks[0])
    source = textwrap.dedent(inspect.getsource(kind.forward))
    befores, afters = recipe.before.splitlines(), recipe.code.splitlines()
    places = [source.index(line) for line in befores]
    assert places == sorted(places)
    for line in befores:
        gone = len(afters) < len(befores) and "norm" in line and "+" not in line
        source = source.replace(line, "pass" if gone else afters.pop(0), 1)
    assert not afters
    scope = dict(vars(small_lms))
    exec(compile(ast.parse(source), "recipe", "exec"), scope)  # noqa: S102 - the point of the test
    for block in model.blocks:
        block.forward = types.MethodType(scope["forward"], block)
    return model


@pytest.mark.parametrize("kind", ["placement", "branch-scale", "skip-scale"])
@pytest.mark.parametrize("block", [PostBlock, NamedBlock, TwoLineBlock])
def test_the_code_of_a_post_norm_block_is_the_surgery(block: type[PostBlock], kind: Kind) -> None:
    model = small_lm(block)
    recipe = recipe_of(remedy(kind), written(model))
    assert not recipe.is_general
    assert recipe.line is not None
    assert recipe.line.file == "small_lms.py"
    tree = translate(model, id_batch())
    x, context = tree.embed(id_batch())
    expected = model.head(SURGERY[kind](tree.network)(x, context))
    found = rewritten_model(small_lm(block), recipe)(id_batch().inputs["ids"])
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_code_that_adds_skips_is_the_surgery() -> None:
    recipe = recipe_of(remedy("skip"), written(small_lm(BareBlock)))
    assert not recipe.is_general
    tree = translate(small_lm(BareBlock), id_batch())
    x, context = tree.embed(id_batch())
    expected = small_lm(BareBlock).head(with_skips(tree.network)(x, context))
    model = small_lm(BareBlock)
    found = rewritten_model(model, recipe)(id_batch().inputs["ids"])
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_line_is_where_it_says() -> None:
    recipe = recipe_of(remedy("placement"), written(small_lm()))
    lines = inspect.getsource(small_lms).splitlines()
    assert lines[recipe.line.number - 1].strip() == recipe.before.splitlines()[0]
    assert recipe.before.splitlines() == [
        "x = self.norm1(x + self.attn(x))",
        "return self.norm2(x + self.ff(x))",
    ]
    assert recipe.code.splitlines() == [
        "x = x + self.attn(self.norm1(x))",
        "return x + self.ff(self.norm2(x))",
    ]


def test_a_line_that_cannot_be_rewritten_is_shown_beside_the_general_form() -> None:
    for kind in ("placement", "branch-scale", "skip-scale", "layerscale"):
        recipe = recipe_of(remedy(kind), written(small_lm(LoopBlock)))
        assert recipe.is_general
        assert recipe.before == "x = norm(x + part(x))"
        assert "self." not in recipe.code


def test_what_the_tree_does_not_have_is_not_rewritten() -> None:
    """A sum that the source shows and that is none of the stream: then nothing is certain."""

    class Odd(PostBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm1(x + self.attn(x))
            self.seen = x + self.ff(x)
            return self.norm2(x + self.ff(x))

    recipe = recipe_of(
        remedy("branch-scale"), Written(model=small_lm(Odd), blocks=("blocks.0",), dim=16, sums=2)
    )
    assert recipe.is_general


def test_no_name_is_invented() -> None:
    """Every attribute of self in the code is one of the block, or is said to be new."""
    for block in (PostBlock, NamedBlock, TwoLineBlock, PreBlock, BareBlock, LoopBlock):
        model = small_lm(block)
        for kind in GENERAL:
            if kind == "several":
                continue
            recipe = recipe_of(remedy(kind), written(model))
            new = {
                line.split(" = ")[0]
                for line in recipe.code.splitlines()
                if line.endswith("# new, in __init__")
            }
            for node in ast.walk(ast.parse(recipe.code)):
                if not isinstance(node, ast.Attribute) or ast.unparse(node.value) != "self":
                    continue
                holders = (model.blocks[0], model.blocks[0].attn)
                assert ast.unparse(node) in new or any(hasattr(one, node.attr) for one in holders)


def test_temperature_is_a_division_before_the_softmax() -> None:
    model = small_lm()
    recipe = recipe_of(remedy("temperature"), written(model))
    assert recipe.before == "att = att.softmax(dim=-1)"
    assert recipe.code == "att = (att / 0.5).softmax(dim=-1)"
    tree = translate(model, id_batch())
    x, context = tree.embed(id_batch())
    expected = with_temperature(tree.network, 0.5)(x, context)
    for block in model.blocks:
        block.attn.qkv.weight.data[:16] *= 2.0
        block.attn.qkv.bias.data[:16] *= 2.0
    assert_close(translate(model, id_batch()).network(x, context), expected, rtol=1e-9, atol=1e-9)


def test_parameters_are_named_by_their_paths() -> None:
    model = small_lm()
    for block in model.blocks:
        for held in block.parameters():
            held.data += 1.0
    one = remedy("bias").model_copy(update={"sites": ("mlp",)})
    code = recipe_of(one, written(model)).code
    assert code.splitlines()[0] == "for block in model.blocks:"
    exec(code, {"nn": nn, "model": model})  # noqa: S102 - the point of the test
    for block in model.blocks:
        assert not block.ff[0].bias.any()
        assert not block.ff[2].bias.any()
        assert block.attn.proj.bias.any()
        assert block.norm1.bias.any()
    exec(recipe_of(remedy("gain"), written(model)).code, {"nn": nn, "model": model})  # noqa: S102
    assert all(bool((block.norm2.weight == 1).all()) for block in model.blocks)


def test_layers_of_torch_have_a_switch() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    told = written_of(model, [f"layers.{place}" for place in range(3)])
    pre = recipe_of(remedy("placement"), told)
    assert (
        pre.before
        == "nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True, norm_first=False)"
    )
    assert eval(pre.code, {"nn": nn}).norm_first  # noqa: S307 - the point of the test
    again = recipe_of(remedy("redraw"), told)
    exec(again.code, {"nn": nn, "model": model})  # noqa: S102
    assert len(model.layers) == 3
    assert not torch.equal(model.layers[0].linear1.weight, model.layers[1].linear1.weight)
    before = model.layers[0].linear2.weight.clone()
    exec(recipe_of(remedy("branch-scale"), told).code, {"nn": nn, "model": model})  # noqa: S102
    assert torch.equal(model.layers[0].linear2.weight, before * 0.25)
    skip = recipe_of(remedy("skip-scale"), told)
    assert len(skip.code.splitlines()) == 2  # the branch of norm_first is not taken
    assert "2 * x + self._sa_block" in skip.code


def test_models_of_transformers_have_a_switch_a_twin_or_a_line() -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}
    bert = transformers.BertModel(transformers.BertConfig(intermediate_size=16, **small))
    found = recipe_of(remedy("placement"), written_of(bert, ["encoder.layer.0"]))
    assert found.is_general
    assert found.before == "hidden_states = self.LayerNorm(hidden_states + input_tensor)"
    assert found.line.file == "modeling_bert.py"
    scaled = recipe_of(remedy("branch-scale"), written_of(bert, ["encoder.layer.0"]))
    assert scaled.code == "hidden_states = self.LayerNorm(input_tensor + 0.25 * hidden_states)"
    roberta = transformers.RobertaModel(transformers.RobertaConfig(intermediate_size=16, **small))
    twin = recipe_of(remedy("placement"), written_of(roberta, ["encoder.layer.0"]))
    assert twin.code == "RobertaPreLayerNormModel(RobertaPreLayerNormConfig())"
    assert hasattr(transformers, "RobertaPreLayerNormModel")
    config = transformers.OPTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        vocab_size=11,
        word_embed_proj_dim=8,
    )
    config.do_layer_norm_before = False
    opt = transformers.OPTModel(config)
    switch = recipe_of(remedy("placement"), written_of(opt, ["decoder.layers.0"]))
    assert switch.code == "OPTConfig(do_layer_norm_before=True)"


def test_without_a_model_there_are_general_forms() -> None:
    pair = Remedy(name="skip:add + bias:0", kind="several", rank=1)
    found = Remedies(before=0.01, start=0.9, is_run=True, advised=(pair,), dropped=())
    coded = with_recipes(found, None).advised[0]
    assert coded.code == f"{GENERAL['skip']}\n{GENERAL['bias']}"
    assert coded.is_general
    for kind in GENERAL:
        if kind != "several":
            assert recipe_of(remedy(kind), None, layers=4).code
