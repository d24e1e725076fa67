"""How a remedy is written: the model's own lines before and after, with its own names.

The source of the block is read, and of the parts inside it, as Python's syntax tree. A line is rewritten only where the
rewriting is certain: the sum and the norm stand on it, or on two lines of one method, and every name on it is one that
the code already uses. Everything else gets the line as it stands and the general form beside it, marked as such. Names
that a remedy adds to a model (a new parameter) are said to be new.
"""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from rankscope.core.words import number
from rankscope.findings.remedies import Kind, Remedies, Remedy
from rankscope.findings.tree import SourceLine
from rankscope.network import Network, Skip
from rankscope.network.parts import flat
from rankscope.sources.operations.graph import Line
from rankscope.sources.roles import block_width, is_attention, is_mlp, is_norm, leaf

SWITCHES = ("do_layer_norm_before", "do_stable_layer_norm", "pre_norm", "normalize_before")
"""Entries of configurations of transformers that move the norms before the sublayers, where they are False."""

PRE_CLASSES = {"roberta": "RobertaPreLayerNorm"}
"""Model types without such an entry that have a pre-norm twin: the start of the names of its classes."""

QUERY_KEY = ("q", "k", "query", "key", "q_proj", "k_proj", "wq", "wk", "to_q", "to_k")
"""Names of maps that make queries or keys alone."""

