"""Faults as people make them, planted by small edits in the files of ``kit.wired``.

An edit replaces a piece of a file; what is expected is the law, the block and the line where the edit stands, which may
be reported one line late.
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

WIRED = Path(__file__).parent / "wired"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Args:
        edits: pieces of the file and what replaces them; the first one is where the line is expected.
        change: what is done to the built model instead, or besides.
        at: a piece of the changed file that stands on the expected line, where that is not the first edit.
        line: whether a line is expected at all.
    """

    name: str
    model: str
    law: str
    block: int | None
    edits: tuple[tuple[str, str], ...] = ()
    change: Callable[[nn.Module], None] | None = None
    at: str = ""
    line: bool = True
    with_loss: bool = False


def changed_file(fault: Fault, folder: Path) -> tuple[ModuleType, int | None]:
    """The module of a model with a fault, and the number of the line where the fault stands."""
    text = (WIRED / f"{fault.model}.py").read_text(encoding="utf-8")
    for old, new in fault.edits:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {fault.model}"
        text = text.replace(old, new)
    mark = fault.at or (fault.edits[0][1] if fault.edits else "")
    number = None
    if mark:
        assert text.count(mark) >= 1
        number = (
            text[: text.index(mark)].count("\n") + 1 + mark[: len(mark) - len(mark.lstrip("\n"))].count("\n")
        )
    name = "".join(one if one.isalnum() else "_" for one in fault.name)
    path = folder / f"{name}_{fault.model}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where inspect looks for the source of classes
    spec.loader.exec_module(module)
    return module, number


def dead_head(path: str, columns: slice) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_submodule(path).weight[:, columns] = 0.0  # type: ignore[index]

    return change


