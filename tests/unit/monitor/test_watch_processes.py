"""Two processes on gloo: DDP, where the first one scans, and FSDP2, where all take part with the same numbers."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kit.tiny_training import states, tiny_encoder

pytestmark = pytest.mark.slow


def made() -> nn.Module:
    model = tiny_encoder()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def steps(model: nn.Module, look: Any, rank: int = 0) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        look(step)
        loss = (model(states(seed=step)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    look(4)


def work(rank: int, kind: str, watched: bool, folder: str) -> None:
    import warnings

    import rankscope as rs

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{kind}-{watched}", rank=rank, world_size=2
    )
    try:
        model = made()
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.fsdp import fully_shard

            for layer in model.layers:
                fully_shard(layer)
            fully_shard(model)
        monitor = rs.watch(model, states(), every=1, stop_on="non-finite") if watched else None
        steps(model, (lambda step: None) if monitor is None else monitor.step, rank)
        if kind == "ddp":
            weights = {name: one.detach().clone() for name, one in model.module.state_dict().items()}
        else:
            weights = {
                name: one.full_tensor().clone() if hasattr(one, "full_tensor") else one.clone()
                for name, one in model.state_dict().items()
            }
        ratios = [] if monitor is None else [one.signals["ratio"]["blocks"] for one in monitor.readings]
        torch.save({"weights": weights, "ratios": ratios}, f"{folder}/{kind}-{watched}-{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()
    os._exit(0)  # all is saved, and torch may abort over a thread of its own where Python tears it down


def run(kind: str, watched: bool, folder: Path) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(rank, kind, watched, str(folder))) for rank in range(2)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(120)
        assert one.exitcode == 0
    return [torch.load(folder / f"{kind}-{watched}-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_train_on_unchanged_and_the_first_has_the_numbers(kind: str, tmp_path: Path) -> None:
    import rankscope as rs

    alone, watched = run(kind, False, tmp_path), run(kind, True, tmp_path)
    for rank in range(2):
        for name, weight in alone[rank]["weights"].items():
            assert torch.equal(weight, watched[rank]["weights"][name]), name
    model = made()
    monitor = rs.watch(model, states(), every=1)
    steps(model, monitor.step)
    plain = [one.signals["ratio"]["blocks"] for one in monitor.readings]
    assert watched[0]["ratios"] == pytest.approx(plain, rel=1e-6)
    assert watched[1]["ratios"] == []
