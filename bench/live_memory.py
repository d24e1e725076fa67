"""How many bytes of tensors are alive at once while something runs, weights and inputs left out."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts the storages that operations inside the block make, each as long as anything refers to it."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.peak = 0
        self._known = {StorageWeakRef(t.untyped_storage()).cdata for t in known}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._alive = {key: held for key, held in self._alive.items() if not held[0].expired()}
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                ref = StorageWeakRef(storage)
                if ref.cdata not in self._known:
                    self._alive.setdefault(ref.cdata, (ref, storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return out
