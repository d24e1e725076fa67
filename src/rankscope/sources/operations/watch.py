"""A dispatch mode that writes down every ATen operation of a call, in one normal form.

Below autograd composite operations arrive whole, as in inference mode but with ordinary tensors, so that each can be
kept or opened: ``linear``, the norms, softmax and products are kept, scaled dot-product attention becomes products and
a softmax whatever kernel would have run it, everything else that is made of simpler operations is opened. Operations
that write into their argument are written down as ones that do not. Private names of torch stand in this file alone.
"""

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map

from rankscope.sources.operations.graph import Graph, Guard, Line, ModuleCall, Node, merged

KEPT = frozenset({"linear", "layer_norm", "rms_norm", "softmax", "matmul", "dropout"})
"""Composite operations that are not opened."""

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_LOW = (torch.float32, torch.bfloat16, torch.float16)


def watched(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Graph:
    """The graph of one call of a module whose weights and arguments are float64; casts to less are undone."""
    watch = _Watch(module)
    with ExitStack() as undo:
        undo.enter_context(_without_fast_path())
        undo.enter_context(torch.no_grad())
        undo.enter_context(torch._C._AutoDispatchBelowAutograd())
        undo.enter_context(torch.compiler.set_stance("force_eager"))
        undo.enter_context(sdpa_kernel(SDPBackend.MATH))
        for handle in watch.hooks(module):
            undo.callback(handle.remove)
        undo.enter_context(watch)
        leaves, _ = tree_flatten_with_path((args, dict(kwargs)))
        inputs = {leaf_name(path): watch.node_of(leaf) for path, leaf in leaves if isinstance(leaf, Tensor)}
        for name, node in inputs.items():
            node.name = name
        result = module(*args, **kwargs)
        outputs = tuple(watch.node_of(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
    return merged(
        Graph(nodes=watch.nodes, inputs=inputs, outputs=outputs, calls=watch.calls, guards=watch.guards)
    )


def leaf_name(path: tuple[Any, ...]) -> str:
    """``0`` for the first positional argument, ``mask`` for a keyword, ``0.x`` for an entry of a dict in the first."""
    keys = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path[1:])
    return ".".join(map(str, keys))


class Exact(TorchDispatchMode):
    """Nothing but casts to less than float64 undone."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = _in_float64(args, dict(kwargs or {}))
        return func(*args, **kwargs)


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.nodes: list[Node] = []
        self.calls: list[ModuleCall] = []
        self.guards: list[Guard] = []
        self._of: dict[int, Node] = {}
        self._alive: dict[int, Tensor] = {}
        self._stack: list[str] = []
        held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        self._names = {id(tensor): name for name, tensor in held}

    def hooks(self, model: nn.Module) -> Iterator[Any]:
        entered: list[tuple[Node, ...]] = []

        def enter(path: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
                self._stack.append(path)
                entered.append(self._nodes_of((args, kwargs)))

            return hook

        def leave(path: str) -> Callable[..., None]:
            def hook(_: nn.Module, __: Any, ___: Any, output: Any) -> None:
                self._stack.pop()
                self.calls.append(ModuleCall(path, entered.pop(), self._nodes_of(output)))

            return hook

        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                yield module.register_forward_pre_hook(enter(path), with_kwargs=True)
                yield module.register_forward_hook(leave(path), with_kwargs=True)

    def node_of(self, tensor: Tensor) -> Node:
        """The node whose value a tensor is; a new one from outside where no operation has made it."""
        found = self._of.get(id(tensor))
        return (
            self._add(None, (), {}, tensor, name=self._names.get(id(tensor), "")) if found is None else found
        )

    def _nodes_of(self, values: Any) -> tuple[Node, ...]:
        return tuple(self.node_of(leaf) for leaf in tree_leaves(values) if isinstance(leaf, Tensor))

    def _add(
        self, op: Any, args: Any, kwargs: Any, value: Tensor, *, item: int | None = None, name: str = ""
    ) -> Node:
        node = self._new(op, args, kwargs, value, item=item, name=name)
        self._of[id(value)], self._alive[id(value)] = node, value
        return node

    def _new(
        self, op: Any, args: Any, kwargs: Any, value: Tensor, *, item: int | None = None, name: str = ""
    ) -> Node:
        path = self._stack[-1] if self._stack else ""
        line = None if op is None else _line()
        node = Node(len(self.nodes), op, tuple(args), dict(kwargs), value, item, line, path, name)
        self.nodes.append(node)
        return node

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not hasattr(func, "_schema"):  # a higher-order operator
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        args, kwargs = _in_float64(args, kwargs)
        if name == "scaled_dot_product_attention":
            with self:
                return _attention(*args, **kwargs)
        if name not in KEPT and _is_composite(func):
            with self:
                opened = func.decompose(*args, **kwargs)
            if opened is not NotImplemented:
                return opened
        nodes = tree_map(
            lambda leaf: self.node_of(leaf) if isinstance(leaf, Tensor) else leaf, (args, kwargs)
        )
        if func._schema.is_mutable:
            return self._written(func, args, kwargs, nodes)
        result = func(*args, **kwargs)
        if any(result is leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)):
            return result
        if isinstance(result, Tensor):
            self._add(func, nodes[0], nodes[1], result)
        elif isinstance(result, tuple | list):
            for item, one in enumerate(result):
                if isinstance(one, Tensor):
                    self._add(func, nodes[0], nodes[1], one, item=item)
        else:
            first = next(iter(nodes[0]), None)
            self.guards.append(Guard(first if isinstance(first, Node) else None, name, result, _line()))
        return result

    def _written(self, func: Any, args: Any, kwargs: Any, nodes: Any) -> Any:
        """``x.add_(y)`` as ``add(x, y)``; other tensors in the same memory become views of what was written."""
        target, twin = args[0], _out_of_place(func)
        if twin is None:
            raise NotImplementedError(f"the operation {func} writes into its argument and has no other form")
        memory = target.untyped_storage().data_ptr()
        sharing = [
            one for one in self._alive.values() if one.numel() and one.untyped_storage().data_ptr() == memory
        ]
        for one in sharing:
            node = self._of[id(one)]
            if node.value is one:
                node.value = one.clone()
        size = target.untyped_storage().nbytes() // target.element_size()
        new = self._new(twin, nodes[0], nodes[1], twin(*args, **kwargs))
        others = [one for one in sharing if one is not target]
        if others:
            whole = self._whole(target, new, others, size)
            for one in others:
                place = (tuple(one.shape), tuple(one.stride()), one.storage_offset())
                value = torch.as_strided(whole.value, *place)
                self._of[id(one)] = self._new(torch.ops.aten.as_strided.default, (whole, *place), {}, value)
        result = func(*args, **kwargs)
        self._of[id(target)], self._alive[id(target)] = new, target
        return result

    def _whole(self, target: Tensor, new: Node, others: list[Tensor], size: int) -> Node:
        """The memory that several tensors share as one row, after a write into one of them."""

        def fills(one: Tensor) -> bool:
            return one.is_contiguous() and one.numel() == size

        reshape = torch.ops.aten.reshape.default
        if fills(target):
            return self._new(reshape, (new, (size,)), {}, new.value.reshape(size))
        full = next((one for one in others if fills(one)), None)
        if full is None:
            raise NotImplementedError("an operation writes into memory of which no tensor is the whole")
        before = self._of[id(full)]
        flat = self._new(reshape, (before, (size,)), {}, before.value.reshape(size))
        place = (tuple(target.shape), tuple(target.stride()), target.storage_offset())
        value = torch.as_strided_scatter(flat.value, new.value, *place)
        return self._new(torch.ops.aten.as_strided_scatter.default, (flat, new, *place), {}, value)


def _in_float64(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an operation with requests for less than float64 undone."""

    def raised(leaf: Any) -> Any:
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf in _LOW else leaf

    return tuple(map(raised, args)), {name: raised(value) for name, value in kwargs.items()}


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    """Scaled dot-product attention by its definition; a boolean mask becomes zero and minus infinity first."""
    more = dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False), **kwargs)
    mask = more.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        zeros = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
        more["attn_mask"] = zeros.masked_fill(~mask, -torch.inf)
    found: Tensor = torch.ops.aten._scaled_dot_product_attention_math.default(query, key, value, **more)[0]
    return found


def _is_composite(func: Any) -> bool:
    return func.namespace != "prim" and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), _COMPOSITE
    )


def _out_of_place(func: Any) -> Any:
    """The twin of an operation that does not write into its argument; None where there is none."""
    base = func._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, base.removesuffix("_"), None)
    return None if packet is None else getattr(packet, func._overloadname, None)


_LIBRARIES = ("/torch/", "/einops/", "/rankscope/sources/")


def _line() -> Line | None:
    """The first line on the way here that is no library's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<") and not any(part in file.replace("\\", "/") for part in _LIBRARIES):
            return Line(file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """torch's fused encoder layers switched off, which are one operation for a whole block."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
