"""Published orders and rates of layers, which several tests hold them to."""

import math

from rankscope.layers.find import all_layers

ROWS = {kind.name: kind for kind in all_layers()}

EXACT = math.inf
ORDERS = {
    **dict.fromkeys(("softmax", "softmax-heads", "linear", "differential", "linformer-means"), (3, 3)),
    **dict.fromkeys(("cosine", "gaussian-kernel", "sparsemax", "entmax", "sinkhorn", "performer"), (3, 3)),
    **dict.fromkeys(("causal", "window", "alibi", "rotary", "gated-output", "retention"), (1, 1)),
    **dict.fromkeys(("cross-attention", "hyper-connections", "off-by-one-heads"), (1, 1)),
    **dict.fromkeys(("gat@karate", "gatv2@karate", "graph-transformer@karate"), (1, 1)),
    **dict.fromkeys((name for name in ROWS if name.startswith(("mask:", "random-walk"))), (1, 1)),
    "value-residual": (2, 2),
    **dict.fromkeys(
        ("off-by-one", "sinks", "sigmoid", "linear-unnormalised", "gaussian-unnormalised"), (1, 3)
    ),
    "linformer": (1, 2),
    **dict.fromkeys(("off-by-one-causal", "retention-unnormalised", "gated-linear", "delta-rule"), (None, 1)),
    **dict.fromkeys(("gcn@karate", "appnp@karate"), (None, 1)),
    **dict.fromkeys(("gat@complete", "gatv2@complete"), (EXACT, EXACT)),
}
"""Order of the residual and of the directions; None where equal tokens do not stay equal."""

RATES = {
    "retention": 1 / (1 + 1 - 2**-5),
    "mask:causal": 1 / 2,
    **{f"mask:prefix:{k}+causal": 1 / (k + 1) for k in (1, 2, 3, 5)},
    "mask:longformer:2:1": 0.828000,
    "mask:longformer:2:2": 0.708748,
    "mask:longformer:2:4": 0.550476,
    "mask:dilated:1:1+dilated:1:2+dilated:1:4+dilated:1:8": 0.975040,
    "mask:dilated:2:2": 1.0,
    "mask:strided:8": 0.601794,
    **{f"{layer}@karate": 0.896142 for layer in ("random-walk-gcn", "gat", "gatv2", "graph-transformer")},
    **{f"{layer}@cycle:20": 0.967371 for layer in ("random-walk-gcn", "gat", "gcn")},
    **{f"{layer}@path:20": 0.991218 for layer in ("random-walk-gcn", "gat")},
    **{f"{layer}@petersen": 1 / 2 for layer in ("random-walk-gcn", "gat", "gcn")},
    **{f"{layer}@hypercube:4": 3 / 5 for layer in ("random-walk-gcn", "gat", "gcn")},
    **{f"{layer}@star:10": 1 / 2 for layer in ("random-walk-gcn", "gat")},
    **{f"{layer}@barbell:5": 0.941603 for layer in ("random-walk-gcn", "gat")},
}
"""Factor per layer of what is unequal over what is equal, near consensus, at 64 tokens."""