GENERAL: dict[Kind, str] = {
    "placement": "x = x + sublayer(norm(x))  # in place of x = norm(x + sublayer(x))",
    "branch-scale": "x = x + {factor} * sublayer(x)",
    "skip-scale": "x = {factor} * x + sublayer(x)",
    "skip": "x = x + sublayer(x)",
    "deepnorm": "x = norm({factor} * x + sublayer(x))  # and value, output and MLP weights times {gain} at the start",
    "layerscale": "x = x + scale * sublayer(x)  # new, in __init__: scale = nn.Parameter(torch.full(({dim},), 1e-4))",
    "redraw": "blocks = nn.ModuleList(make_block() for _ in range({layers}))  # not copies of one block",
    "bias": "nn.init.zeros_(linear.bias)  # of what writes into the stream",
    "gain": "nn.init.ones_(norm.weight)",
    "temperature": "attention = softmax(logits / {factor})",
    "qk-norm": "q, k = q_norm(q), k_norm(k)  # new, in __init__: nn.RMSNorm(head_dim) each",
    "mask": "far = (place[:, None] - place[None, :]).abs() > {window}  # True: not read; joined with the mask by |",
    "several": "",
}
"""What to write where the model's own line cannot be rewritten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Code of a remedy: the lines as they stand, what to write, where, and whether that is the general form."""

    code: str
    before: str = ""
    line: SourceLine | None = None
    is_general: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A model whose code recipes are written for.

    Args:
        model: the live model.
        blocks: paths of its blocks.
        dim: channels of the stream.
        sums: how often the stream is added to in a block, by its tree; None where there is none. Lines that are found
            in the source are only rewritten if they are as many.
    """

    model: nn.Module
    blocks: tuple[str, ...]
    dim: int
    sums: int | None = None

    @property
    def block(self) -> nn.Module:
        return self.model.get_submodule(self.blocks[0])

    @property
    def holder(self) -> str:
        """The list that holds the blocks, as an expression; the first block where they stand in none."""
        path = self.blocks[0].rpartition(".")[0]
        return _expression("model", path) if path else "model"


def with_recipes(found: Remedies, written: Written | None) -> Remedies:
    """Remedies with their code; without a model the general forms."""
    layers = None if written is None else len(written.blocks)

    def coded(one: Remedy) -> Remedy:
        recipe = recipe_of(one, written, layers=layers)
        told = {
            "code": recipe.code,
            "code_before": recipe.before,
            "line": recipe.line,
            "is_general": recipe.is_general,
        }
        return one.model_copy(update=told)

    return found.model_copy(
        update={"advised": tuple(map(coded, found.advised)), "dropped": tuple(map(coded, found.dropped))}
    )


def recipe_of(remedy: Remedy, written: Written | None, *, layers: int | None = None) -> Recipe:
    """The code of one remedy for a model, or its general form."""
    if remedy.kind == "several":
        kinds: dict[str, Kind] = {kind: kind for kind in GENERAL}
        parts = [
            recipe_of(
                remedy.model_copy(update={"name": name, "kind": kinds[name.partition(":")[0]]}),
                written,
                layers=layers,
            )
            for name in remedy.name.split(" + ")
        ]
        return Recipe(
            code="\n".join(one.code for one in parts),
            before="\n".join(one.before for one in parts if one.before),
            line=next((one.line for one in parts if one.line is not None), None),
            is_general=any(one.is_general for one in parts),
        )
    general = _general(remedy, written, layers)
    if written is None:
        return general
    for way in (_of_library, _of_parameters, _of_lines):
        found = way(remedy, written)
        if found is not None:
            return found
    place = _sum_lines(written.block)
    if place and remedy.kind in ("placement", "branch-scale", "skip-scale", "layerscale", "deepnorm"):
        return Recipe(
            code=general.code,
            before="\n".join(dict.fromkeys(one.text for one in place)),
            line=place[0].line,
            is_general=True,
        )
    return general


def _general(remedy: Remedy, written: Written | None, layers: int | None) -> Recipe:
    dim = "dim" if written is None else written.dim
    count = layers or "layers"
    gain = number((8 * layers) ** -0.25) if layers else "(8 * layers) ** -0.25"
    factor = "factor" if remedy.factor is None else number(remedy.factor)
    window = 16 if remedy.factor is None else int(remedy.factor)
    form = GENERAL[remedy.kind]
    if remedy.kind == "redraw" and written is not None:
        form = (
            f"{written.holder} = nn.ModuleList({type(written.block).__name__}(...) for _ in range({count}))"
        )
        return Recipe(code=f"{form}  # not copies of one block", is_general=True)
    return Recipe(
        code=form.format(factor=factor, dim=dim, layers=count, gain=gain, window=window), is_general=True
    )


# --------------------------------------------------------------------------------------------- libraries by their names


def _of_library(remedy: Remedy, written: Written) -> Recipe | None:
    block, config = written.block, getattr(written.model, "config", None)
    if isinstance(block, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        if remedy.kind == "placement":
            return Recipe(
                code=_torch_layer(block, norm_first=True), before=_torch_layer(block, norm_first=False)
            )
        if remedy.kind == "redraw":
            layer = _torch_layer(block, norm_first=block.norm_first)
            kind = type(block).__name__.removesuffix("Layer")
            return Recipe(
                code=f"{written.holder} = nn.ModuleList({layer} for _ in range({len(written.blocks)}))",
                before=f"nn.{kind}({layer}, {len(written.blocks)})",
            )
    if remedy.kind == "placement" and config is not None:
        switch = next((name for name in SWITCHES if getattr(config, name, None) is False), None)
        kind = type(config).__name__
        if switch is not None:
            return Recipe(code=f"{kind}({switch}=True)", before=f"{kind}({switch}=False)")
        start = PRE_CLASSES.get(str(getattr(config, "model_type", "")))
        if start is not None:
            own = type(written.model).__name__
            old = kind.removesuffix("Config")
            return Recipe(code=f"{own.replace(old, start, 1)}({start}Config())", before=f"{own}({kind}())")
    return None


def _torch_layer(block: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, *, norm_first: bool) -> str:
    """The call that makes the layer, settings that differ from torch's own among them."""
    attention = block.self_attn
    told = [str(attention.embed_dim), str(attention.num_heads)]
    told += [f"dim_feedforward={block.linear1.out_features}"] if block.linear1.out_features != 2048 else []
    told += [f"dropout={block.dropout.p:g}"] if block.dropout.p != 0.1 else []
    activation = getattr(block.activation, "__name__", type(block.activation).__name__.lower())
    told += [f'activation="{activation}"'] if activation not in ("relu",) else []
    told += ["batch_first=True"] if attention.batch_first else []
    return f"nn.{type(block).__name__}({', '.join([*told, f'norm_first={norm_first}'])})"


