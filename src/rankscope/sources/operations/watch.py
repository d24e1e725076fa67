"""A dispatch mode that writes down every ATen operation of a call, in one normal form.

Below autograd composite operations arrive whole, as in inference mode but with ordinary tensors, so that each can be
kept or opened: ``linear``, the norms, softmax and products are kept, scaled dot-product attention becomes products and
a softmax whatever kernel would have run it, everything else that is made of simpler operations is opened. Operations
that write into their argument are written down as ones that do not. Private names of torch stand in this file, in
``forms.py`` and in ``raised.py`` alone.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from rankscope.errors import RankscopeError, is_out_of_memory
from rankscope.sources.operations.forms import (
    attention,
    flex_attention,
    grouped_product,
    is_composite,
    out_of_place,
    outcome,
    without_underscore,
    written_arguments,
)
from rankscope.sources.operations.graph import (
    Graph,
    Guard,
    Line,
    ModuleCall,
    Node,
    NotCaptured,
    merged,
    with_tensors,
)
from rankscope.sources.operations.lines import line_now
from rankscope.sources.operations.places import Places
from rankscope.sources.operations.raised import RAISED

KEPT = frozenset(
    {"linear", "layer_norm", "rms_norm", "softmax", "matmul", "dropout", "item", "is_nonzero", "take"}
)
"""Composite operations that are not opened."""


_GROUPED = getattr(getattr(torch.ops.aten, "_grouped_mm", None), "default", None)  # unknown to older versions
_COMPILERS = {"torch._dynamo", "torch.nn.attention.flex_attention"}


def watched(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Graph:
    """The graph of one call of a module whose weights and arguments are float64; casts to less are undone."""
    watch = _Watch(module)
    try:
        with ExitStack() as undo:
            undo.enter_context(_without_fast_path())
            undo.enter_context(torch.no_grad())
            undo.enter_context(torch._C._AutoDispatchBelowAutograd())
            if _COMPILERS & set(sys.modules):  # otherwise nothing is compiled, and the import takes a second
                undo.enter_context(torch.compiler.set_stance("force_eager"))
            undo.enter_context(sdpa_kernel(SDPBackend.MATH))
            for handle in watch.hooks(module):
                undo.callback(handle.remove)
            leaves, _ = tree_flatten_with_path((args, dict(kwargs)))
            inputs = {
                leaf_name(path): watch.argument(leaf) for path, leaf in leaves if isinstance(leaf, Tensor)
            }
            for name, node in inputs.items():
                node.name = node.name or name
            with watch, _Bypasses(watch):
                result = module(*args, **kwargs)
            outputs = watch.nodes_of(result)
    except RankscopeError as error:
        if isinstance(error, NotCaptured) and not (error.line or error.path):
            raise NotCaptured(error.what, operation=watch.doing, path=watch.path, line=watch.line) from error
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        what = (
            f"the call in float64 fails: {str(error).strip().splitlines()[0] if str(error) else type(error)}"
        )
        raise NotCaptured(what, operation=watch.doing, path=watch.path, line=watch.line) from error
    return merged(
        Graph(nodes=watch.nodes, inputs=inputs, outputs=outputs, calls=watch.calls, guards=watch.guards)
    )


def leaf_name(path: tuple[Any, ...]) -> str:
    """``0`` for the first positional argument, ``mask`` for a keyword, ``0.x`` for an entry of a dict in the first."""
    keys = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path[1:])
    return ".".join(map(str, keys))


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what would be skipped is the compiler, which takes seconds to import


class Exact(_Mode):
    """Nothing but casts to less than float64 undone, and products made that have no float64."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and func is not _GROUPED and not _is_coarse_call(args, kwargs):
            return func(*args, **kwargs)  # nearly all calls: nothing in them is less than float64
        args, kwargs = _in_float64(args, kwargs)
        if not hasattr(func, "_schema"):
            if func.name() != "flex_attention":
                return func(*args, **kwargs)
            with self:
                return flex_attention(*args, **kwargs)
        if not func._schema.is_mutable:
            args, kwargs = with_tensors(_as_float64, (args, kwargs))
        if func._schema.name == "aten::_grouped_mm":
            return grouped_product(*args, **kwargs)
        return func(*args, **kwargs)


