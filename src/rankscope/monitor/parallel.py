"""Models whose weights lie in several processes: which can be watched, and how."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rankscope.errors import ConfigError

PIPELINES = ("PipelineStage", "PipelineModule", "Pipe", "PipelineParallel", "PipelinedModule")
"""Names of classes that hold a part of the layers of a model."""

CHECKPOINTS = "save checkpoints and compare their scans: rankscope compare RUN_DIR"


def is_fsdp2(model: nn.Module) -> bool:
    """Whether ``fully_shard`` was applied to the model or to a part of it."""
    return any(_is_fsdp2_part(part) for part in model.modules())


def _is_fsdp2_part(part: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(part).__mro__)


def refuse_parallel(model: nn.Module) -> None:
    """Nothing, or an error that names a way of spreading a model that cannot be watched."""
    kinds = {type(part).__name__ for part in model.modules()}
    name = type(model).__name__
    if kinds & set(PIPELINES):
        raise ConfigError(
            f"{name} is one stage of a pipeline (pipeline parallel), so no process runs the whole model; {CHECKPOINTS}"
        )
    if any(hasattr(one, "ds_id") or hasattr(one, "ds_shape") for one in model.parameters()):
        raise ConfigError(
            f"the weights of {name} are spread by DeepSpeed ZeRO-3, which was never tested with a monitor; "
            f"{CHECKPOINTS}"
        )
    if "FullyShardedDataParallel" in kinds:
        raise ConfigError(
            f"{name} is sharded by FSDP 1 (FullyShardedDataParallel); shard it with fully_shard (FSDP2), which can be "
            f"watched, or {CHECKPOINTS}"
        )
    spread = any(type(one).__name__ == "DTensor" for one in model.parameters())
    if spread and not is_fsdp2(model):
        raise ConfigError(f"the weights of {name} are spread by tensor parallelism (DTensor); {CHECKPOINTS}")


def sharded_dtype(model: nn.Module) -> torch.dtype | None:
    """What a model sharded by ``fully_shard`` computes in, where its mixed precision says so."""
    for part in model.modules():
        if _is_fsdp2_part(part):
            policy = getattr(part._get_fsdp_state(), "_mp_policy", None)  # type: ignore[operator]
            found = getattr(policy, "param_dtype", None)
            return found if isinstance(found, torch.dtype) else None
    return None


@contextmanager
def resharded(model: nn.Module) -> Iterator[None]:
    """Weights that the pass inside has gathered are spread again afterwards."""
    try:
        yield
    finally:
        for part in model.modules():
            if _is_fsdp2_part(part):
                part.reshard()  # type: ignore[operator]