# -------------------------------------------------------------------------------------------- parameters by their names


def _of_parameters(remedy: Remedy, written: Written) -> Recipe | None:
    """Changes that are made to weights after the model is built, by the paths that the block has."""
    block, lines = written.block, list[str]()
    if remedy.kind == "bias":
        lines = [f"nn.init.zeros_({_expression('block', path)})" for path in bias_paths(block, remedy.sites)]
    elif remedy.kind == "gain":
        for path, part in block.named_modules():
            if path and is_norm(leaf(path), part) and isinstance(getattr(part, "weight", None), nn.Parameter):
                lines.append(f"nn.init.ones_({_expression('block', f'{path}.weight')})")
    elif remedy.kind == "branch-scale" and isinstance(
        block, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
    ):
        factor = number(remedy.factor)
        outs = [name for name in ("self_attn", "multihead_attn") if hasattr(block, name)]
        paths = [*(f"{name}.out_proj" for name in outs), "linear2"]
        for path in paths:
            lines += [f"block.{path}.weight.data.mul_({factor})", f"block.{path}.bias.data.mul_({factor})"]
    if not lines:
        return None
    return Recipe(code="\n".join([f"for block in {written.holder}:", *(f"    {line}" for line in lines)]))


def _expression(owner: str, path: str) -> str:
    """A path as Python writes it: entries of a list in brackets.

    >>> _expression("block", "ff.0.bias")
    'block.ff[0].bias'
    """
    return owner + "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in path.split("."))


def bias_paths(block: nn.Module, sites: Sequence[str]) -> list[str]:
    """Biases that write into the stream, by site; those of queries and keys alone do not."""
    found = []
    for path, held in block.named_parameters():
        owner, _, name = path.rpartition(".")
        if name != "bias" or held.ndim != 1 or leaf(owner).lower() in QUERY_KEY:
            continue
        heads = [".".join(path.split(".")[:depth]) for depth in range(1, path.count(".") + 1)]
        if is_norm(leaf(owner), block.get_submodule(owner)):
            site = "norm"
        elif any(is_attention(leaf(head), block.get_submodule(head)) for head in heads):
            site = "attention"
        else:
            site = "mlp"
        if site in sites or (not sites and site != "norm"):
            found.append(path)
    return found


