"""What importing each package imports with it. One process goes from the lightest to the heaviest, and looks."""

import json
import subprocess
import sys
from pathlib import Path

import rankscope
from kit import scan_tables
from rankscope.results import Table

STUDIES = [
    f"rankscope.studies.{file.stem}"
    for file in sorted((Path(rankscope.__file__).parent / "studies").glob("*.py"))
    if file.stem != "__init__"
]
LIBRARIES = ("transformers", "timm", "tokenizers", "sklearn", "PIL")
NO_TORCH = {"torch", "pandas", "transformers"}
PAPERS = {"rankscope.papers"}

STAGES: dict[str, tuple[str, set[str]]] = {
    "rankscope": ("import rankscope", {"torch", "numpy", "polars", "scipy", "pandas", *LIBRARIES}),
    "processor": ("import rankscope.core.processor", {"torch", *LIBRARIES}),
    "results": (
        "import rankscope.results.table",
        {"torch", "scipy", "pandas", "pydantic", *LIBRARIES},
    ),
    "versions": (
        "assert 'torch' in rankscope.results.provenance({})['versions']",
        {"torch", "scipy", "pydantic", *LIBRARIES},
    ),
    "masks": ("import rankscope.masks", {"torch", *LIBRARIES}),
    "pages": (
        "found = rankscope.Finding.load('scan.json')\n"
        "found.report('page.html')\n"
        "assert 'svg' in found._repr_html_()",
        NO_TORCH,
    ),
    "sources": (
        "import rankscope.sources.loading, rankscope.sources.texts, rankscope.sources.images, "
        "rankscope.sources.audio, rankscope.sources.tensors",
        set(LIBRARIES),
    ),
    "monitor": ("import rankscope.monitor", set(LIBRARIES)),
    # figures, tasks and claims of the papers cost as much as everything else; only who asks for them pays
    "studies": (
        f"import {', '.join(STUDIES)}\nfrom rankscope.studies.scan import scan",
        {"transformers", *PAPERS},
    ),
}
DRIVER = """
import json, sys
stages, names = json.load(sys.stdin), {}
for stage, (code, heavy) in stages.items():
    exec(code, names)
    loaded = sorted(one for one in heavy if any(f"{name}.".startswith(f"{one}.") for name in sys.modules))
    print(json.dumps([stage, loaded]), flush=True)
"""


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    assert len(STUDIES) >= 10
    scan_tables.healthy(3).save(tmp_path / "scan.json")
    curves = {"measure": "m", "definition": "m", "value": [0.5, 0.25], "floor": 0.0, "layer": [0, 1]}
    Table.from_columns(curves | {"variant": "san"}).save(tmp_path / "curves.json")
    stages = json.dumps({name: (code, sorted(heavy)) for name, (code, heavy) in STAGES.items()})
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", DRIVER],
        input=stages,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert dict(map(json.loads, done.stdout.splitlines())) == {stage: [] for stage in STAGES}
    expected = scan_tables.healthy(3).to_html()
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == expected
