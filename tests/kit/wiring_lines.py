"""Faults of one block, of all, and of weights that somebody wrote over, each with the line where it stands."""

from kit.wiring_faults import Fault

LINES = (
    Fault(
        name="softmax over queries b3",
        model="written",
        law="causality",
        block=3,
        edits=(
            (
                "def __init__(self, d, h):\n        super().__init__()\n        self.h, self.dh",
                (
                    "def __init__(self, d, h, idx=0):\n"
                    "        super().__init__()\n"
                    "        self.idx = idx\n"
                    "        self.h, self.dh"
                ),
            ),
            (
                "self.attn = SelfAttention(d, h)",
                "self.attn = SelfAttention(d, h, idx)",
            ),
            (
                "w = torch.softmax(scores, dim=-1)",
                (
                    "if self.idx == 2:\n"
                    "            w = torch.softmax(scores, dim=-2)\n"
                    "        else:\n"
                    "            w = torch.softmax(scores, dim=-1)"
                ),
            ),
        ),
        at="w = torch.softmax(scores, dim=-2)",
    ),
    Fault(
        name="softmax forgotten b2",
        model="written",
        law="alike",
        block=2,
        edits=(
            (
                "def __init__(self, d, h):\n        super().__init__()\n        self.h, self.dh",
                (
                    "def __init__(self, d, h, idx=0):\n"
                    "        super().__init__()\n"
                    "        self.idx = idx\n"
                    "        self.h, self.dh"
                ),
            ),
            (
                "self.attn = SelfAttention(d, h)",
                "self.attn = SelfAttention(d, h, idx)",
            ),
            (
                "w = torch.softmax(scores, dim=-1)",
                (
                    "if self.idx == 1:\n"
                    "            w = scores.masked_fill(future, 0.0)\n"
                    "        else:\n"
                    "            w = torch.softmax(scores, dim=-1)"
                ),
            ),
        ),
        at="w = scores.masked_fill(future, 0.0)",
    ),
    Fault(
        name="scale times b4",
        model="written",
        law="alike",
        block=4,
        edits=(
            (
                "def __init__(self, d, h):\n        super().__init__()\n        self.h, self.dh",
                (
                    "def __init__(self, d, h, idx=0):\n"
                    "        super().__init__()\n"
                    "        self.idx = idx\n"
                    "        self.h, self.dh"
                ),
            ),
            (
                "self.attn = SelfAttention(d, h)",
                "self.attn = SelfAttention(d, h, idx)",
            ),
            (
                "scores = scores / math.sqrt(self.dh)",
                (
                    "if self.idx == 3:\n"
                    "            scores = scores * math.sqrt(self.dh)\n"
                    "        else:\n"
                    "            scores = scores / math.sqrt(self.dh)"
                ),
            ),
        ),
        at="scores = scores * math.sqrt(self.dh)",
    ),
    Fault(
        name="mask off by one all",
        model="written",
        law="causality",
        block=1,
        edits=(
            (
                "diagonal=1).bool()",
                "diagonal=2).bool()",
            ),
        ),
        at="future = torch.triu(torch.ones(t, t, device=x.device), diagonal=2).bool()",
    ),
    Fault(
        name="skip of normed tensor b3",
        model="written",
        law="alike",
        block=3,
        edits=(
            (
                "        x = x + self.attn(self.ln1(x))\n        x = x + self.mlp(self.ln2(x))\n",
                (
                    "        x = x + self.attn(self.ln1(x))\n"
                    "        if self.idx == 2:\n"
                    "            y = self.ln2(x)\n"
                    "            x = y + self.mlp(y)\n"
                    "        else:\n"
                    "            x = x + self.mlp(self.ln2(x))\n"
                ),
            ),
        ),
        at="x = y + self.mlp(y)",
    ),
    Fault(
        name="branch times zero gate b2",
        model="written",
        law="gradient",
        block=2,
        edits=(
            (
                "        x = x + self.mlp(self.ln2(x))\n",
                (
                    "        gate = 0.0 if self.idx == 1 else 1.0\n"
                    "        x = x + gate * self.mlp(self.ln2(x))\n"
                ),
            ),
        ),
        at="x = x + gate * self.mlp(self.ln2(x))",
    ),
    Fault(
        name="wo zero rows of head 2 b5",
        model="written",
        law="reach",
        block=5,
        edits=(
            (
                "for i in range(layers)])\n",
                (
                    "for i in range(layers)])\n"
                    "        with torch.no_grad():\n"
                    "            self.blocks[4].attn.wo.weight[:, 8:16] = 0\n"
                ),
            ),
        ),
        at="self.blocks[4].attn.wo.weight[:, 8:16] = 0",
    ),
    Fault(
        name="qk x8 b3",
        model="written",
        law="logits",
        block=3,
        edits=(
            (
                "for i in range(layers)])\n",
                (
                    "for i in range(layers)])\n"
                    "        self.blocks[2].attn.wq.weight.data *= 8\n"
                    "        self.blocks[2].attn.wk.weight.data *= 8\n"
                ),
            ),
        ),
        at="self.blocks[2].attn.wq.weight.data *= 8",
    ),
    Fault(
        name="layer scale 1e-8 b3",
        model="scaled",
        law="alike",
        block=3,
        edits=(
            (
                "        self.norm = nn.LayerNorm(dim)\n        self.head",
                (
                    "        self.blocks[2].ls2 = LayerScale(dim, 1e-8)\n"
                    "        self.norm = nn.LayerNorm(dim)\n"
                    "        self.head"
                ),
            ),
        ),
        at="self.blocks[2].ls2 = LayerScale(dim, 1e-8)",
    ),
    Fault(
        name="layer scale zero both b2",
        model="scaled",
        law="reach",
        block=2,
        edits=(
            (
                "[Block(dim, heads) for i in range(depth)])\n",
                (
                    "[Block(dim, heads) for i in range(depth)])\n"
                    "        self.blocks[1].ls1.gamma.data.zero_()\n"
                    "        self.blocks[1].ls2.gamma.data.zero_()\n"
                ),
            ),
        ),
        at="self.blocks[1].ls1.gamma.data.zero_()",
    ),
    Fault(
        name="permute mixes batch",
        model="scaled",
        law="batch",
        block=1,
        edits=(
            (
                "qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)",
                "qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 1, 3, 0, 4)",
            ),
            (
                "x = (attn @ v).transpose(1, 2).reshape(B, N, C)",
                "x = (attn @ v).permute(2, 0, 1, 3).reshape(B, N, C)",
            ),
        ),
        at="qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 1, 3, 0, 4)",
    ),
    Fault(
        name="scale twice",
        model="scaled",
        law="logits",
        block=1,
        edits=(
            (
                "        q = q * self.scale\n",
                "        q = q * self.scale / self.scale**-2\n",
            ),
        ),
        at="q = q * self.scale / self.scale**-2",
    ),
    Fault(
        name="scale inverted",
        model="scaled",
        law="logits",
        block=1,
        edits=(
            (
                "        q = q * self.scale\n",
                "        q = q / self.scale\n",
            ),
        ),
        at="q = q / self.scale",
    ),
    Fault(
        name="pos_embed unused",
        model="scaled",
        law="order",
        block=None,
        edits=(
            (
                "        x = x + self.pos_embed\n",
                "        x = x + self.pos_embed[:, :1]\n",
            ),
        ),
        at="x = x + self.pos_embed[:, :1]",
    ),
    Fault(
        name="values detached",
        model="scaled",
        law="gradient",
        block=1,
        edits=(
            (
                "        q, k, v = qkv.unbind(0)\n",
                "        q, k, v = qkv.unbind(0)\n        v = v.detach()\n",
            ),
        ),
        at="v = v.detach()",
    ),
    Fault(
        name="head slice b4",
        model="scaled",
        law="reach",
        block=4,
        edits=(
            (
                "        x = self.proj(x)\n        return x\n",
                (
                    "        if self.cut:\n"
                    "            x[..., 20:] = 0\n"
                    "        x = self.proj(x)\n"
                    "        return x\n"
                ),
            ),
            (
                "        self.num_heads = num_heads\n",
                "        self.num_heads = num_heads\n        self.cut = False\n",
            ),
            (
                "        self.norm = nn.LayerNorm(dim)\n        self.head",
                (
                    "        self.blocks[3].attn.cut = True\n"
                    "        self.norm = nn.LayerNorm(dim)\n"
                    "        self.head"
                ),
            ),
        ),
        at="x[..., 20:] = 0",
    ),
    Fault(
        name="window includes future",
        model="windowed",
        law="causality",
        block=1,
        edits=(
            (
                "seen = (i[:, None] >= i[None, :]) & (",
                "seen = (i[:, None] >= i[None, :] - 1) & (",
            ),
        ),
        at="seen = (i[:, None] >= i[None, :] - 1) & (i[:, None] - i[None, :] < self.window)",
    ),
    Fault(
        name="rotary at same place",
        model="windowed",
        law="order",
        block=None,
        edits=(
            (
                "position_ids = torch.arange(input_ids.shape[1])[None]",
                "position_ids = torch.zeros(1, input_ids.shape[1], dtype=torch.long)",
            ),
        ),
        at="position_ids = torch.zeros(1, input_ids.shape[1], dtype=torch.long)",
    ),
    Fault(
        name="up unused",
        model="windowed",
        law="gradient",
        block=1,
        edits=(
            (
                "return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))",
                "return self.down_proj(F.silu(self.gate_proj(x)) * self.gate_proj(x))",
            ),
        ),
        at="return self.down_proj(F.silu(self.gate_proj(x)) * self.gate_proj(x))",
    ),
    Fault(
        name="softmax dim=2",
        model="windowed",
        law="rows",
        block=1,
        edits=(
            (
                "F.softmax(scores, dim=-1, dtype",
                "F.softmax(scores, dim=2, dtype",
            ),
        ),
        at="probs = F.softmax(scores, dim=2, dtype=torch.float32).to(q.dtype)",
    ),
    Fault(
        name="reshape without transpose",
        model="windowed",
        law="rows",
        block=1,
        edits=(
            (
                "torch.matmul(probs, v).transpose(1, 2).contiguous()",
                "torch.matmul(probs, v).contiguous()",
            ),
        ),
        at="return self.o_proj(out.reshape(b, t, -1))",
    ),
    Fault(
        name="norm weight zero b3",
        model="windowed",
        law="reach",
        block=3,
        edits=(
            (
                "        self.norm = Norm(dim)\n        self.lm_head",
                (
                    "        nn.init.zeros_(self.layers[2].input_layernorm.weight)\n"
                    "        self.norm = Norm(dim)\n"
                    "        self.lm_head"
                ),
            ),
        ),
        at="nn.init.zeros_(self.layers[2].input_layernorm.weight)",
    ),
    Fault(
        name="query from normed twice",
        model="windowed",
        law="gradient",
        block=1,
        edits=(
            (
                "k = self.k_proj(h).view",
                "k = self.v_proj(h).view",
            ),
        ),
        at="k = self.v_proj(h).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)",
    ),
    Fault(
        name="wrong index w1",
        model="stacked",
        law="gradient",
        block=None,
        edits=(
            (
                "return self.w2[i](F.relu(self.w1[i](x)))",
                "return self.w2[i](F.relu(self.w1[0](x)))",
            ),
        ),
        at="return self.w2[i](F.relu(self.w1[0](x)))",
    ),
    Fault(
        name="not causal b2",
        model="stacked",
        law="causality",
        block=2,
        edits=(
            (
                "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                "y = F.scaled_dot_product_attention(q, k, v, is_causal=i != 1)",
            ),
        ),
        at="y = F.scaled_dot_product_attention(q, k, v, is_causal=i != 1)",
    ),
    Fault(
        name="positions for wrong axis",
        model="stacked",
        law="order",
        block=None,
        edits=(
            (
                "self.positions(ids.shape[1], x.shape[-1])",
                "self.positions(ids.shape[0], x.shape[-1])[:, None]",
            ),
        ),
        at="x = x + self.positions(ids.shape[0], x.shape[-1])[:, None]",
    ),
    Fault(
        name="no skip feed b3",
        model="stacked",
        law="alike",
        block=3,
        edits=(
            (
                "            x = x + self.feed(self.ln_m[i](x), i)\n",
                "            x = self.feed(self.ln_m[i](x), i) + (0 if i == 2 else x)\n",
            ),
        ),
        at="x = self.feed(self.ln_m[i](x), i) + (0 if i == 2 else x)",
    ),
    Fault(
        name="q is k",
        model="stacked",
        law="gradient",
        block=1,
        edits=(
            (
                "        k = k.reshape(b, n, self.heads, -1).transpose(1, 2)\n",
                "        k = q\n",
            ),
        ),
        at="k = q",
    ),
    Fault(
        name="reshape batch first wrong",
        model="stacked",
        law="batch",
        block=1,
        edits=(
            (
                "v = v.reshape(b, n, self.heads, -1).transpose(1, 2)",
                "v = v.transpose(0, 1).reshape(b, n, self.heads, -1).transpose(1, 2)",
            ),
        ),
        at="v = v.transpose(0, 1).reshape(b, n, self.heads, -1).transpose(1, 2)",
    ),
    Fault(
        name="hide not passed",
        model="caption",
        law="causality",
        block=1,
        edits=(
            (
                "        x = x + self.self_read(h, h, hide)\n",
                "        x = x + self.self_read(h, h)\n",
            ),
        ),
        at="x = x + self.self_read(h, h)",
    ),
    Fault(
        name="cross reads h b2",
        model="caption",
        law="causality",
        block=2,
        edits=(
            (
                "        x = x + self.cross_read(h, image)\n",
                "        x = x + self.cross_read(h, image if self.sees else h)\n",
            ),
            (
                "        self.self_read = Reader",
                "        self.sees = True\n        self.self_read = Reader",
            ),
            (
                "        self.norm = nn.LayerNorm(d)\n        self.out",
                (
                    "        self.layers[1].sees = False\n"
                    "        self.norm = nn.LayerNorm(d)\n"
                    "        self.out"
                ),
            ),
        ),
        at="x = x + self.cross_read(h, image if self.sees else h)",
    ),
    Fault(
        name="hide triu 2",
        model="caption",
        law="causality",
        block=1,
        edits=(
            (
                ".triu(1)",
                ".triu(2)",
            ),
        ),
        at='hide = torch.full((n, n), float("-inf")).triu(2)',
    ),
    Fault(
        name="softmax -2",
        model="caption",
        law="rows",
        block=1,
        edits=(
            (
                "weight = torch.softmax(score, -1)",
                "weight = torch.softmax(score, -2)",
            ),
        ),
        at="weight = torch.softmax(score, -2)",
    ),
    Fault(
        name="scale missing then times",
        model="caption",
        law="logits",
        block=1,
        edits=(
            (
                "* q.shape[-1] ** -0.5",
                "* q.shape[-1] ** 0.5",
            ),
        ),
        at='score = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** 0.5',
    ),
    Fault(
        name="h reused: c forgotten b3",
        model="caption",
        law="alike",
        block=3,
        edits=(
            (
                "        h = self.c(x)\n        x = x + self.ffn(h)\n",
                "        if self.third:\n            h = self.c(x)\n        x = x + self.ffn(h)\n",
            ),
            (
                "        self.self_read = Reader",
                "        self.third = True\n        self.self_read = Reader",
            ),
            (
                "        self.norm = nn.LayerNorm(d)\n        self.out",
                (
                    "        self.layers[2].third = False\n"
                    "        self.norm = nn.LayerNorm(d)\n"
                    "        self.out"
                ),
            ),
        ),
        at="x = x + self.ffn(h)",
    ),
    Fault(
        name="self and cross one module",
        model="caption",
        law="clones",
        block=1,
        edits=(
            (
                "        self.cross_read = Reader(d, h)\n",
                "        self.cross_read = self.self_read\n",
            ),
        ),
        at="self.cross_read = self.self_read",
    ),
    Fault(
        name="qk x10 b4",
        model="caption",
        law="logits",
        block=4,
        edits=(
            (
                "        self.out = nn.Linear(d, vocab)\n",
                (
                    "        self.out = nn.Linear(d, vocab)\n"
                    "        for w in (self.layers[3].self_read.query, self.layers[3].self_read.key):\n"
                    "            w.weight.data.mul_(10)\n"
                ),
            ),
        ),
        at="w.weight.data.mul_(10)",
    ),
    Fault(
        name="attention times zero",
        model="written",
        law="gradient",
        block=1,
        edits=(("x = x + self.attn(self.ln1(x))", "x = x + self.attn(self.ln1(x)) * 0.0"),),
        at="x = x + self.attn(self.ln1(x)) * 0.0",
    ),
    Fault(
        name="content of no weight",
        model="tagger",
        law="gradient",
        block=1,
        edits=(("scores = scores + self.bias[:, relative]", "scores = scores * 0 + self.bias[:, relative]"),),
        at="scores = scores * 0 + self.bias[:, relative]",
    ),
    Fault(
        name="queries read queries",
        model="tagger",
        law="gradient",
        block=1,
        edits=(("torch.matmul(q, k.mT)", "torch.matmul(q, q.mT)"),),
        at="scores = torch.matmul(q, q.mT)",
    ),
    Fault(
        name="table detached",
        model="tagger",
        law="gradient",
        block=None,
        edits=(("self.norm(self.words(input_ids))", "self.norm(self.words(input_ids)).detach()"),),
        at="self.norm(self.words(input_ids)).detach()",
    ),
    Fault(
        name="padding of one block is dropped",
        model="tagger",
        law="padding",
        block=3,
        edits=(
            ("self.block3(states, attention_mask)", "self.block3(states, torch.ones_like(attention_mask))"),
        ),
        at="self.block3(states, torch.ones_like(attention_mask))",
    ),
    Fault(
        name="attends over texts",
        model="series",
        law="batch",
        block=1,
        edits=(
            (
                "F.scaled_dot_product_attention(q, k, v)",
                "F.scaled_dot_product_attention(*(one.transpose(0, 1) for one in (q, k, v))).transpose(0, 1)",
            ),
        ),
        at="z = F.scaled_dot_product_attention(",
    ),
    Fault(
        name="time over texts",
        model="series",
        law="order",
        block=None,
        edits=(("self.time[: series.shape[0]]", "self.time[: series.shape[1]].transpose(0, 1)"),),
        at="x = self.inp(series) + self.time[: series.shape[1]].transpose(0, 1)",
    ),
    Fault(
        name="last block left out",
        model="written",
        law="gradient",
        block=5,
        edits=(("for block in self.blocks:", "for block in self.blocks[:-1]:"),),
        at="for block in self.blocks[:-1]:",
    ),
)
