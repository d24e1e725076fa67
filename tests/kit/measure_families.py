"""``make families``: how far trees are from tiny random models, for ``rankscope list families``."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import rankscope.sources.measured as measured
from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS

DTYPES = (torch.float32, torch.float64)


def deviations() -> dict[str, dict[str, Any]]:
    """The largest deviation of every kind of model over its cases, in both precisions, to two digits."""
    found: dict[str, dict[str, Any]] = {}
    for case in (ENCODERS | DECODERS).values():
        for dtype in DTYPES:
            translation = case.translation(dtype)
            assert translation.proof is not None
            entry = found.setdefault(translation.kind, {"family": translation.family, "casts": False})
            entry["casts"] |= translation.casts
            name = str(dtype).removeprefix("torch.")
            entry[name] = max(entry.get(name, 0.0), float(f"{translation.proof.worst:.1e}"))
    return dict(sorted(found.items()))


def main() -> None:
    versions = {name: version(name) for name in ("transformers", "timm", "torch")}
    report = {"versions": versions, "kinds": deviations()}
    Path(measured.__file__).with_name("measured.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
