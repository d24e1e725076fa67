"""Faults in models of further ways of writing: one forward pass, functions alone, dictionaries, skips in a loop."""

from kit.wiring_faults import Fault

WAYS = (
    Fault(
        name="padding of block 2 is dropped",
        model="segments",
        law="padding",
        block=2,
        edits=(
            (
                "x = layer(x, mask)",
                "x = layer(x, mask if i != 1 else 0 * mask)",
            ),
        ),
    ),
    Fault(
        name="marks are the wrong way round",
        model="segments",
        law="padding",
        block=1,
        edits=(
            (
                "(1.0 - attention_mask[:, None, None, :].to(x.dtype))",
                "(attention_mask[:, None, None, :].to(x.dtype))",
            ),
        ),
        at="mask = (attention_mask",
    ),
    Fault(
        name="mask of next to nothing",
        model="segments",
        law="padding",
        block=1,
        edits=(
            (
                "* -1e9",
                "* -1e-9",
            ),
        ),
    ),
    Fault(
        name="dropout in a function",
        model="functional",
        law="deterministic",
        block=1,
        edits=(
            (
                "q, k, v, is_causal=True",
                "q, k, v, is_causal=True, dropout_p=0.1",
            ),
        ),
    ),
    Fault(
        name="one dictionary for all",
        model="functional",
        law="clones",
        block=2,
        edits=(
            (
                "torch.nn.ModuleList(layer_params(d, 2 * d, gen) for _ in range(layers))",
                "torch.nn.ModuleList([layer_params(d, 2 * d, gen)] * layers)",
            ),
        ),
    ),
    Fault(
        name="first text alone",
        model="patches",
        law="reach",
        block=None,
        edits=(
            (
                "return self.head(x[:, 0])",
                "return self.head(x[0])",
            ),
        ),
    ),
    Fault(
        name="memory is not read",
        model="sequences",
        law="causality",
        block=1,
        edits=(
            (
                "self.src_attn(x, memory, memory, src_mask)",
                "self.src_attn(x, x, x, None)",
            ),
        ),
    ),
    Fault(
        name="no mask of the future",
        model="sequences",
        law="causality",
        block=1,
        edits=(
            (
                " & subsequent_mask(tgt.size(-1)).unsqueeze(1)",
                "",
            ),
        ),
        at="tgt_mask = (tgt",
    ),
    Fault(
        name="gate left out",
        model="grouped",
        law="gradient",
        block=4,
        edits=(
            (
                "        return x + self.mlp(self.mlp_norm(x))",
                "        if self.i == 3:\n            h = self.mlp_norm(x)\n"
                "            return x + self.mlp.down(F.silu(self.mlp.gate(h)))\n"
                "        return x + self.mlp(self.mlp_norm(x))",
            ),
        ),
        at="return x + self.mlp.down(",
    ),
    Fault(
        name="large epsilon",
        model="grouped",
        law="epsilon",
        block=1,
        edits=(
            (
                "eps=1e-5",
                "eps=10.0",
            ),
        ),
    ),
    Fault(
        name="attends to nothing",
        model="onebig",
        law="logits",
        block=1,
        edits=(
            (
                "/ math.sqrt(d)",
                "/ math.sqrt(d) / 1e6",
            ),
        ),
    ),
    Fault(
        name="no skip in the loop",
        model="pairs",
        law="alike",
        block=4,
        edits=(
            (
                "for attn, ff in self.layers:\n            x = attn(x, mask=mask) + x",
                "for number, (attn, ff) in enumerate(self.layers):\n"
                "            x = attn(x, mask=mask) + (x if number != 3 else 0)",
            ),
        ),
        at="x = attn(x, mask=mask) + (",
    ),
    Fault(
        name="mask of the past",
        model="layerdicts",
        law="causality",
        block=1,
        edits=(
            (
                ".triu(diagonal=1)",
                ".tril(diagonal=-1)",
            ),
        ),
    ),
    Fault(
        name="next token comes in",
        model="layerdicts",
        law="causality",
        block=4,
        edits=(
            (
                "self.to_vocab(self.ln(x))",
                "self.to_vocab(self.ln(x.roll(-1, 1)))",
            ),
        ),
    ),
)
