"""A processor that advertises AMX and traps on it: found out by a child that may die, once, and avoided from then on.

No machine of ours has to have such a processor: the list of its flags, the child and the cache are stand-ins.
"""

import copy
import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from click.testing import CliRunner

import rankscope as rs
from kit.models import MODELS
from rankscope.cli import app
from rankscope.core import processor
from rankscope.network import Spec, build, gaussian_tokens
from rankscope.probe.gradients import gradient_norms
from rankscope.sources import Batch, layout_of, load_model
from rankscope.sources.live import quiet, run_batch

CHILDREN = {
    "traps": "import os, signal; print('works', flush=True); os.kill(os.getpid(), signal.SIGILL)",
    "works": "print('works')",
    "hangs": "import time; time.sleep(60)",
    "fails": "raise SystemExit(1)",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "says nothing": "pass",
}
LIMIT = "RANKSCOPE_TEST_MAX_CPU_ISA"
INFO = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: fpu avx512f {}\n\nprocessor\t: 1\n"


def child(kind: str) -> list[str]:
    return [sys.executable, "-c", CHILDREN[kind]]


@pytest.fixture
def amx(tmp_path, monkeypatch):
    """A function that makes this a machine with these flags and such a child, and gives the list of children asked."""
    asked = []

    def machine(kind: str = "traps", flags: str = "amx_bf16 amx_tile amx_int8") -> list[str]:
        (tmp_path / "cpuinfo").write_text(INFO.format(flags))
        processor._cpu_facts.cache_clear()
        monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(processor, "_answer_here", lambda: (asked.append(kind), given[kind])[1])
        # Another name: on a processor that does trap, the true limit must stay while these tests multiply.
        monkeypatch.setattr(processor, "LIMIT", (LIMIT, processor.LIMIT[1]))
        monkeypatch.setenv(LIMIT, "")
        return asked

    given = {"traps": "traps", "works": "works", "hangs": "silent"}
    return machine


@pytest.mark.parametrize(
    ("kind", "expected", "kept"),
    [
        ("traps", "traps", True),
        ("works", "works", True),
        ("hangs", "silent", False),
        ("fails", "silent", False),
        ("is killed", "silent", False),
        ("says nothing", "silent", False),
    ],
)
def test_what_a_child_says(kind, expected, kept, tmp_path):
    seconds = 0.5 if kind == "hangs" else 60.0
    assert processor.answer(child(kind), tmp_path / "new", seconds=seconds) == expected
    assert len(list(tmp_path.rglob("amx-*.json"))) == kept
    assert not list(tmp_path.rglob("*.tmp"))
    if kept:  # a child that would say something else is not asked
        other = child("works" if kind == "traps" else "traps")
        assert processor.answer(other, tmp_path / "new", seconds=seconds) == expected


def test_there_is_no_such_program(tmp_path):
    assert processor.answer([str(tmp_path / "python")], tmp_path, seconds=9.0) == "silent"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"answer": "perhaps"}', '{"answer": 3}', "\udcff", "[" * 100_000]
)
def test_a_damaged_cache_is_written_anew(content, tmp_path):
    (file,) = [tmp_path / f"amx-{processor._key()}.json"]
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert processor.answer(child("traps"), tmp_path, seconds=60.0) == "traps"
    assert json.loads(file.read_text()) == {"answer": "traps"}


def test_a_cache_that_cannot_be_written_is_no_hindrance(tmp_path):
    (tmp_path / "file").write_text("")
    assert processor.answer(child("works"), tmp_path / "file" / "folder", seconds=60.0) == "works"


def test_two_processes_at_once(tmp_path):
    found = []
    ask = lambda: found.append(processor.answer(child("traps"), tmp_path, seconds=60.0))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["traps"] * 4
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]


def test_the_answer_belongs_to_processor_kernel_and_torch(tmp_path, monkeypatch, amx):
    amx()
    keys = {processor._key()}
    for name, value in (("release", "9.9"), ("version", "#2")):
        with monkeypatch.context() as other:
            other.setattr(processor.platform, name, lambda value=value: value)
            keys.add(processor._key())
    with monkeypatch.context() as other:
        other.setattr(processor, "version", lambda name: "9.9")
        keys.add(processor._key())
    amx(flags="amx_tile")
    keys.add(processor._key())
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("flags", "dtype", "asked"),
    [
        ("amx_bf16 amx_tile", "bfloat16", 1),
        ("amx_bf16 amx_tile", "float16", 0),
        ("amx_bf16 amx_tile amx_fp16", "float16", 1),
        ("amx_bf16 amx_tile amx_fp16", "float32", 0),
        ("avx512_bf16", "bfloat16", 0),
    ],
)
def test_a_child_is_asked_only_where_it_matters(flags, dtype, asked, amx):
    children = amx("traps", flags)
    words = processor.without_amx(dtype)
    assert len(children) == asked
    assert (words is not None) == bool(asked)


