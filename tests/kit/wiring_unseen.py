"""Faults that the laws had not met when they were tried on them first: planted in other models, in other ways."""

from kit.wiring_faults import Fault

UNSEEN = (
    Fault(
        name="no skip attention b3",
        model="notebook",
        law="alike",
        block=3,
        edits=(
            (
                "        x = x + self.sa(self.ln1(x))",
                "        x = x + self.sa(self.ln1(x)) if self.i != 2 else self.sa(self.ln1(x))",
            ),
        ),
    ),
    Fault(
        name="softmax over queries",
        model="notebook",
        law="rows",
        block=1,
        edits=(
            (
                "F.softmax(wei, dim=-1)",
                "F.softmax(wei, dim=1)",
            ),
        ),
    ),
    Fault(
        name="heads in a python list",
        model="notebook",
        law="gradient",
        block=1,
        edits=(
            (
                "self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])",
                "self.heads = [Head(head_size) for _ in range(num_heads)]",
            ),
        ),
    ),
    Fault(
        name="dropout functional default training",
        model="notebook",
        law="deterministic",
        block=1,
        edits=(
            (
                "        wei = self.dropout(wei)\n",
                "        wei = F.dropout(wei, dropout)\n",
            ),
        ),
        at="wei = F.dropout(wei, dropout)",
    ),
    Fault(
        name="positions forgotten",
        model="notebook",
        law="gradient",
        block=None,
        edits=(
            (
                "x = tok_emb + pos_emb",
                "x = tok_emb",
            ),
        ),
    ),
    Fault(
        name="block list times n",
        model="notebook",
        law="clones",
        block=2,
        edits=(
            (
                "nn.Sequential(*[Block(n_embd, n_head, i) for i in range(n_layer)])",
                "nn.Sequential(*[Block(n_embd, n_head, 0)] * n_layer)",
            ),
        ),
    ),
    Fault(
        name="no grad around block 2",
        model="notebook",
        law="gradient",
        block=2,
        edits=(
            (
                "        x = x + self.ffwd(self.ln2(x))",
                (
                    "        with torch.set_grad_enabled(self.i != 1):\n"
                    "            f = self.ffwd(self.ln2(x))\n"
                    "        x = x + f"
                ),
            ),
        ),
        at="            f = self.ffwd",
    ),
    Fault(
        name="cat heads over tokens mean",
        model="notebook",
        law="causality",
        block=2,
        edits=(
            (
                "        x = x + self.ffwd(self.ln2(x))",
                (
                    "        x = x + self.ffwd(self.ln2(x) if self.i != 1 else F.layer_norm(x.mT, (x."
                    "shape[1],)).mT)"
                ),
            ),
        ),
    ),
    Fault(
        name="softmax over heads",
        model="vit",
        law="rows",
        block=1,
        edits=(
            (
                "nn.Softmax(dim=-1)",
                "nn.Softmax(dim=1)",
            ),
        ),
        at="attn = self.attend(dots)",
    ),
    Fault(
        name="skip lost b3",
        model="vit",
        law="alike",
        block=3,
        edits=(
            (
                "            x = attn(x) + x",
                "            x = attn(x) + x if i != 2 else attn(x)",
            ),
        ),
    ),
    Fault(
        name="view mixes tokens with heads",
        model="vit",
        law="rows",
        block=4,
        edits=(
            (
                "t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3)",
                (
                    "(t.reshape(b, self.heads, n, -1) if self.depth == 3 else t.reshape(b, n, self.he"
                    "ads, -1).permute(0, 2, 1, 3))"
                ),
            ),
        ),
    ),
    Fault(
        name="detached",
        model="vit",
        law="gradient",
        block=2,
        edits=(
            (
                "            x = ff(x) + x",
                "            x = ff(x) + x if i != 1 else ff(x.detach()) + x.detach()",
            ),
        ),
    ),
    Fault(
        name="mask not added b2",
        model="bert",
        law="padding",
        block=2,
        edits=(
            (
                "scores = scores + attention_mask",
                "scores = scores + attention_mask if self.idx != 1 else scores",
            ),
        ),
    ),
    Fault(
        name="mask inverted",
        model="bert",
        law="padding",
        block=1,
        edits=(
            (
                "extended = (1.0 - extended) * -10000.0",
                "extended = extended * -10000.0",
            ),
        ),
    ),
    Fault(
        name="batchnorm",
        model="bert",
        law="batch",
        block=3,
        edits=(
            (
                "        x = self.norm1(x + a)",
                (
                    "        x = self.norm1(x + a) if self.idx != 2 else F.batch_norm((x + a).flatten"
                    "(0, 1), None, None, training=True).view_as(x)"
                ),
            ),
        ),
    ),
    Fault(
        name="value from key",
        model="bert",
        law="gradient",
        block=3,
        edits=(
            (
                "value_layer = self.transpose_for_scores(self.value(hidden_states))",
                (
                    "value_layer = self.transpose_for_scores((self.key if self.idx == 2 else self.val"
                    "ue)(hidden_states))"
                ),
            ),
        ),
    ),
    Fault(
        name="post norm before skip",
        model="bert",
        law="alike",
        block=2,
        edits=(
            (
                "        x = self.norm2(x + h)",
                "        x = x + self.norm2(h) if self.idx != 1 else self.norm2(h)",
            ),
        ),
    ),
    Fault(
        name="view mixes the batch",
        model="bert",
        law="padding",
        block=2,
        edits=(
            (
                "return context.view(context.size(0), context.size(1), -1)",
                (
                    "return (context.transpose(0, 1).reshape(context.size(0), context.size(1), -1) if"
                    " self.idx == 1 else context.view(context.size(0), context.size(1), -1))"
                ),
            ),
        ),
    ),
    Fault(
        name="softmax dim",
        model="bert",
        law="rows",
        block=4,
        edits=(
            (
                "nn.Softmax(dim=-1)(scores)",
                "nn.Softmax(dim=-1 if self.idx < 3 else -2)(scores)",
            ),
        ),
    ),
    Fault(
        name="kv repeated in wrong order b3",
        model="llama2",
        law="alike",
        block=3,
        edits=(
            (
                "        values = repeat_kv(xv, self.n_rep)",
                (
                    "        values = xv.repeat(1, 1, self.n_rep, 1) if self.layer_id == 2 else repea"
                    "t_kv(xv, self.n_rep)"
                ),
            ),
        ),
    ),
    Fault(
        name="mask not passed b4",
        model="llama2",
        law="causality",
        block=4,
        edits=(
            (
                "        if mask is not None:\n",
                "        if mask is not None and self.layer_id != 3:\n",
            ),
        ),
    ),
    Fault(
        name="mask off by one",
        model="llama2",
        law="causality",
        block=1,
        edits=(
            (
                "torch.triu(mask, diagonal=1)",
                "torch.triu(mask, diagonal=2)",
            ),
        ),
    ),
    Fault(
        name="mask diag 0",
        model="llama2",
        law="rows",
        block=1,
        edits=(
            (
                "torch.triu(mask, diagonal=1)",
                "torch.triu(mask, diagonal=0)",
            ),
        ),
    ),
    Fault(
        name="gate missing b2 (w3 unused)",
        model="llama2",
        law="gradient",
        block=2,
        edits=(
            (
                "F.silu(self.w1(x)) * self.w3(x)",
                "F.silu(self.w1(x)) * (self.w1(x) if self.w1.weight is first else self.w3(x))",
            ),
            (
                "class FeedForward(nn.Module):",
                ("first = None\n\n\nclass FeedForward(nn.Module):"),
            ),
            (
                "    return Transformer(ModelArgs())",
                (
                    "    global first\n"
                    "    m = Transformer(ModelArgs())\n"
                    "    first = m.layers[1].feed_forward.w1.weight\n"
                    "    return m"
                ),
            ),
        ),
    ),
    Fault(
        name="norm over all dims b2",
        model="llama2",
        law="batch",
        block=2,
        edits=(
            (
                "        h = x + self.attention(self.attention_norm(x), freqs_cis, mask)",
                (
                    "        n = self.attention_norm(x) if self.layer_id != 1 else x * torch.rsqrt(x."
                    "pow(2).mean() + 1e-5) * self.attention_norm.weight\n"
                    "        h = x + self.attention(n, freqs_cis, mask)"
                ),
            ),
        ),
        at="        n = self.attention_norm(x) if",
    ),
    Fault(
        name="x = f(x)",
        model="llama2",
        law="alike",
        block=3,
        edits=(
            (
                "        out = h + self.feed_forward(self.ffn_norm(h))",
                ("        out = self.feed_forward(self.ffn_norm(h)) + (h if self.layer_id != 2 else 0)"),
            ),
        ),
    ),
    Fault(
        name="no norm b1",
        model="llama2",
        law="gradient",
        block=2,
        edits=(
            (
                "        out = h + self.feed_forward(self.ffn_norm(h))",
                ("        out = h + self.feed_forward(self.ffn_norm(h) if self.layer_id != 1 else h)"),
            ),
        ),
    ),
    Fault(
        name="scale * instead of /",
        model="mingpt",
        law="logits",
        block=1,
        edits=(
            (
                "(1.0 / math.sqrt(k.size(-1)))",
                "math.sqrt(k.size(-1))",
            ),
        ),
    ),
    Fault(
        name="q and k share one module",
        model="mingpt",
        law="clones",
        block=1,
        edits=(
            (
                "        self.query = nn.Linear(config.n_embd, config.n_embd)\n",
                "        self.query = self.key\n",
            ),
        ),
        at="self.query = self.key",
    ),
    Fault(
        name="padding missing in layer 2",
        model="textclass",
        law="padding",
        block=2,
        edits=(
            (
                "x = layer(x, src_key_padding_mask=pad)",
                "x = layer(x, src_key_padding_mask=pad if i != 1 else None)",
            ),
        ),
    ),
    Fault(
        name="batch_first False",
        model="textclass",
        law="batch",
        block=1,
        edits=(
            (
                "batch_first=True, ",
                "",
            ),
            (
                "x = layer(x, src_key_padding_mask=pad)",
                "x = layer(x)",
            ),
        ),
        at="nn.TransformerEncoderLayer(",
    ),
    Fault(
        name="where swapped",
        model="gptj",
        law="rows",
        block=1,
        edits=(
            (
                "torch.where(causal, w, torch.tensor(-1e9))",
                "torch.where(causal, torch.tensor(-1e9), w)",
            ),
        ),
    ),
    Fault(
        name="softmax dim 1",
        model="gptj",
        law="causality",
        block=1,
        edits=(
            (
                "w = F.softmax(w, dim=-1)",
                "w = F.softmax(w, dim=1)",
            ),
        ),
    ),
    Fault(
        name="interleaved split confused with heads",
        model="gptj",
        law="rows",
        block=1,
        edits=(
            (
                "query = self.q_proj(x).view(b, t, self.heads, -1)",
                "query = self.q_proj(x).view(b, self.heads, t, -1).transpose(1, 2)",
            ),
        ),
    ),
    Fault(
        name="conv does not mask padding",
        model="conformer",
        law="padding",
        block=1,
        edits=(
            (
                "        x = x.masked_fill(pad[:, None, :], 0.0)\n",
                "",
            ),
        ),
        at="x = F.silu(self.bn(self.depthwise(x)))",
    ),
    Fault(
        name="batchnorm always training",
        model="conformer",
        law="batch",
        block=1,
        edits=(
            (
                "self.bn(self.depthwise(x))",
                ("F.batch_norm(self.depthwise(x), None, None, self.bn.weight, self.bn.bias, training=True)"),
            ),
        ),
    ),
    Fault(
        name="ff2 is ff1",
        model="conformer",
        law="clones",
        block=1,
        edits=(
            (
                "        self.ff2 = FeedForward(d)\n",
                "        self.ff2 = self.ff1\n",
            ),
        ),
        at="self.ff2 = self.ff1",
    ),
)
