"""Train the sorting model and save it: ``python -m rankscope.studies.sorting_train OUT.safetensors``.

The defaults make the model that comes with the package, in well under a minute on one core.
"""

import argparse
import sys
from collections.abc import Sequence

from rankscope.errors import RankscopeError
from rankscope.results.files import check_output
from rankscope.studies.sorting_model import save_sorting
from rankscope.studies.sorting_task import OFFICIAL, SortingConfig
from rankscope.studies.sorting_training import Epoch, train_sorting

OPTIONS = {"seed": int, "epochs": int, "batch": int, "learning_rate": float, "warmup": int, "mlp_width": int}
"""Fields of the configuration that are options of the script."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 after the model is saved, 2 with one line on stderr if it cannot be made."""
    asked = vars(_parser().parse_args(arguments))
    start = OFFICIAL if asked.pop("official") else SortingConfig()
    path = asked.pop("out")
    try:
        check_output(path, (".safetensors",))
        config = SortingConfig.of(
            **start.model_dump() | {name: v for name, v in asked.items() if v is not None}
        )
        trained = train_sorting(config, _tell)
        save_sorting(trained.model, path)
    except RankscopeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stderr.write(f"{path}: token accuracy {trained.test_accuracy:.4f} on {config.test} test sequences\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rankscope.studies.sorting_train", description=__doc__)
    parser.add_argument("out", metavar="OUT.safetensors", help="file to write")
    parser.add_argument("--official", action="store_true", help="optimizer settings of the published code")
    parser.add_argument(
        "--fresh", action="store_true", default=None, help="new training sequences in every epoch"
    )
    for name, kind in OPTIONS.items():
        default = getattr(SortingConfig(), name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"{default} if not given")
    return parser


def _tell(found: Epoch) -> None:
    sys.stderr.write(
        f"epoch {found.epoch}: loss {found.loss:.4f}, token accuracy {found.train_accuracy:.4f} in training, "
        f"{found.test_accuracy:.4f} in test\n"
    )


if __name__ == "__main__":
    sys.exit(main())
