"""What a module is, read from its class, its name and its parameters: norm, linear map, attention, MLP, list."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from torch import nn

NORM = re.compile(r"norm(?!al)|(^|_)ln(_|\d|$)", re.IGNORECASE)
ATTENTION = re.compile(r"attention|attn|(^|_)(mha|msa|mhsa|sa)(_|$)|multihead", re.IGNORECASE)
CROSS = re.compile(
    r"cross|enc_?dec|encoder_(decoder_)?att|(src|memory|context|inter)_?att|xatt", re.IGNORECASE
)
MLP = re.compile(r"mlp|feed_?forward|ffn|ffw|(^|_)ff(_|\d|$)|moe|glu|experts|(?-i:FF$)", re.IGNORECASE)
MIXER = re.compile(
    r"mixer|mamba|ssm|rwkv|fourier|recurrent|lstm|hyena|retention|token_?mix|time_?mix|(mlp|linear)_token",
    re.IGNORECASE,
)
QUERY_KEY_VALUE = re.compile(
    r"^((to|w|in_proj|proj(ect(ion)?)?|linear|lin|fc)_?)?"
    r"(?P<kind>q|k|v|qk|kv|qkv|qkvz|quer(y|ies)|keys?|values?|query_key_value|c_attn)(_|\d|$)|^w?qkv|^in_proj$",
    re.IGNORECASE,
)
OUT = re.compile(
    r"^(att(n|ention)_|c_|to_?|w_?)?(o|out|output|proj|projection|dense)(_?(proj|projection|lin|linear|layer|dense))?$"
    r"|^(proj|linear|lin|fc)_?o(ut)?$|^unify_?heads$",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def _is_found(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a name holds a pattern: the same few names are asked about at every pass of a model."""
    return pattern.search(name) is not None


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Named children, repeats included: ``named_children`` hides a block that is shared."""
    return ((name, child) for name, child in module._modules.items() if child is not None)


def every_module(model: nn.Module) -> list[nn.Module]:
    """The model and all modules inside, each once: as ``model.modules()``, which takes some times as long.

    Models are run dozens of times while they are read, and all their modules are looked at before each.
    """
    found: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found)


def descendants(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module strictly inside, with its path, in order of registration."""
    for name, child in children(module):
        path = f"{prefix}.{name}" if prefix else name
        yield path, child
        yield from descendants(child, path)


def is_list(module: nn.Module) -> bool:
    """Whether a module only holds others in order."""
    return isinstance(module, nn.ModuleList | nn.Sequential)


def is_callable(module: nn.Module) -> bool:
    """Whether a module has a forward pass of its own, so that a hook on it can fire."""
    return not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)


def features(module: nn.Module) -> tuple[int, int] | None:
    """Width in and out of a linear map on tokens, None for anything else.

    Wrapped and quantized linear maps keep the two attributes of ``nn.Linear``; ``nf`` belongs to the transposed linear
    map of GPT-2.

    >>> features(nn.Linear(3, 5)), features(nn.Conv1d(3, 5, 1))
    ((3, 5), None)
    """
    weight = getattr(module, "weight", None)
    if weight is None:
        return None
    width_in, width_out = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if isinstance(width_in, int) and isinstance(width_out, int):
        return width_in, width_out
    if isinstance(getattr(module, "nf", None), int) and weight.dim() == 2:
        return int(weight.shape[0]), int(weight.shape[1])
    return None


def linears(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """Paths and widths of the linear maps inside, in order of registration; norms are left out."""
    for name, child in children(module):
        path = f"{prefix}.{name}" if prefix else name
        width = features(child)
        if width is not None:
            yield path, width
        elif not is_norm(name, child):
            yield from linears(child, path)


def matrices(module: nn.Module) -> int:
    """Number of matrices (or stacks of them) among the parameters; biases, gains and convolutions do not count."""
    return sum(
        parameter.dim() in (2, 3)
        for part in module.modules()
        if not isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        for parameter in part.parameters(recurse=False)
    )


def is_norm(name: str, module: nn.Module) -> bool:
    """Whether a module normalises tokens, by class or name; if it holds matrices, by the end of its class name alone.

    A norm conditioned on something has one or two matrices; ``RobertaPreLayerNormSelfOutput`` is no norm, and a
    ``PreNorm`` around a sublayer is none either.
    """
    kind = type(module).__name__
    if not (_is_found(NORM, kind) or _is_found(NORM, name)):
        return False
    if isinstance(module, nn.Identity | nn.Dropout) or is_list(module) or features(module) is not None:
        return False
    count = matrices(module)
    if count:
        return count <= 2 and bool(re.search(r"(?<!pre)(?<!post)norm$", kind, re.IGNORECASE))
    return not _has_convolution(module)


def _has_convolution(module: nn.Module) -> bool:
    return any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in module.modules())


