"""Texts scanned shard by shard on a Ray cluster of two nodes, a driver and workers killed. Run by ``make cluster``."""

import os

import pytest

import rankscope as rs
from kit import scanned
from rankscope.findings.scan import RESULT, ScanFinding

pytest.importorskip("ray", reason="needs the extra cluster: make cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
TEXTS = 5000 if SOAK else 400
"""In 16 shards."""

WORKERS_KILLED = 2 if SOAK else 1
"""Every new one imports torch and transformers."""


def test_16_shards_on_two_nodes_with_a_driver_and_workers_killed(tmp_path, ray_cluster):
    model = scanned.write_model(tmp_path / "bert")
    texts = scanned.write_corpus(tmp_path / "corpus.jsonl", TEXTS)
    size, folder = -(-TEXTS // 16), ray_cluster.home / "scan"
    found = rs.scan(str(model), str(texts), shard_size=size, folder=tmp_path / "serial")
    scanned.scanned_with_kills(
        model,
        texts,
        folder,
        size=size,
        drivers=1,
        workers_killed=WORKERS_KILLED,
        workers=0,
        cluster=ray_cluster.address,
    )
    assert (folder / RESULT).read_bytes() == (tmp_path / "serial" / RESULT).read_bytes()
    assert ScanFinding.load(folder / RESULT) == found
    ran = {key for key, _ in scanned.entries(ray_cluster.home / "scan.log")}
    assert {key.partition("/")[0] for key in ran} == {str(place * size) for place in range(16)}
