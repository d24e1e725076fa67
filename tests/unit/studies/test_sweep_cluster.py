"""A sweep on a Ray cluster of two nodes, with drivers and workers killed. Run by ``make cluster``."""

import os
from pathlib import Path

import polars as pl
import pytest

from kit import swept
from rankscope.findings.sweep.finding import TABLE
from rankscope.studies import sweep as study

pytest.importorskip("ray", reason="needs the extra cluster: make cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]


CONFIGURATIONS = 1200 if os.environ.get("RANKSCOPE_SOAK") else 240


def test_a_sweep_on_two_nodes_with_three_drivers_and_two_workers_killed(tmp_path, ray_cluster):
    asked = Path(tmp_path / "spec.yaml")
    asked.write_text(
        "command: collapse\nfixed: {layers: 2, heads: 2, dim: 8, tokens: 4}\n"
        f"product: {{mask: [full, causal], seed: {{range: [0, {CONFIGURATIONS // 2}]}}}}\n"
    )
    study.sweep(asked, folder=tmp_path / "serial")
    folder = ray_cluster.home / "sweep"
    wasted = swept.swept_with_kills(
        asked,
        folder,
        drivers=3,
        workers_killed=2,
        workers=0,
        cluster=ray_cluster.address,
        seed=os.getpid(),
    )
    assert (folder / TABLE).read_bytes() == (tmp_path / "serial" / TABLE).read_bytes()
    assert pl.read_parquet(folder / TABLE)["configuration"].n_unique() == CONFIGURATIONS
    assert wasted < CONFIGURATIONS
