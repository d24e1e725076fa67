"""Processors that advertise AMX and stop every program that uses it.

Some virtual machines list ``amx_tile`` among the flags of their processor, and kill a process at its first tile
instruction (SIGILL): a product of bfloat16 matrices in torch ends Python without a word. Only a process that may die
can find out. So a child multiplies two matrices once, where AMX is listed and a dtype that uses it is about to run; the
answer is kept in the user's cache, and what follows runs without AMX: the program ``rankscope`` by an environment
variable, which oneDNN reads once, before its first product; the library by torch's own switch around its passes.

Importing this module does not import torch.
"""

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import torch

Answer = Literal["works", "traps", "silent"]
"""What a child said: it multiplied, it died of an illegal instruction, or it did neither."""

NEEDS = {"bfloat16": ("amx_tile", "amx_bf16"), "float16": ("amx_fp16",)}
"""The flags of a processor on which products of a dtype use AMX."""

LIMIT = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
"""The instructions that oneDNN may use at most: all that come before AMX."""

CPUINFO = Path("/proc/cpuinfo")
SECONDS = 120.0

TRIAL = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import torch
for dtype in (torch.bfloat16, torch.float16):
    x = torch.ones(64, 64, dtype=dtype)
    torch.nn.functional.linear(x @ x, x, x[0])
    heads = x.expand(1, 2, 64, 64)
    torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
print("works")
"""


def without_amx(dtype: str) -> str | None:
    """The sentence to show if products of this dtype must run without AMX here; None where nothing is in the way.

    >>> without_amx("float64") is None
    True
    """
    answer = amx_fault(dtype)
    if answer is None:
        return None
    found = (
        "stops programs that use it"
        if answer == "traps"
        else "a trial of it in another process gave no answer"
    )
    return f"this processor advertises AMX, but {found}; products in {dtype} run without it, which is slower"


def amx_fault(dtype: str) -> Literal["traps", "silent"] | None:
    """How AMX failed here when it was tried, where products of this dtype would use it; None where it did not."""
    if dtype not in NEEDS or not _flags(CPUINFO).intersection(NEEDS[dtype]) or _is_limited():
        return None
    answer = _answer_here()
    return None if answer == "works" else "traps" if answer == "traps" else "silent"


def limit_amx(dtypes: Iterable[str]) -> str | None:
    """As :func:`without_amx`, and the limit set in the environment: for programs, before they import torch."""
    for dtype in dtypes:
        words = without_amx(dtype)
        if words is not None:
            os.environ[LIMIT[0]] = LIMIT[1]
            return words
    return None


@contextmanager
def safe_products(x: "torch.Tensor | torch.nn.Module") -> Iterator[None]:
    """Inside, products of this tensor or module use AMX only where it works."""
    if not _may_meet_amx() or not any(without_amx(dtype) for dtype in _coarse_dtypes(x)):
        yield
        return
    import torch

    # Everything but the switch itself stays as the caller has set it.
    with torch.backends.mkldnn.flags(enabled=False, deterministic=None, allow_tf32=None):
        yield


def _coarse_dtypes(x: "torch.Tensor | torch.nn.Module") -> set[str]:
    """The dtypes in which a tensor or module on the CPU could meet AMX."""
    tensors = [x] if not hasattr(x, "parameters") else list(x.parameters())
    dtypes = {dtype: str(dtype).removeprefix("torch.") for dtype in {one.dtype for one in tensors}}
    if not NEEDS.keys() & set(dtypes.values()):  # as in most models; devices take longer to ask for
        return set()
    return {dtypes[one.dtype] for one in tensors if one.device.type == "cpu"} & NEEDS.keys()


def _may_meet_amx() -> bool:
    """Whether some dtype would use AMX here, if it were to run: to ask all weights for theirs takes longer."""
    return not _flags(CPUINFO).isdisjoint(chain.from_iterable(NEEDS.values())) and not _is_limited()


def _is_limited() -> bool:
    """Whether oneDNN was told to stay below AMX, by us or by the user."""
    told = os.environ.get(LIMIT[0], "").upper()
    return bool(told) and told not in ("ALL", "DEFAULT") and "AMX" not in told


@cache
def _answer_here() -> Answer:
    return answer([sys.executable, "-P", "-c", TRIAL], _cache_folder(), seconds=SECONDS)


def answer(child: Sequence[str], folder: Path, *, seconds: float) -> Answer:
    """The kept answer for this processor, kernel and torch, or that of a child, which is then kept.

    Silence is not kept: a busy machine may be the reason. A cache that cannot be read or written is no hindrance.
    """
    file = folder / f"amx-{_key()}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        kept = json.loads(file.read_text(encoding="utf-8"))["answer"]
        if kept in get_args(Answer):
            return kept  # type: ignore[no-any-return]
    found = _ask(child, seconds)
    if found != "silent":
        with contextlib.suppress(OSError):
            _keep(file, found)
    return found


def _ask(child: Sequence[str], seconds: float) -> Answer:
    environment = {name: value for name, value in os.environ.items() if name != LIMIT[0]}
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            child,
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "silent"
    if done.returncode in (-signal.SIGILL, 128 + signal.SIGILL):  # the second through a shell or a container
        return "traps"
    return "works" if done.returncode == 0 and done.stdout.split() == [b"works"] else "silent"


def _keep(file: Path, found: Answer) -> None:
    """Written whole or not at all; of two processes at once the later one wins, with the same answer."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix="amx-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as content:
            json.dump({"answer": found}, content)
        os.replace(name, file)
    except OSError:
        os.unlink(name)
        raise


def _key() -> str:
    """What the answer depends on: the processor as the system describes it, the kernel, the version of torch."""
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        torch_version = ""
    parts = (*sorted(_cpu_facts(CPUINFO).items()), platform.release(), platform.version(), torch_version)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@cache
def _cpu_facts(cpuinfo: Path) -> dict[str, str]:
    """What is the same for all cores of the first processor; empty where the system does not say."""
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags")
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines if name.strip() in wanted}


def _flags(cpuinfo: Path) -> frozenset[str]:
    return _split(_cpu_facts(cpuinfo).get("flags", ""))


@cache
def _split(flags: str) -> frozenset[str]:
    """The words of a line, which is asked for at every run of a network."""
    return frozenset(flags.split())


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))
    return home / "rankscope"