# -------------------------------------------------------------------------------------------------- lines of the source


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a method, with the module whose method it is."""

    node: ast.stmt
    owner: nn.Module
    body: list[ast.stmt]
    place: int
    file: str
    number: int
    source: str

    @property
    def text(self) -> str:
        """As it stands, on one line."""
        return " ".join((ast.get_source_segment(self.source, self.node) or ast.unparse(self.node)).split())

    @property
    def line(self) -> SourceLine:
        return Line(self.file, self.number, self.text).told


@dataclass(frozen=True, slots=True)
class Added:
    """A sum ``skip + branch`` in a statement, and the norm around it where there is one."""

    where: Statement
    skip: ast.expr
    branch: ast.expr
    norm: ast.expr | None

    @property
    def skip_name(self) -> str | None:
        return self.skip.id if isinstance(self.skip, ast.Name) else None


def _of_lines(remedy: Remedy, written: Written) -> Recipe | None:
    makers: dict[Kind, Callable[[Added], list[tuple[Statement, str]] | None]] = {
        "placement": _pre,
        "branch-scale": lambda one: _scaled_branch(one, number(remedy.factor)),
        "skip-scale": lambda one: _scaled_skip(one, number(remedy.factor)),
        "deepnorm": lambda one: _scaled_skip(one, number(remedy.factor)) if one.norm is not None else None,
    }
    block = written.block
    if remedy.kind in (*makers, "layerscale") and not _are_all(block, written.sums):
        return None
    if remedy.kind in makers:
        found = _rewritten(_sums(block), makers[remedy.kind])
        if found is None or remedy.kind != "deepnorm":
            return found
        gain = number((8 * len(written.blocks)) ** -0.25)
        start = f"# at the start: value, output and MLP weights times {gain}"
        return replace(found, code=f"{found.code}\n{start}")
    if remedy.kind == "layerscale":
        return _layerscale(block, written.dim)
    if remedy.kind == "skip":
        return _skips(block)
    if remedy.kind == "temperature":
        return _temperature(block, number(remedy.factor))
    return None


def _are_all(block: nn.Module, sums: int | None) -> bool:
    """Whether the sums that the source shows are those that ran: as many, a class that is used twice counted twice."""
    if sums is None:
        return True
    parts = [type(part) for part in block.modules()]
    return sum(parts.count(type(one.where.owner)) for one in _sums(block)) == sums


def _rewritten(
    sums: Sequence[Added], make: Callable[[Added], list[tuple[Statement, str]] | None]
) -> Recipe | None:
    """All sums of a block rewritten, or nothing: half a remedy is none."""
    done = [make(one) for one in sums]
    if not done or any(one is None for one in done):
        return None
    pairs = list(dict.fromkeys((pair[0].text, pair[1]) for one in done if one is not None for pair in one))
    first = next(pair[0] for one in done if one is not None for pair in one)
    return Recipe(
        code="\n".join(after for _, after in pairs if after),
        before="\n".join(before for before, _ in pairs),
        line=first.line,
    )


def _methods(block: nn.Module) -> Iterator[Statement]:
    """Every statement of the methods of a block and of the modules inside it, classes of torch's parts left out."""
    seen = set[type]()
    for path, part in block.named_modules():
        kind = type(part)
        if kind in seen or (path and kind.__module__.startswith("torch.")):
            continue
        seen.add(kind)
        for name, method in vars(kind).items():
            if not inspect.isfunction(method) or name == "__init__":
                continue
            try:
                lines, start = inspect.getsourcelines(method)
                source = textwrap.dedent("".join(lines))
                tree = ast.parse(source)
            except (OSError, TypeError, SyntaxError, IndentationError):
                continue
            file = inspect.getsourcefile(method) or ""
            yield from _statements(tree.body, part, file, start - 1, source)


def _statements(
    body: list[ast.stmt], owner: nn.Module, file: str, offset: int, source: str
) -> Iterator[Statement]:
    for place, node in enumerate(body):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.AnnAssign):
            yield Statement(node, owner, body, place, file, offset + node.lineno, source)
        taken = _taken(node, owner)
        for name in ("body", "orelse", "finalbody") if taken is None else (taken,):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                yield from _statements(inner, owner, file, offset, source)


def _taken(node: ast.stmt, owner: nn.Module) -> str | None:
    """Which branch of ``if self.norm_first:`` this module takes; None where the condition is another one."""
    if not isinstance(node, ast.If):
        return None
    test, is_turned = node.test, False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, is_turned = test.operand, True
    is_own = isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name) and test.value.id == "self"
    held = getattr(owner, test.attr, None) if isinstance(test, ast.Attribute) and is_own else None
    if not isinstance(held, bool):
        return None
    return "body" if held is not is_turned else "orelse"


def _sum_lines(block: nn.Module) -> list[Statement]:
    """Where the stream is added to; where that is not certain, where a name and a call are added."""
    return [one.where for one in _sums(block)] or list(filter(_may_add, _methods(block)))