class _Bypasses(TorchFunctionMode):
    """Ways in which numbers leave the tensors without an operation."""

    def __init__(self, watch: "_Watch") -> None:
        super().__init__()
        self._watch = watch
        self._ways = {
            Tensor.numpy: "numpy",
            Tensor.__array__: "numpy",
            Tensor.tolist: "tolist",
            Tensor.__dlpack__: "numpy",
            Tensor.data_ptr: "data_ptr",
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = self._ways.get(func)
        if what is not None:
            self._watch.leaves(what, args[0])
        return func(*args, **(kwargs or {}))


class _Watch(_Mode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.calls: list[ModuleCall] = []
        self.guards: list[Guard] = []
        self.doing = ""  # the operation that came last
        self.line: Line | None = None  # where it stood
        self._calls = 0
        self._places = Places(lambda op, args, value: self._new(op, args, {}, value))
        self._raised: dict[int, tuple[Tensor, Tensor]] = {}
        self._stack: list[str] = []
        held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        self._names = {id(tensor): name for name, tensor in reversed(held)}
        self._parameters = {id(tensor): tensor for tensor in model.parameters()}

    @property
    def path(self) -> str:
        """The module that runs."""
        return self._stack[-1] if self._stack else ""

    def hooks(self, model: nn.Module) -> Iterator[Any]:
        """Marks of the tensors that enter and leave every module, taken before the module can write into them."""
        entered: list[tuple[tuple[Node, ...], Line | None]] = []  # as long as the stack

        def enter(path: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
                self._stack.append(path)
                entered.append((self.nodes_of((args, kwargs)), line_now(watched.__code__)))

            return hook

        def leave(path: str) -> Callable[..., None]:
            def hook(_: nn.Module, __: Any, ___: Any, output: Any) -> None:
                self._stack.pop()
                inputs, line = entered.pop()
                self.calls.append(ModuleCall(path, inputs, self.nodes_of(output), line))

            return hook

        for path, module in model.named_modules():
            yield module.register_forward_pre_hook(enter(path), with_kwargs=True)
            # also called where the module raises and somebody catches it
            yield module.register_forward_hook(leave(path), with_kwargs=True, always_call=True)

    def argument(self, tensor: Tensor) -> Node:
        """The node of an argument; what it shares with other arguments does not matter."""
        known = next((node for node in self.nodes if node.value is tensor), None)
        return self._outside(tensor) if known is None else known

    def node_of(self, tensor: Tensor) -> Node:
        """The node whose value a tensor is; a new one from outside where no operation has made it."""
        if id(tensor) in self._names and id(tensor) not in self._places:
            return self._outside(tensor)
        found = self._places.find(tensor)
        return self._outside(tensor) if found is None else found

    def nodes_of(self, values: Any) -> tuple[Node, ...]:
        """The nodes of all tensors in a nest of containers."""
        with _disable_current_modes():
            return tuple(self.node_of(leaf) for leaf in tree_leaves(values) if _is_plain(leaf))

    def leaves(self, what: str, tensor: Tensor) -> None:
        """A tensor's numbers leave for Python or numpy."""
        with _disable_current_modes():
            self._guard(self.node_of(self._high(tensor)), what, None)

    def _outside(self, tensor: Tensor) -> Node:
        return self._enter(self._new(None, (), {}, tensor, name=self._names.get(id(tensor), "")), tensor)

    def _enter(self, node: Node, tensor: Tensor) -> Node:
        self._places.enter(tensor, node)
        return node

    def _new(
        self, op: Any, args: Any, kwargs: Any, value: Tensor, *, item: int | None = None, name: str = ""
    ) -> Node:
        line = None if op is None else self.line
        node = Node(
            len(self.nodes), op, tuple(args), dict(kwargs), value, item, line, self.path, name, self._calls
        )
        self.nodes.append(node)
        return node

    def _guard(self, node: Node | None, what: str, result: object) -> None:
        self.guards.append(Guard(node, what, result, line_now(watched.__code__)))

    def _high(self, tensor: Tensor) -> Tensor:
        """A tensor in float64: what comes from outside of the copy (a table in a global) is raised as it enters."""
        if tensor.dtype not in RAISED:
            return tensor
        known = self._raised.get(id(tensor))
        if known is None or not torch.equal(known[1], tensor.to(known[1].dtype)):
            known = self._raised[id(tensor)] = (tensor, tensor.to(RAISED[tensor.dtype]))
        return known[1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        self.line = line_now(watched.__code__)
        if not hasattr(func, "_schema"):
            return self._higher_order(func, args, kwargs)
        name = func._schema.name.removeprefix("aten::")
        self.doing = name
        args, kwargs = _in_float64(args, kwargs)
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        args, kwargs = with_tensors(self._high, (args, kwargs))
        if name in _FORMS:
            with self:
                return _FORMS[name](*args, **kwargs)
        if name not in KEPT and is_composite(func):
            with self:
                opened = func.decompose(*args, **kwargs)
            if opened is not NotImplemented:
                return opened
        if func is torch.ops.aten.view.dtype:
            raise NotCaptured("numbers are read as bits of another dtype")
        return self._computed(func, name, args, kwargs)

    def _computed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        nodes = self._as_nodes((args, kwargs))
        if name == "native_batch_norm" and args[5]:
            nodes = self._batch_norm(args, nodes)
        result = func(*args, **kwargs)
        self._calls += 1
        given = list[Tensor]()
        with_tensors(given.append, (args, kwargs))
        if any(result is leaf for leaf in given):
            return result
        if name == "as_strided":  # strides mean nothing on other numbers: the same elements by their places
            self._enter(self._places.read(result), result)
        elif isinstance(result, Tensor):
            self._enter(self._new(func, nodes[0], nodes[1], result), result)
        elif isinstance(result, tuple | list):
            for item, one in enumerate(result):
                if isinstance(one, Tensor):
                    self._enter(self._new(func, nodes[0], nodes[1], one, item=item), one)
        else:
            first = next(iter(nodes[0]), None)
            self._guard(first if isinstance(first, Node) else None, name, result)
        if torch.Tag.dynamic_output_shape in func.tags and _is_shaped_by_numbers(name, args):
            self._guard(nodes[0][0], name, tuple(tree_leaves(result)[0].shape))
        return result

    def _batch_norm(self, args: Any, nodes: Any) -> Any:
        """In training the running statistics are written, which the operation does not say, and not read."""
        for running in (one for one in args[3:5] if one is not None):
            self._places.before_write(running)
            self._places.write(running, self._new(None, (), {}, running.clone()))
        return (*nodes[0][:3], None, None, *nodes[0][5:]), nodes[1]

    def _as_nodes(self, values: Any) -> Any:
        return with_tensors(self.node_of, values)

    def _higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.doing = func.name()
        if self.doing != "flex_attention":
            raise NotCaptured(f"the operation {self.doing} runs functions of its own")
        with self:
            return flex_attention(*args, **kwargs)

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """``x.add_(y)`` as ``add(x, y)``, from then on the node of ``x``."""
        targets = written_arguments(func, args, kwargs)
        self._check(targets)
        fixed = {id(one) for one in targets}
        args, kwargs = with_tensors(
            lambda leaf: leaf if id(leaf) in fixed else self._high(leaf), (args, kwargs)
        )
        before = self._as_nodes((args, kwargs))
        for one in targets:
            self._places.before_write(one)
        if torch.Tag.inplace_view in func.tags:
            return self._turned(func, args, kwargs, before)
        where = [(one.untyped_storage().data_ptr(), one.shape) for one in targets]
        result = func(*args, **kwargs)
        self._calls += 1
        form = out_of_place(func, before[0], before[1], targets[0])
        for number, one in enumerate(targets):
            if (one.untyped_storage().data_ptr(), one.shape) != where[
                number
            ]:  # out= made room for the result
                self._places.forget(one)
            item = number if len(targets) > 1 else None
            if form is None:
                if len(targets) > sum(one is not None for one in outcome(func)):
                    raise NotCaptured(f"the operation {func} writes into several tensors")
                item = outcome(func).index(number)
                node = self._new(func, before[0], before[1], one.clone(), item=item)
            else:
                node = self._new(form[0], form[1], form[2], one.clone(), item=item)
            if one in self._places:
                self._places.write(one, node)
            else:
                self._enter(node, one)
        self._returned(func, result, targets, before)
        return result

    def _returned(self, func: Any, result: Any, targets: list[Tensor], before: Any) -> None:
        """What an operation that also writes returns besides."""
        for item, one in enumerate(result if isinstance(result, tuple | list) else [result]):
            if isinstance(one, Tensor) and not any(one is target for target in targets):
                if one in self._places:
                    continue
                self._enter(self._new(func, before[0], before[1], one, item=item), one)

    def _turned(self, func: Any, args: Any, kwargs: Any, before: Any) -> Any:
        """``x.unsqueeze_(0)``: the same numbers seen in another way."""
        target, name = args[0], func._schema.name.removeprefix("aten::")
        if name in ("resize_", "set_", "resize_as_", "swap_"):
            if target.numel() == 0:
                result = func(*args, **kwargs)
                self._places.forget(target)
                return result
            raise NotCaptured("the memory of a tensor is exchanged or cut")
        result = func(*args, **kwargs)
        self._places.forget(target)
        node = self._new(without_underscore(func), before[0], before[1], target)
        self._enter(node, target)
        return result

    def _check(self, targets: list[Tensor]) -> None:
        for one in targets:
            if id(one) in self._parameters:
                raise NotCaptured(f"the call writes into its own weight {self._names[id(one)]}")
            if one.dtype in RAISED:
                raise NotCaptured("the call writes into a tensor that is kept outside of the module")


def _is_plain(leaf: object) -> bool:
    """Whether something is a tensor with memory of its own; inside of ``vmap`` it is a tensor around another."""
    return isinstance(leaf, Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(leaf)


def _is_shaped_by_numbers(name: str, args: Any) -> bool:
    """Whether the shape of what an operation returns depends on numbers; an index does if it is a mask."""
    if name != "index":
        return True
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])


def _as_float64(tensor: Tensor) -> Tensor:
    return tensor.to(RAISED[tensor.dtype]) if tensor.dtype in RAISED else tensor


def _is_coarse_call(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a dtype below float64, or a tensor of one, may stand somewhere among the arguments of an operation."""
    for leaf in chain(args, kwargs.values()) if kwargs else args:
        kind = type(leaf)
        if kind is Tensor or kind is nn.Parameter:
            if leaf.dtype in RAISED:
                return True
        elif kind is list or kind is tuple:
            if _is_coarse_call(leaf, {}):
                return True
        elif kind not in _NUMBERS and (not isinstance(leaf, torch.dtype) or leaf in RAISED):
            return True
    return False


_NUMBERS = frozenset(
    {int, float, bool, complex, str, type(None), torch.device, torch.layout, torch.memory_format}
)
"""Other arguments that say nothing about digits."""


def _in_float64(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an operation with requests for less than float64 undone."""

    def raised(leaf: Any) -> Any:
        return RAISED.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return tuple(map(raised, args)), {name: raised(value) for name, value in kwargs.items()}


_FORMS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention,
    "_grouped_mm": grouped_product,
}
"""Operations that are replaced by ours."""


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """torch's fused encoder layers switched off, which are one operation for a whole block."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
