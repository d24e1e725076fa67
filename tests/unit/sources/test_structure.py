"""Layouts of transformers as people write them by hand, the user's own naming, and models that hold none."""

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from kit import handmade
from kit.handmade import (
    DIM,
    LAYERS,
    Adapted,
    BareLists,
    Convolutions,
    CrossBlock,
    DecoderBlock,
    FlatBlock,
    GroupedBlock,
    Hybrid,
    Looped,
    Numbered,
    OutsideProjectionBlock,
    ParallelLists,
    Pooled,
    PostNormBlock,
    PreNormBlock,
    SkipInsideBlock,
    SmallGpt,
    Stages,
    Stream,
    Translator,
)
from rankscope.errors import RankscopeError, UnknownNameError
from rankscope.sources import FAMILIES, Family, Names, Stack, layout_of
from rankscope.sources.families import load_families
from rankscope.sources.family import register
from rankscope.sources.structure import BY_STRUCTURE, BY_USER


def only(model: nn.Module, blocks: str | None = None) -> Stack:
    (stack,) = layout_of(model, blocks=blocks).stacks
    return stack


def paths(prefix: str, part: str = "", count: int = LAYERS) -> tuple[str, ...]:
    return tuple(f"{prefix}{number}{part}" for number in range(count))


@pytest.mark.parametrize(
    ("block", "attention", "mlp"),
    [
        (PreNormBlock, ".attn", ".mlp"),
        (SkipInsideBlock, ".attn.c_proj", ".mlp"),
        (FlatBlock, ".proj", ".fc2"),
        (PostNormBlock, ".mha", ".net.2"),
        (GroupedBlock, ".token_part.wo", ".channel_part.down"),
        (DecoderBlock, ".self_attention", ".feed_forward"),
        (OutsideProjectionBlock, ".attention_dense", ".output"),
    ],
)
def test_sublayers_of_a_block(block: type[nn.Module], attention: str, mlp: str) -> None:
    stack = only(Stream(*(block() for _ in range(LAYERS))))
    assert stack.blocks == paths("layers.")
    assert stack.attention == paths("layers.", attention)
    assert stack.mlp == paths("layers.", mlp)
    assert stack.final_norm == "norm_out"
    assert stack.name == "blocks"


@pytest.mark.parametrize(
    "block", [PreNormBlock, FlatBlock, SkipInsideBlock, GroupedBlock, OutsideProjectionBlock]
)
def test_contributions_add_up(block: type[nn.Module]) -> None:
    stack = only(model := Stream(block(), block()).eval())
    seen: dict[str, torch.Tensor] = {}
    for path in (stack.blocks[1], stack.attention[1], stack.mlp[1]):
        model.get_submodule(path).register_forward_hook(
            lambda _, args, output, path=path: seen.update({path: output, f"{path} <": args[0]})
        )
    with torch.no_grad():
        model(torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(0)))
    x = seen[f"{stack.blocks[1]} <"]
    torch.testing.assert_close(x + seen[stack.attention[1]] + seen[stack.mlp[1]], seen[stack.blocks[1]])


def test_parts_in_a_dictionary() -> None:
    stack = only(SmallGpt())
    assert stack.blocks == paths("transformer.h.")
    assert stack.final_norm == "transformer.ln_f"


def test_a_sequence_with_other_parts_around_the_blocks() -> None:
    stack = only(
        nn.Sequential(
            nn.Embedding(9, DIM), PreNormBlock(), PreNormBlock(), nn.LayerNorm(DIM), nn.Linear(DIM, 9)
        )
    )
    assert stack.blocks == ("1", "2")
    assert stack.final_norm == "3"


def test_numbered_children() -> None:
    stack = only(Numbered())
    assert stack.blocks == ("block1", "block2", "block3")
    assert stack.final_norm == "norm"


def test_a_shared_block_stands_once_and_counts_its_calls() -> None:
    shared, other = PreNormBlock(), PreNormBlock()
    stack = only(Stream(shared, other, shared, other))
    assert stack.blocks == ("layers.0", "layers.1")
    assert stack.calls == 4


def test_a_norm_of_pooled_tokens_is_not_the_final_one() -> None:
    assert only(Pooled()).final_norm is None


def test_an_encoder_and_a_decoder() -> None:
    encoder, decoder = layout_of(Translator()).stacks
    assert (encoder.name, decoder.name) == ("source", "target_decoder")
    assert encoder.final_norm == "source_encoder.norm_out"
    assert decoder.final_norm == "norm"
    assert decoder.attention == paths("target_decoder.layers.", ".self_attention", 2)


def test_stages_are_stacks_and_the_last_one_has_the_norm() -> None:
    stacks = layout_of(Stages()).stacks
    assert [stack.name for stack in stacks] == ["stage1", "stage2"]
    assert [stack.blocks for stack in stacks] == [
        paths(f"stages.{stage}.blocks.", count=2) for stage in range(2)
    ]
    assert [stack.final_norm for stack in stacks] == [None, "norm"]


def test_a_hybrid_has_attention_where_there_is_some() -> None:
    stack = only(Hybrid())
    assert stack.blocks == paths("layers.")
    assert stack.attention == ("", "layers.1.attn", "")
    assert stack.mlp == paths("layers.", ".mlp")


