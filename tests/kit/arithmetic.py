"""The numeric tests under other processors' arithmetic: other kernels, other orders of sums, two threads.

    python tests/kit/arithmetic.py            every setting: did it change any bits, then the numeric tests
    python tests/kit/arithmetic.py -n 2       the same with options for pytest
    python tests/kit/arithmetic.py bits       the bits of this process, as one line of JSON

A test that fails here holds on one processor by luck of rounding. A setting that changes no bits of this machine shows
nothing, so each says first what it changed; with fewer than three that did, the whole run fails.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]

SETTINGS: dict[str, dict[str, str]] = {
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "OPENBLAS_CORETYPE=Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OPENBLAS_CORETYPE=Prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "two threads": {
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2"),
        "RANKSCOPE_TEST_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait take the time of other workers
    },
}
"""Variables that the libraries read when they start, so that each setting is a process of its own."""

PLAIN = {"OMP_NUM_THREADS": "1", "RANKSCOPE_TEST_THREADS": "1"}

LEAST_CHANGED = 3

ROWS = ("core", "masks", "measures", "network", "split", "pathways", "bounds", "dynamics", "layers")
NUMERIC = (
    *("tests/laws", "tests/golden", "tests/unit/verdict"),
    *(f"tests/unit/{row}" for row in ROWS),
    *(f"src/rankscope/{row}" for row in ROWS),  # examples in docstrings print digits
)
"""All tests that compare numbers of the engine; those of files, pages and words are left out."""


def bits() -> dict[str, str]:
    """A digest of what the libraries make of the same numbers, by kind of operation."""
    import numpy as np
    import scipy.linalg
    import torch

    torch.set_num_threads(int(os.environ.get("RANKSCOPE_TEST_THREADS", "1")))
    # a division is rounded alike everywhere; with fractions of two, sums of products would not be rounded at all
    entries = (np.arange(600 * 600, dtype=np.int64) * 7919 % 10007).reshape(600, 600)
    matrix = (entries - 5003) / 9973.0
    single, double = torch.tensor(matrix, dtype=torch.float32), torch.tensor(matrix)
    sides = (7, 64, 600)
    found = {
        "product": [
            *((x[:n, :n] @ x[:n, :n].mT).numpy() for x in (single, double) for n in sides),
            *(matrix[:n, :n] @ matrix[:n, :n].T for n in sides),
        ],
        "softmax": [torch.softmax(x[:n, :n], dim=-1).numpy() for x in (single, double) for n in sides],
        "eigenvalue": [
            *(torch.linalg.eigvalsh(double[:n, :n] + double[:n, :n].mT).numpy() for n in (7, 64)),
            *(np.sort_complex(np.linalg.eigvals(matrix[:n, :n])) for n in (7, 64)),
            *(scipy.linalg.eigvalsh(matrix[:n, :n] + matrix[:n, :n].T) for n in (7, 64)),
        ],
    }
    return {
        name: hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in arrays)).hexdigest()
        for name, arrays in found.items()
    }


def bits_under(variables: dict[str, str]) -> dict[str, str]:
    told = subprocess.run(
        [sys.executable, __file__, "bits"],
        env=os.environ | PLAIN | variables,
        check=True,
        capture_output=True,
    )
    return dict(json.loads(told.stdout))


def said(name: str, plain: dict[str, str], found: dict[str, str]) -> str:
    """What a setting changed, as a line."""
    words = [f"{kind} {'changed' if found[kind] != plain[kind] else 'same'}" for kind in plain]
    return f"{name}: bits of {', '.join(words)}"


def main(options: list[str]) -> int:
    plain = bits_under({})
    changed, failed = [], []
    for name, variables in SETTINGS.items():
        found = bits_under(variables)
        print(said(name, plain, found), flush=True)
        if found != plain:
            changed.append(name)
        command = [sys.executable, "-m", "pytest", "-q", *options, *NUMERIC]
        if subprocess.run(
            command, env=os.environ | PLAIN | variables, cwd=HERE.parent, check=False
        ).returncode:
            failed.append(name)
    print(
        f"{len(changed)} of {len(SETTINGS)} settings changed bits; tests failed under: {', '.join(failed) or 'none'}"
    )
    if len(changed) < LEAST_CHANGED:
        print(f"at least {LEAST_CHANGED} settings must change bits, or this machine has shown nothing")
    return int(bool(failed) or len(changed) < LEAST_CHANGED)


if __name__ == "__main__":
    if sys.argv[1:] == ["bits"]:
        print(json.dumps(bits()))
    else:
        sys.exit(main(sys.argv[1:]))