def norm_width(module: nn.Module) -> int | None:
    """Number of channels a norm scales, None if it has no gain."""
    return next((parameter.numel() for parameter in module.parameters() if parameter.dim() == 1), None)


def block_width(block: nn.Module) -> int | None:
    """The model dimension, from the outermost norms of a block, else from its linear maps.

    Norms of queries and keys do not count, nor do those deeper inside: mixers norm their inner channels.
    """
    norms = [
        (path.count("."), width)
        for path, part in descendants(block)
        if is_norm(leaf(path), part) and not _is_found(QUERY_KEY_VALUE, leaf(path))
        if (width := norm_width(part)) is not None
    ]
    outermost = min((depth for depth, _ in norms), default=0)
    widths = Counter(width for depth, width in norms if depth == outermost)
    if not widths:
        widths = Counter(width for _, pair in linears(block) for width in pair)
    return widths.most_common(1)[0][0] if widths else None


def leaf(path: str) -> str:
    """The last name of a path.

    >>> leaf("encoder.layer.0")
    '0'
    """
    return path.rpartition(".")[2]


def own_class(module: nn.Module, owner: nn.Module) -> str:
    """The class name of a module without the model's name that it shares with its owner's.

    ``Qwen3MoeAttention`` inside ``Qwen3MoeDecoderLayer`` is an ``Attention``: the prefix says nothing about its role.
    """
    name, other = type(module).__name__, type(owner).__name__
    shared = 0
    while shared < min(len(name), len(other)) and name[shared] == other[shared]:
        shared += 1
    while 0 < shared < len(name) and not name[shared].isupper():
        shared -= 1
    return name[shared:] or name


def has_query_key_value(module: nn.Module) -> bool:
    """Whether linear maps or parameters named after queries, keys and values sit directly in a module."""
    named = [name for name, child in children(module) if features(child) is not None]
    named += [name for name, parameter in module.named_parameters(recurse=False) if parameter.dim() >= 2]
    found = [match["kind"] for name in named if (match := QUERY_KEY_VALUE.search(name)) and match["kind"]]
    kinds = {kind.lower() for kind in found}
    if kinds & {"query_key_value", "c_attn"} or any("qkv" in name.lower() for name in named):
        return True
    return any(kind.startswith("q") for kind in kinds) and any("k" in kind for kind in kinds - {"qk"})


def is_attention(name: str, module: nn.Module) -> bool:
    """Whether a module is an attention: two or more matrices, and called so or made of queries and keys."""
    if (
        features(module) is not None
        or is_norm(name, module)
        or not is_callable(module)
        or matrices(module) < 2
    ):
        return False
    kind = type(module).__name__
    if ATTENTION.search(name) or ATTENTION.search(kind):
        return True
    return has_query_key_value(module) and not (MIXER.search(name) or MIXER.search(kind))


def is_cross(name: str, module: nn.Module, owner: nn.Module) -> bool:
    """Whether a part of ``owner`` is, by its name or class, attention to another sequence."""
    return bool(CROSS.search(name) or CROSS.search(own_class(module, owner)))


def is_mixer(name: str, module: nn.Module, owner: nn.Module) -> bool:
    """Whether a part of ``owner`` is called after a token mixer that is no attention."""
    return bool(MIXER.search(name) or MIXER.search(own_class(module, owner)))


def is_mlp(name: str, module: nn.Module, owner: nn.Module) -> bool:
    """Whether a part of ``owner`` is called an MLP (or mixture of experts) and holds two or more matrices."""
    if (
        features(module) is not None
        or is_norm(name, module)
        or not is_callable(module)
        or matrices(module) < 2
    ):
        return False
    return bool(MLP.search(name) or MLP.search(own_class(module, owner)))