def test_blocks_that_only_read_another_sequence_stand_in_the_same_list() -> None:
    stack = only(Stream(PreNormBlock(), CrossBlock(), PreNormBlock()))
    assert stack.blocks == paths("layers.")
    assert stack.attention == ("layers.0.attn", "", "layers.2.attn")
    assert stack.mlp == paths("layers.", ".mlp")


def test_blocks_with_another_mixer_alone() -> None:
    stack = only(nn.Sequential(handmade.MixerBlock(), handmade.MixerBlock()))
    assert stack.attention == ("", "")
    assert stack.mlp == ("0.mlp", "1.mlp")


def test_wrapped_linear_maps_and_wrapped_models() -> None:
    model = Stream(FlatBlock(), FlatBlock())
    for block in model.layers:
        block.proj, block.fc2 = Adapted(block.proj), Adapted(block.fc2)
    stack = only(nn.DataParallel(model))
    assert stack.attention == paths("module.layers.", ".proj", 2)
    assert stack.mlp == paths("module.layers.", ".fc2", 2)
    assert stack.final_norm == "module.norm_out"


def test_without_source_the_order_of_registration_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(handmade.__file__).read_text(encoding="utf-8")
    module = types.ModuleType("typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", module)
    exec(compile(source, "<typed>", "exec"), module.__dict__)  # noqa: S102 - a class without a file, as in a prompt
    assert only(module.SmallGpt()).final_norm == "transformer.ln_f"
    assert only(module.Numbered()).final_norm == "norm"
    assert only(module.Stream(module.PostNormBlock())).attention == ("layers.0.mha",)


def test_a_family_inside_an_unknown_model() -> None:
    model = nn.Module()
    model.trunk = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 2), 2, enable_nested_tensor=False)
    model.norm = nn.LayerNorm(DIM)
    model.side = Stream(PreNormBlock(), PreNormBlock())
    layout = layout_of(model)
    assert layout.family == f"torch.nn + {BY_STRUCTURE}"
    assert [stack.name for stack in layout.stacks] == ["trunk", "side"]
    assert [stack.final_norm for stack in layout.stacks] == ["norm", "side.norm_out"]


# the user's own naming


def test_blocks_named_by_the_user() -> None:
    layout = layout_of(Stages(), blocks="stages")
    assert layout.family == BY_USER
    assert layout.stacks[0].blocks == ("stages.0", "stages.1")
    assert layout.stacks[0].final_norm == "norm"


def test_several_lists_named_by_the_user() -> None:
    layout = layout_of(Translator(), blocks="source_encoder.layers, target_decoder.layers")
    assert [stack.name for stack in layout.stacks] == ["source", "target_decoder"]


def test_one_block_named_by_the_user() -> None:
    stack = only(Looped(), blocks="block")
    assert (stack.blocks, stack.attention, stack.final_norm) == (("block",), ("block.attn",), "norm")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "layer",
            r"Stream has no module at the path 'layer'; did you mean 'layers'\? Lists of modules: layers",
        ),
        ("layers.9", r"did you mean 'layers'"),
        ("", r"no module at the path ''"),
    ],
)
def test_a_wrong_path_suggests_the_nearest(path: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        layout_of(Stream(PreNormBlock(), PreNormBlock()), blocks=path)


def test_a_path_without_the_wrapper_is_completed() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'transformer\.h'"):
        layout_of(SmallGpt(), blocks="h")


def test_a_module_that_only_holds_the_list_says_where_it_is() -> None:
    with pytest.raises(
        RankscopeError, match=r"'source_encoder' is one module, a Stream, with the blocks at 'source_enc"
    ):
        layout_of(Translator(), blocks="source_encoder")


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(RankscopeError, match="'layers' is an empty ModuleList"):
        layout_of(Stream(), blocks="layers")


# nothing to find


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Convolutions(),
            r"no blocks found in Convolutions: looked for .* found: body \(3 x Sequential\)\. .*--blocks",
        ),
        (nn.Linear(3, 3), r"Lists of modules found: none\."),
        (
            nn.Sequential(*(nn.Linear(DIM, DIM) for _ in range(4))),
            r"name its blocks with blocks='path\.to\.layers'",
        ),
        (ParallelLists(), r"attentions \(3 x CausalSelfAttention\), mlps \(3 x Sequential\)"),
        (
            BareLists(),
            r"The entries of 'layers' are no blocks: they are bare lists of sublayers that are never called",
        ),
    ],
)
def test_a_model_without_blocks_says_what_was_looked_for(model: nn.Module, message: str) -> None:
    with pytest.raises(RankscopeError, match=message):
        layout_of(model)


def test_bare_lists_are_refused_when_named_too() -> None:
    with pytest.raises(RankscopeError, match="entries of 'layers' are no blocks"):
        layout_of(BareLists(), blocks="layers")


# families


def test_families_are_registered_once_and_found_by_name() -> None:
    load_families()
    assert {"albert", "bert-like", "llama-like", "t5", "torch.nn"} <= set(FAMILIES)
    names = Names(blocks=("layers",), attention=("attn",), mlp=("mlp",))
    with pytest.raises(ValueError, match="'albert' belongs to the families 'albert' and 'mine'"):
        register(Family(name="mine", model_types=("albert",), stacks=(names,)))
    assert "mine" not in FAMILIES


def test_a_family_whose_names_do_not_exist_falls_back_to_structure() -> None:
    model = Stream(PreNormBlock(), PreNormBlock())
    model.config = types.SimpleNamespace(model_type="gpt2")
    assert layout_of(model).family == BY_STRUCTURE
