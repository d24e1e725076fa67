"""``python -m bench``: every benchmark as one JSON object."""

import json
import sys

import torch

from bench import (
    bench_alone,
    bench_bounds,
    bench_centers,
    bench_dynamics,
    bench_network,
    bench_paths,
    bench_recognise,
    bench_scan,
    bench_split,
    bench_start,
    bench_translate,
    bench_watch,
)


def main() -> None:
    torch.set_num_threads(1)
    report = {
        "torch": torch.__version__,
        "centers": bench_centers.run(),
        "network": bench_network.run(),
        "alone": bench_alone.run(),
        "start": bench_start.run(),
        "split": bench_split.run(),
        "scan": bench_scan.run(),
        "translate": bench_translate.run(),
        "paths": bench_paths.run(),
        "recognise": bench_recognise.run(),
        "bounds": bench_bounds.run(),
        "dynamics": bench_dynamics.run(),
        "watch": bench_watch.run(),
    }
    json.dump(report, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
