"""Phi and Persimmon: Llama's places, with attention and MLP in parallel or fused maps."""

from rankscope.sources.families.llama import LLAMA_NAMES, LLAMA_NORMS
from rankscope.sources.family import Family, Tree, register
from rankscope.sources.trees import (
    KEY_HEADS,
    attribute,
    causal,
    gated_halves,
    interleaved,
    parallel,
    plain,
    pre,
    rotary,
    separate,
    sliding,
    softmax,
    stacked,
)

register(
    Family(
        name="phi",
        model_types=("phi", "phi3", "phimoe", "persimmon"),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(
                kinds=("phi",),
                block=parallel(
                    softmax(
                        separate(*(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "dense"))),
                        key_heads=KEY_HEADS,
                        rule=causal,
                        position=rotary(),
                        scale=attribute("self_attn.scaling"),
                        query_norm="self_attn.q_layernorm",
                        key_norm="self_attn.k_layernorm",
                    ),
                    plain("mlp.fc1", "mlp.fc2", activation="mlp.activation_fn"),
                    norms=("input_layernorm", "input_layernorm"),
                ),
                casts=True,
            ),
            Tree(
                kinds=("phi3",),
                block=pre(
                    softmax(
                        stacked("self_attn.qkv_proj", "self_attn.o_proj", key_heads=KEY_HEADS),
                        key_heads=KEY_HEADS,
                        rule=sliding,
                        position=rotary(),
                        scale=attribute("self_attn.scaling"),
                    ),
                    gated_halves("mlp.gate_up_proj", "mlp.down_proj", activation="mlp.activation_fn"),
                    norms=LLAMA_NORMS,
                ),
                casts=True,
            ),
            Tree(
                kinds=("persimmon",),
                block=pre(
                    softmax(
                        interleaved("self_attn.query_key_value", "self_attn.dense"),
                        rule=causal,
                        position=rotary(),
                        query_norm="self_attn.q_layernorm",
                        key_norm="self_attn.k_layernorm",
                    ),
                    plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", activation="mlp.act", whole="mlp"),
                    norms=LLAMA_NORMS,
                ),
                casts=True,
            ),
        ),
    )
)