def _may_add(statement: Statement) -> bool:
    value = getattr(statement.node, "value", None)
    for node in ast.walk(value) if isinstance(value, ast.expr) else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = (node.left, node.right)
            calls = [one for one in sides if isinstance(one, ast.Call)]
            if len(calls) == 1 and any(isinstance(one, ast.Name) for one in sides):
                return True
    return False


def _sums(block: nn.Module) -> list[Added]:
    """Sums of a stream and a branch: a name and an expression that calls a module, or two names."""
    found = []
    for statement in _methods(block):
        one = _added(statement)
        if one is not None:
            found.append(one)
    return found


def _added(statement: Statement) -> Added | None:
    node = statement.node
    if isinstance(node, ast.AugAssign):
        if (
            isinstance(node.op, ast.Add)
            and isinstance(node.target, ast.Name)
            and _calls(statement, node.value)
        ):
            return Added(statement, ast.Name(node.target.id, ast.Load()), node.value, None)
        return None
    value = node.value if isinstance(node, ast.Assign | ast.Return | ast.AnnAssign) else None
    norm = None
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        held = _module(statement.owner, value.func)
        if held is not None and is_norm(leaf(ast.unparse(value.func)), held):
            norm, value = value.func, value.args[0]
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    left, right = value.left, value.right
    for skip, branch in ((left, right), (right, left)):
        if isinstance(skip, ast.Name) and _calls(statement, branch):
            return Added(statement, skip, branch, norm)
    for skip, branch in ((left, right), (right, left)):
        if isinstance(skip, ast.Name) and isinstance(branch, ast.Name) and _made_by(statement, branch.id):
            return Added(statement, skip, branch, norm)
    return None


def _calls(statement: Statement, expression: ast.expr) -> bool:
    """Whether an expression calls a module of the owner that is no norm and no dropout, or one of its methods."""
    for node in ast.walk(expression):
        if not isinstance(node, ast.Call):
            continue
        held = _module(statement.owner, node.func)
        if held is not None:
            name = leaf(ast.unparse(node.func))
            if not is_norm(name, held) and any(True for _ in held.parameters()):
                return True
        elif _is_own_method(statement.owner, node.func):
            return True
    return False


def _is_own_method(owner: nn.Module, function: ast.expr) -> bool:
    if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
        return False
    return function.value.id == "self" and inspect.isfunction(getattr(type(owner), function.attr, None))


def _module(owner: nn.Module, function: ast.expr) -> nn.Module | None:
    """The module that ``self.a.b`` names."""
    names = list[str]()
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    if not (isinstance(function, ast.Name) and function.id == "self" and names):
        return None
    found: object = owner
    for name in reversed(names):
        found = getattr(found, name, None)
    return found if isinstance(found, nn.Module) else None


def _made_by(statement: Statement, name: str) -> Statement | None:
    """The last statement before, in the same body, that gives a name its value by calling a module with weights.

    What only passes the value on (``h = self.dropout(h)``) is looked through.
    """
    for place in range(statement.place - 1, -1, -1):
        node = statement.body[place]
        if isinstance(node, ast.Assign) and name in _targets(node):
            made = _at(statement, node, place)
            if _calls(made, node.value):
                return made
            if name not in _reads(node.value):
                return None
    return None


def _at(statement: Statement, node: ast.stmt, place: int) -> Statement:
    """Another statement of the same body."""
    number = statement.number - statement.node.lineno + node.lineno
    return Statement(node, statement.owner, statement.body, place, statement.file, number, statement.source)


def _reads(expression: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(expression) if isinstance(one, ast.Name)}


def _targets(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        one.id
        for target in targets
        if target is not None
        for one in ast.walk(target)
        if isinstance(one, ast.Name)
    }


class _Put(ast.NodeTransformer):
    """Another expression in place of every reading of a name."""

    def __init__(self, name: str, other: ast.expr) -> None:
        self.name, self.other, self.count = name, other, 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id != self.name or not isinstance(node.ctx, ast.Load):
            return node
        self.count += 1
        return copy.deepcopy(self.other)