def test_without_proc_nothing_is_asked(amx, tmp_path, monkeypatch):
    children = amx()
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "absent")
    assert processor.without_amx("bfloat16") is None
    assert children == []


@pytest.mark.parametrize(("told", "asked"), [("AVX512_CORE", 0), ("ALL", 1), ("avx10_1_512_amx", 1), ("", 1)])
def test_a_limit_of_the_user_is_enough(told, asked, amx, monkeypatch):
    children = amx()
    monkeypatch.setenv(LIMIT, told)
    processor.without_amx("bfloat16")
    assert len(children) == asked


def test_the_words(amx):
    amx("traps")
    assert processor.without_amx("bfloat16") == (
        "this processor advertises AMX, but stops programs that use it; products in bfloat16 run without it, which is "
        "slower"
    )
    amx("hangs")
    assert "a trial of it in another process gave no answer" in processor.without_amx("bfloat16")
    amx("works")
    assert processor.without_amx("bfloat16") is None


class Seen(torch.nn.Module):
    """Notes whether torch may use oneDNN while it runs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4).to(dtype)
        self.found: list[bool] = []

    def forward(self, x):
        self.found.append(torch.backends.mkldnn.enabled)
        return self.inner(x)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [("traps", torch.bfloat16, False), ("traps", torch.float32, True), ("works", torch.bfloat16, True)],
)
def test_passes_of_the_library_run_without_it(kind, dtype, expected, amx, generator):
    amx(kind)
    model = Seen(dtype)
    run_batch(model, Batch(inputs={"": torch.ones(1, 2, 4, dtype=dtype)}, is_token=None, labels=("one",)))
    network = build(Spec(layers=1, dim=4, heads=1), generator).to(dtype)
    x = gaussian_tokens(tokens=3, dim=4, generator=generator).to(dtype)
    network.blocks[0].register_forward_hook(lambda *_: model.found.append(torch.backends.mkldnn.enabled))
    for run in (network, network.states, network.trace):
        run(x)
    with quiet(model):
        model(torch.ones(1, 2, 4, dtype=dtype))
    assert model.found == [expected] * 5
    assert torch.backends.mkldnn.enabled


def test_gradients_run_without_it_too(amx):
    amx()
    model, found = copy.deepcopy(MODELS["bert"].model()).to(torch.bfloat16), []

    def loss(model, batch):
        value = run_batch(model, batch).last_hidden_state.float().square().mean()
        value.register_hook(lambda gradient: found.append(torch.backends.mkldnn.enabled))
        return value

    batch = Batch(inputs=MODELS["bert"].inputs(1, 4), is_token=None, labels=("one",))
    gradient_norms(model, layout_of(model), [batch], loss=loss)
    assert found
    assert not any(found)


def test_it_is_said_once_of_a_model_and_of_random_networks(amx):
    amx()
    model = load_model(Seen(torch.bfloat16))
    assert [note for note in model.warnings if "AMX" in note] == [processor.without_amx("bfloat16")]
    assert load_model(Seen(torch.float32)).warnings == ()
    found = rs.collapse(layers=1, dim=4, heads=1, tokens=3, dtype="bfloat16")
    assert found.amx == "traps"
    assert len([words for words in found.notes if "AMX" in words]) == 1
    assert rs.collapse(layers=1, dim=4, heads=1, tokens=3, dtype="float32").amx is None


@pytest.mark.parametrize("words", [["--dtype", "bfloat16"], ["--dtype=bfloat16"]])
def test_the_program_sets_the_limit_before_it_works_and_says_so(words, amx):
    children = amx()
    arguments = ["collapse", "--layers", "1", "--dim", "4", "--heads", "1", "--tokens", "3", *words]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert os.environ[LIMIT] == "AVX512_CORE_FP16"
    assert done.output.count("advertises AMX") == 1
    assert len(children) == 1
    CliRunner().invoke(app, arguments[: -len(words)])
    assert len(children) == 1


def test_the_trial_itself_works_here(tmp_path):
    """What the child runs is right: on this machine, whatever it is, it says one of the answers it may say."""
    found = processor.answer([sys.executable, "-P", "-c", processor.TRIAL], tmp_path, seconds=120.0)
    assert found in ("works", "traps")


def test_a_program_that_is_stopped_says_where():
    """The standard library writes where Python was when the processor refused an instruction."""
    program = (
        "import os, signal, sys, rankscope.cli\n"
        "program = sys.modules['rankscope.cli.app']\n"
        "program.app = lambda **_: os.kill(os.getpid(), signal.SIGILL)\n"
        "program.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == -4
    assert "Illegal instruction" in done.stderr
    assert "in main" in done.stderr
