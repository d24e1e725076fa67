"""Texts scanned shard by shard on a Ray cluster of two nodes, a driver and workers killed. Run by ``make cluster``."""

import os

import pytest

import rankscope as rs
from kit import clusters, scanned
from rankscope.findings.scan import RESULT, ScanFinding

pytest.importorskip("ray", reason="needs the extra cluster: make cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

TEXTS = 5000 if os.environ.get("RANKSCOPE_SOAK") else 400
"""In 16 shards."""


def test_16_shards_on_two_nodes_with_a_driver_and_two_workers_killed(tmp_path, monkeypatch):
    for name, value in scanned.environment(tmp_path / "cluster.log").items():
        monkeypatch.setenv(name, value)
    model = scanned.write_model(tmp_path / "bert")
    texts = scanned.write_corpus(tmp_path / "corpus.jsonl", TEXTS)
    size = -(-TEXTS // 16)
    found = rs.scan(str(model), str(texts), shard_size=size, folder=tmp_path / "serial")
    with clusters.two_nodes() as address:
        scanned.scanned_with_kills(
            model,
            texts,
            tmp_path / "cluster",
            size=size,
            drivers=1,
            workers_killed=2,
            workers=0,
            cluster=address,
        )
    assert (tmp_path / "cluster" / RESULT).read_bytes() == (tmp_path / "serial" / RESULT).read_bytes()
    assert ScanFinding.load(tmp_path / "cluster" / RESULT) == found
    ran = {key for key, _ in scanned.entries(tmp_path / "cluster.log")}
    assert {key.partition("/")[0] for key in ran} == {str(place * size) for place in range(16)}
