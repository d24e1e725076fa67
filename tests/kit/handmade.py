"""Transformers as people write them by hand: every common way to hold blocks, attentions, MLPs and norms."""

import torch
from torch import Tensor, nn

DIM, HEADS, LAYERS = 16, 2, 3


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    shape = (*query.shape[:-1], HEADS, -1)
    heads = (part.reshape(shape).transpose(1, 2) for part in (query, key, value))
    return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(query.shape)


class CausalSelfAttention(nn.Module):
    """Fused queries, keys and values, as in small GPTs."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(DIM, 3 * DIM)
        self.c_proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(attend(*self.c_attn(x).chunk(3, dim=-1)))


class SkipAttention(CausalSelfAttention):
    """An attention that adds its own skip, without a norm that would tell."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return x + y


class PreNormBlock(nn.Module):
    def __init__(self, attention: type[nn.Module] = CausalSelfAttention) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(DIM)
        self.attn = attention()
        self.ln_2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class SkipInsideBlock(PreNormBlock):
    def __init__(self) -> None:
        super().__init__(SkipAttention)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(x)
        return x + self.mlp(self.ln_2(x))


class FlatBlock(nn.Module):
    """Everything in one module, no attention and no MLP of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.fc1 = nn.Linear(DIM, 3 * DIM)
        self.fc2 = nn.Linear(3 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.proj(attend(*self.qkv(self.norm1(x)).chunk(3, dim=-1)))
        return x + self.fc2(torch.relu(self.fc1(self.norm2(x))))


class PostNormBlock(nn.Module):
    """torch's own attention, post-norm, the MLP under a name that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.norm_a = nn.LayerNorm(DIM)
        self.net = nn.Sequential(nn.Linear(DIM, 3 * DIM), nn.ReLU(), nn.Linear(3 * DIM, DIM))
        self.norm_b = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_a(x + self.mha(x, x, x)[0])
        return self.norm_b(x + self.net(x))


class GroupedBlock(nn.Module):
    """Sublayers with their own norm and skip, queries and keys in a module that is not called an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.token_part = GroupedQueries()
        self.channel_part = FeedForwardSublayer()

    def forward(self, x: Tensor) -> Tensor:
        return self.channel_part(self.token_part(x))


class GroupedQueries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(DIM)
        self.wq, self.wk, self.wv = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.wo(attend(self.wq(y), self.wk(y), self.wv(y)))


class FeedForwardSublayer(nn.Module):
    """A gated MLP with its norm and skip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(DIM)
        self.gate, self.up = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class QueriesKeysValues(nn.Module):
    """An attention without its output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return attend(self.query(x), self.key(x), self.value(x))


class OutsideProjectionBlock(nn.Module):
    """An attention whose output projection belongs to the block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = QueriesKeysValues()
        self.attention_dense = nn.Linear(DIM, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.intermediate = nn.Linear(DIM, 3 * DIM)
        self.output = nn.Linear(3 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention_dense(self.attention(self.norm1(x)))
        return x + self.output(torch.relu(self.intermediate(self.norm2(x))))


class CrossBlock(nn.Module):
    """A block that attends to another sequence alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.cross_attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.cross_attn(self.norm1(x), memory, memory)[0]
        return x + self.mlp(self.norm2(x))


class DecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cross_attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.self_attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.self_attention(y, y, y)[0]
        x = x + self.cross_attention(self.norms[1](x), memory, memory)[0]
        return x + self.feed_forward(self.norms[2](x))


class SmallGpt(nn.Module):
    """Parts in a dictionary, the final norm among them."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(50, DIM),
                "ln_emb": nn.LayerNorm(DIM),
                "h": nn.ModuleList(PreNormBlock() for _ in range(LAYERS)),
                "ln_f": nn.LayerNorm(DIM),
            }
        )
        self.lm_head = nn.Linear(DIM, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.transformer.ln_emb(self.transformer.wte(ids))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


class Stream(nn.Module):
    """Blocks in a list, with a norm before and one after them, registered in misleading order."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.norm_out = nn.LayerNorm(DIM)
        self.layers = nn.ModuleList(blocks)
        self.norm_in = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(self.run(self.norm_in(x)))

    def run(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def finish(self, x: Tensor) -> Tensor:
        return self.norm_out(x)


class Pooled(nn.Module):
    """A norm of the pooled token only."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(PostNormBlock() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.blocks(x).mean(dim=1)
        return self.norm(pooled)


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1, self.block2, self.block3 = FlatBlock(), FlatBlock(), FlatBlock()
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.block3(self.block2(self.block1(x))))


class Looped(nn.Module):
    """One block called several times, without a list."""

    def __init__(self) -> None:
        super().__init__()
        self.block = PreNormBlock()
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(LAYERS):
            x = self.block(x)
        return self.norm(x)


class BareLists(nn.Module):
    """Attention and MLP in a list per layer: no module returns the state after a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [CausalSelfAttention(), nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))]
            )
            for _ in range(LAYERS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for attention, mlp in self.layers:
            x = x + attention(x)
            x = x + mlp(x)
        return x


class ParallelLists(nn.Module):
    """Attentions in one list and MLPs in another: no module returns the state after a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(CausalSelfAttention() for _ in range(LAYERS))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)) for _ in range(LAYERS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return x


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source_encoder = Stream(*(PreNormBlock() for _ in range(LAYERS)))
        self.target_decoder = nn.Module()
        self.target_decoder.layers = nn.ModuleList(DecoderBlock() for _ in range(2))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.source_encoder(source)
        for layer in self.target_decoder.layers:
            target = layer(target, memory)
        return self.norm(target)


class Stages(nn.Module):
    """Two widths, each with its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage() for _ in range(2))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return self.norm(x)


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(PreNormBlock() for _ in range(2))
        self.merge = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.merge(x)


class Adapted(nn.Module):
    """A linear map with a low-rank update, under the attributes of a linear map."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.in_features, self.out_features = base.in_features, base.out_features
        self.lora_a, self.lora_b = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_b(self.lora_a(x))


class Hybrid(nn.Module):
    """Blocks with attention and blocks with another mixer in one list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MixerBlock(), PreNormBlock(), MixerBlock()])
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.mixer = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM))
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x).cumsum(dim=1))
        return x + self.mlp(self.norm2(x))


class Convolutions(nn.Module):
    """No tokens anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)