def _put(expression: ast.expr, name: str, other: ast.expr) -> ast.expr | None:
    """The expression with a name replaced; None where it does not read it."""
    put = _Put(name, other)
    done = put.visit(copy.deepcopy(expression))
    return done if put.count else None


def _with_value(node: ast.stmt, value: ast.expr) -> str:
    twin = copy.deepcopy(node)
    if isinstance(twin, ast.AugAssign):
        return f"{ast.unparse(twin.target)} = {ast.unparse(value)}"
    twin.value = value  # type: ignore[attr-defined]  # assignments and returns have one
    return ast.unparse(ast.fix_missing_locations(twin))


def _pre(one: Added) -> list[tuple[Statement, str]] | None:
    """``x = norm(x + F(x))`` becomes ``x = x + F(norm(x))``."""
    name, norm, where = one.skip_name, one.norm, one.where
    if name is None:
        return None
    after: Statement | None = None
    if norm is None:  # the norm may stand on the next line
        after = _norm_after(where, name)
        if after is None:
            return None
        norm = after.node.value.func  # type: ignore[attr-defined]  # it is an assignment of a call
    reads = ast.Call(norm, [ast.Name(name, ast.Load())], [])
    inside = _put(one.branch, name, reads)
    if inside is not None:
        total = ast.BinOp(ast.Name(name, ast.Load()), ast.Add(), inside)
        done = [(where, _with_value(where.node, total))]
        return done if after is None else [*done, (after, "")]
    # the branch was computed on a line before
    names = [node.id for node in ast.walk(one.branch) if isinstance(node, ast.Name) and node.id != "self"]
    made = [found for branch in names if (found := _made_by(where, branch)) is not None]
    if len(made) != 1 or _is_given_between(made[0], where, name):
        return None
    between = where.body[made[0].place + 1 : where.place]
    if any(_targets(node) & set(names) for node in between if isinstance(node, ast.Assign | ast.AugAssign)):
        return None  # something else happens to the branch on the way
    inside = _put(made[0].node.value, name, reads)  # type: ignore[attr-defined]  # it is an assignment
    if inside is None:
        return None
    total = ast.BinOp(ast.Name(name, ast.Load()), ast.Add(), one.branch)
    done = [(made[0], _with_value(made[0].node, inside)), (where, _with_value(where.node, total))]
    return done if after is None else [*done, (after, "")]


def _norm_after(where: Statement, name: str) -> Statement | None:
    if where.place + 1 >= len(where.body) or _targets(where.node) != {name}:
        return None
    node = where.body[where.place + 1]
    is_call = isinstance(node, ast.Assign | ast.Return) and isinstance(node.value, ast.Call)
    if not isinstance(node, ast.Assign) or not is_call or _targets(node) != {name}:
        return None
    call = node.value
    if not isinstance(call, ast.Call) or len(call.args) != 1 or ast.unparse(call.args[0]) != name:
        return None
    held = _module(where.owner, call.func)
    if held is None or not is_norm(leaf(ast.unparse(call.func)), held):
        return None
    return _at(where, node, where.place + 1)


def _is_given_between(first: Statement, last: Statement, name: str) -> bool:
    between = last.body[first.place : last.place]
    return any(name in _targets(node) for node in between if isinstance(node, ast.Assign | ast.AugAssign))


def _times(factor: str, expression: ast.expr) -> ast.expr:
    return ast.BinOp(ast.parse(factor, mode="eval").body, ast.Mult(), expression)


def _scaled_branch(one: Added, factor: str) -> list[tuple[Statement, str]]:
    total: ast.expr = ast.BinOp(one.skip, ast.Add(), _times(factor, one.branch))
    total = total if one.norm is None else ast.Call(one.norm, [total], [])
    return [(one.where, _with_value(one.where.node, total))]