def times(factor: float, *paths: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        with torch.no_grad():
            for path in paths:
                model.get_parameter(path).mul_(factor)

    return change


FAULTS = (
    Fault(
        name="softmax over queries",
        model="nano",
        law="rows",
        block=3,
        edits=(("F.softmax(att, dim=-1)", "F.softmax(att, dim=-2 if self.layer == 2 else -1)"),),
    ),
    Fault(
        name="mask forgotten",
        model="nano",
        law="causality",
        block=2,
        edits=(
            (
                'att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))',
                'att = att if self.layer == 1 else att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))',
            ),
        ),
    ),
    Fault(
        name="mask off by one",
        model="nano",
        law="causality",
        block=1,
        edits=(("torch.tril(torch.ones(32, 32))", "torch.tril(torch.ones(32, 32), diagonal=1)"),),
    ),
    Fault(
        name="norm over tokens",
        model="nano",
        law="causality",
        block=2,
        edits=(
            ("h = self.ln_2(x)", "h = F.layer_norm(x, x.shape[1:]) if self.layer == 1 else self.ln_2(x)"),
        ),
    ),
    Fault(
        name="dropout left on",
        model="nano",
        law="deterministic",
        block=1,
        edits=(("att = self.attn_dropout(att)", "att = F.dropout(att, 0.1)"),),
    ),
    Fault(
        name="first row masked",
        model="nano",
        law="rows",
        block=1,
        edits=(("torch.tril(torch.ones(32, 32))", "torch.tril(torch.ones(32, 32), diagonal=-1)"),),
    ),
    Fault(
        name="dead head",
        model="nano",
        law="reach",
        block=2,
        change=dead_head("blocks.1.attn.c_proj", slice(8, 16)),
        at="return self.c_proj(y)",
    ),
    Fault(
        name="unused map",
        model="nano",
        law="gradient",
        block=1,
        edits=(
            (
                "        self.ln_2 = nn.LayerNorm(dim)\n",
                "        self.ln_2 = nn.LayerNorm(dim)\n        self.extra = nn.Linear(dim, dim)\n",
            ),
        ),
        at="self.extra = nn.Linear",
    ),
    Fault(
        name="detached branch",
        model="nano",
        law="gradient",
        block=3,
        edits=(
            ("x = x + self.down(h)", "x = x + (self.down(h).detach() if self.layer == 2 else self.down(h))"),
        ),
    ),
    Fault(
        name="epsilon of one",
        model="nano",
        law="epsilon",
        block=1,
        edits=(("self.ln_1 = nn.LayerNorm(dim)", "self.ln_1 = nn.LayerNorm(dim, eps=1.0)"),),
    ),
    Fault(
        name="queries and keys times eight",
        model="nano",
        law="logits",
        block=2,
        change=times(8.0, "blocks.1.attn.c_attn.weight"),
        at="att = (q @ k.transpose(-2, -1))",
    ),
    Fault(
        name="summed loss",
        model="nano",
        law="start-loss",
        block=None,
        edits=(
            (
                "return F.cross_entropy(logits.reshape(-1, 65), targets)",
                'return F.cross_entropy(logits.reshape(-1, 65), targets, reduction="sum")',
            ),
        ),
        with_loss=True,
    ),
    Fault(
        name="one block several times",
        model="nano",
        law="clones",
        block=2,
        edits=(
            (
                "self.blocks = nn.ModuleList(Block(dim, heads, layer) for layer in range(layers))",
                "self.blocks = nn.ModuleList([Block(dim, heads, 0)] * layers)",
            ),
        ),
    ),
    Fault(
        name="positions not added",
        model="nano",
        law="gradient",
        block=None,
        edits=(("self.wte(idx) + self.wpe(pos)", "self.wte(idx)"),),
    ),
    Fault(
        name="softmax over queries",
        model="classifier",
        law="rows",
        block=2,
        edits=(
            ("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2 if self.layer == 1 else -1)"),
        ),
    ),
    Fault(
        name="padding forgotten",
        model="classifier",
        law="padding",
        block=2,
        edits=(
            (
                "scores = scores.masked_fill(~keep[:, None, None, :], -1e9)",
                "scores = scores if self.layer == 1 else scores.masked_fill(~keep[:, None, None, :], -1e9)",
            ),
        ),
    ),
    Fault(
        name="norm of the batch",
        model="classifier",
        law="batch",
        block=3,
        edits=(
            (
                "x = self.norm1(x + a)",
                "x = F.batch_norm((x + a).mT, None, None, training=True).mT if self.layer == 2 else self.norm1(x + a)",
            ),
        ),
    ),
    Fault(
        name="texts as tokens",
        model="classifier",
        law="batch",
        block=2,
        edits=(
            (
                "        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)",
                "        return x.unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3) if self.layer == 1 else "
                "x.unflatten(-1, (self.heads, -1)).transpose(1, 2)",
            ),
            (
                "scores = scores.masked_fill(~keep[:, None, None, :], -1e9)",
                "scores = scores if self.layer == 1 else scores.masked_fill(~keep[:, None, None, :], -1e9)",
            ),
            (
                "mixed = mixed.transpose(1, 2).flatten(2)",
                "mixed = (mixed.permute(2, 0, 1, 3) if self.layer == 1 else mixed.transpose(1, 2)).flatten(2)",
            ),
        ),
    ),
    Fault(
        name="pooled over padding",
        model="classifier",
        law="padding",
        block=None,
        edits=(("x = x.masked_fill(~keep.unsqueeze(-1), 0.0)", "x = x * 1.0"),),
        line=False,
    ),
    Fault(
        name="dead head",
        model="classifier",
        law="reach",
        block=1,
        change=dead_head("layers.0.attention.out", slice(0, 8)),
        at="return self.out(mixed)",
    ),
    Fault(
        name="no gradient in one branch",
        model="classifier",
        law="gradient",
        block=2,
        edits=(("f = self.feed(x)", "f = self.feed(x).detach() if self.layer == 1 else self.feed(x)"),),
    ),
    Fault(
        name="mask after the softmax",
        model="classifier",
        law="rows",
        block=1,
        edits=(
            (
                "        probs = torch.softmax(scores, dim=-1)\n",
                "        probs = torch.softmax(scores, dim=-1)\n"
                "        probs = probs * keep[:, None, None, :].roll(1, -1)\n",
            ),
        ),
        at="probs = probs * keep",
    ),
    Fault(
        name="causal forgotten",
        model="llama",
        law="causality",
        block=3,
        edits=(("is_causal=True", "is_causal=self.layer != 2"),),
    ),
    Fault(
        name="epsilon of one",
        model="llama",
        law="epsilon",
        block=1,
        edits=(("self.norm2 = RMSNorm(dim)", "self.norm2 = RMSNorm(dim, eps=1.0)"),),
    ),
    Fault(
        name="next token read",
        model="llama",
        law="causality",
        block=2,
        edits=(
            (
                "        h = self.norm2(x)\n",
                "        h = self.norm2(x)\n"
                "        h = torch.cat([h[:, 1:], h[:, :1]], 1) if self.layer == 1 else h\n",
            ),
        ),
        at="h = torch.cat([h[:, 1:]",
    ),
    Fault(
        name="same layer again",
        model="llama",
        law="clones",
        block=2,
        edits=(
            (
                "        for layer in range(layers):\n            self.layers.append(Layer(dim, layer))\n",
                "        import copy\n\n        first = Layer(dim, 0)\n        for _ in range(layers):\n"
                "            self.layers.append(copy.deepcopy(first))\n",
            ),
        ),
        at="self.layers = nn.ModuleList()",
    ),
    Fault(
        name="norm of large numbers",
        model="llama",
        law="precision",
        block=2,
        edits=(
            (
                "        h = self.norm2(x)\n",
                "        h = self.norm2(x)\n        h = (h + 1e4) - 1e4 if self.layer == 1 else h\n",
            ),
        ),
        at="h = (h + 1e4) - 1e4",
    ),
    Fault(
        name="loss times ten",
        model="llama",
        law="start-loss",
        block=None,
        edits=(("logits[:, :-1].flatten(0, 1)", "30 * logits[:, :-1].flatten(0, 1)"),),
        with_loss=True,
    ),
    Fault(
        name="padding not passed on",
        model="multihead",
        law="padding",
        block=3,
        edits=(
            (
                "x = block(x, None, key_padding_mask)",
                "x = block(x) if number == 2 else block(x, None, key_padding_mask)",
            ),
        ),
    ),
    Fault(
        name="texts as tokens",
        model="multihead",
        law="batch",
        block=1,
        edits=(
            ("batch_first=True", "batch_first=False"),
            ("padding=None):\n", "padding=None):\n        padding = None\n"),
        ),
        at="self.attn = nn.MultiheadAttention(",
    ),
    Fault(
        name="softmax over queries",
        model="einsum",
        law="rows",
        block=2,
        edits=(("dots.softmax(dim=-1)", "dots.softmax(dim=-2 if self.number == 1 else -1)"),),
    ),
    Fault(
        name="mask off by one",
        model="einsum",
        law="causality",
        block=4,
        edits=(("i[None, :] > i[:, None]", "i[None, :] > i[:, None] + (self.number == 3)"),),
    ),
    Fault(
        name="mean over texts",
        model="einsum",
        law="batch",
        block=3,
        edits=(
            (
                "        h = self.norm(x)\n",
                "        h = self.norm(x)\n        h = h - h.mean(0) if self.number == 2 else h\n",
            ),
        ),
        at="h = h - h.mean(0)",
    ),
    Fault(
        name="random inside",
        model="einsum",
        law="deterministic",
        block=2,
        edits=(
            (
                "out = out.reshape(b, n, d)",
                "out = out.reshape(b, n, d) + 0.1 * (self.number == 1) * torch.randn(b, n, d)",
            ),
        ),
    ),
    Fault(
        name="logits without scale",
        model="einsum",
        law="logits",
        block=1,
        edits=(("* q.shape[-1] ** -0.5", "* q.shape[-1] ** 2"),),
    ),
    Fault(
        name="teacher is student",
        model="distil",
        law="clones",
        block=None,
        edits=(("self.teacher = Tower()", "self.teacher = self.student"),),
    ),
    Fault(
        name="teacher copies student",
        model="distil",
        law="clones",
        block=None,
        edits=(("self.teacher = Tower()", "self.teacher = __import__('copy').deepcopy(self.student)"),),
    ),
    Fault(
        name="torch's copies",
        model="distil",
        law="clones",
        block=2,
        edits=(
            (
                "        self.layers = nn.ModuleList(\n            nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.1, "
                "batch_first=True) for _ in range(layers)\n        )\n",
                "        one = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.1, batch_first=True)\n"
                "        self.layers = nn.TransformerEncoder(one, layers, enable_nested_tensor=False).layers\n",
            ),
        ),
        at="self.layers = nn.TransformerEncoder(",
    ),
    Fault(
        name="mask of the model off by one",
        model="multihead",
        law="causality",
        block=1,
        edits=(
            (
                "        t = ids.shape[1]\n",
                "        t = ids.shape[1]\n        mask = torch.triu(torch.ones(t, t), diagonal=2).bool()\n",
            ),
            ("x = block(x, None, key_padding_mask)", "x = block(x, mask, key_padding_mask)"),
        ),
        at="mask = torch.triu(",
    ),
    Fault(
        name="mask not passed on",
        model="multihead",
        law="causality",
        block=2,
        edits=(
            (
                "x = block(x, None, key_padding_mask)",
                "x = block(x, None if number == 1 else mask, key_padding_mask)",
            ),
            (
                "        t = ids.shape[1]\n",
                "        t = ids.shape[1]\n        mask = torch.triu(torch.ones(t, t), diagonal=1).bool()\n",
            ),
        ),
    ),
    Fault(
        name="first row masked by a number",
        model="nano",
        law="rows",
        block=1,
        edits=(
            ("torch.tril(torch.ones(32, 32))", "torch.tril(torch.ones(32, 32), diagonal=-1)"),
            ('float("-inf")', "-1e9"),
        ),
    ),
    Fault(
        name="causal forgotten everywhere",
        model="llama",
        law="causality",
        block=1,
        edits=(
            ("is_causal=True", "is_causal=False"),
            ("class Decoder(", "class Reader("),
            ("return Decoder()", "return Reader()"),
        ),
        with_loss=True,
    ),
    Fault(
        name="mask made and not used",
        model="multihead",
        law="causality",
        block=1,
        edits=(
            ("attn_mask=mask", "attn_mask=None"),
            (
                "        t = ids.shape[1]\n",
                "        t = ids.shape[1]\n        mask = torch.triu(torch.ones(t, t), diagonal=1).bool()\n",
            ),
            ("x = block(x, None, key_padding_mask)", "x = block(x, mask, key_padding_mask)"),
        ),
    ),
    Fault(
        name="mask upside down",
        model="einsum",
        law="causality",
        block=1,
        edits=(("i[None, :] > i[:, None]", "i[None, :] < i[:, None]"),),
    ),
    Fault(
        name="product over queries",
        model="einsum",
        law="rows",
        block=3,
        edits=(
            (
                'out = einsum("bhij,bjhd->bihd", attn, v)',
                'out = einsum("bhji,bjhd->bihd" if self.number == 2 else "bhij,bjhd->bihd", attn, v)',
            ),
        ),
    ),
    Fault(
        name="values left out",
        model="einsum",
        law="gradient",
        block=2,
        edits=(
            (
                "q, k, v = self.qkv(h).reshape(b, n, 3, self.heads, -1).unbind(2)",
                "q, k, v = self.qkv(h).view(b, n, 3, self.heads, -1).unbind(2)",
            ),
            (
                'out = einsum("bhij,bjhd->bihd", attn, v)',
                'out = einsum("bhij,bjhd->bihd", attn, k if self.number == 1 else v)',
            ),
        ),
    ),
    Fault(
        name="values of the next text",
        model="einsum",
        law="batch",
        block=3,
        edits=(
            (
                "        dots = einsum(",
                "        v = v.roll(1, 0) if self.number == 2 else v\n        dots = einsum(",
            ),
        ),
    ),
)
