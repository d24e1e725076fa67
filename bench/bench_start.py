"""What it costs to ask for help, and what the first numeric command imports beyond torch; best of seven."""

import subprocess
import sys
import time

RUNS = 7

COMMANDS = {
    "pass": ["-c", "pass"],
    "help": ["-m", "rankscope.cli", "--help"],
    "certify help": ["-m", "rankscope.cli", "certify", "--help"],
}

IMPORTS = {"torch": "import torch", "collapse": "import torch\nimport rankscope\nrankscope.collapse"}


def run() -> dict[str, float]:
    """Help in multiples of ``python -c pass`` (aims 7 and 20), and seconds of imports beyond torch (aim 0.7)."""
    best = dict.fromkeys([*COMMANDS, *IMPORTS], float("inf"))
    for _ in range(RUNS):  # in turns, so that a slow moment of the machine hits all of them
        for name, words in COMMANDS.items():
            best[name] = min(best[name], _seconds(words))
        for name, code in IMPORTS.items():
            best[name] = min(best[name], _seconds(["-c", code]))
    return {
        "help / pass": best["help"] / best["pass"],
        "certify help / pass": best["certify help"] / best["pass"],
        "seconds of imports beyond torch": best["collapse"] - best["torch"],
    }


def _seconds(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)  # noqa: S603 - our own interpreter
    return time.perf_counter() - start