def _scaled_skip(one: Added, factor: str) -> list[tuple[Statement, str]]:
    total: ast.expr = ast.BinOp(_times(factor, one.skip), ast.Add(), one.branch)
    total = total if one.norm is None else ast.Call(one.norm, [total], [])
    return [(one.where, _with_value(one.where.node, total))]


def _layerscale(block: nn.Module, dim: int) -> Recipe | None:
    sums = _sums(block)
    lines, names = [], list[str]()
    for place, one in enumerate(sums, start=1):
        name = f"layer_scale_{place}" if len(sums) > 1 else "layer_scale"
        if hasattr(one.where.owner, name):
            return None
        names.append(name)
        lines.append((one.where, _scaled_branch(one, f"self.{name}")[0][1]))
    if not lines:
        return None
    new = [f"self.{name} = nn.Parameter(torch.full(({dim},), 1e-4))  # new, in __init__" for name in names]
    return Recipe(
        code="\n".join([*new, *(after for _, after in lines)]),
        before="\n".join(where.text for where, _ in lines),
        line=lines[0][0].line,
    )


def _skips(block: nn.Module) -> Recipe | None:
    """``x = self.attn(x)`` becomes ``x = x + self.attn(x)``, for attentions and MLPs that nothing is added to."""
    found = []
    for statement in _methods(block):
        node = statement.node
        if not isinstance(node, ast.Assign) or _added(statement) is not None:
            continue
        names = _targets(node)
        reads = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        parts = [
            _module(statement.owner, call.func) for call in ast.walk(node.value) if isinstance(call, ast.Call)
        ]
        kinds = [
            part
            for part in parts
            if part is not None and (is_attention("", part) or is_mlp("mlp", part, block))
        ]
        if len(names) == 1 and names <= reads and kinds and isinstance(node.targets[0], ast.Name):
            total = ast.BinOp(ast.Name(next(iter(names)), ast.Load()), ast.Add(), node.value)
            found.append((statement, _with_value(node, total)))
    if not found:
        return None
    return Recipe(
        code="\n".join(after for _, after in found),
        before="\n".join(where.text for where, _ in found),
        line=found[0][0].line,
    )


def _temperature(block: nn.Module, factor: str) -> Recipe | None:
    """Logits divided before the softmax, or queries before a fused attention."""
    for statement in _methods(block):
        twin = copy.deepcopy(statement.node)
        for call in ast.walk(twin):
            if not isinstance(call, ast.Call):
                continue
            name = leaf(ast.unparse(call.func))
            divided: ast.expr | None = None
            if name in ("softmax", "scaled_dot_product_attention"):
                is_method = name == "softmax" and isinstance(call.func, ast.Attribute)
                home = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
                if is_method and home not in ("F", "torch", "nn.functional", "torch.nn.functional", "self"):
                    divided = call.func.value  # type: ignore[attr-defined]  # an attribute has one
                    by = ast.parse(factor, mode="eval").body
                    call.func.value = ast.BinOp(divided, ast.Div(), by)  # type: ignore[attr-defined]
                elif call.args:
                    divided = call.args[0]
                    call.args[0] = ast.BinOp(divided, ast.Div(), ast.parse(factor, mode="eval").body)
            if divided is not None:
                code = ast.unparse(ast.fix_missing_locations(twin))
                return Recipe(code=code, before=statement.text, line=statement.line)
    return None


def written_of(model: nn.Module, blocks: Sequence[str], network: Network | None = None) -> Written:
    """A model for whose code recipes are written; of its tree, where there is one, the sums of a block are counted."""
    width = block_width(model.get_submodule(blocks[0]))
    sums = None
    if network is not None:
        first = next(iter(network.blocks))
        sums = sum(isinstance(part, Skip) for part in flat(first))
    return Written(model=model, blocks=tuple(blocks), dim=width or 0, sums=sums)
