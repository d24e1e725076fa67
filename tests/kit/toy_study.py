"""The other half of the toy command: it computes what was asked."""

from collections.abc import Callable
from typing import Any

from kit.toy_finding import CountConfig, Counted, CountFinding
from rankscope.results import Table, provenance


def count_tokens(
    config: CountConfig | None = None, *, advance: Callable[[int, int], None] | None = None, **fields: Any
) -> CountFinding:
    """One row per text: how many tokens it has."""
    asked = config or CountConfig.of(**fields)
    found = []
    for done, text in enumerate(asked.text, start=1):
        found.append(Counted(text=text, tokens=len(text.split()[: asked.longest])))
        if advance is not None:
            advance(done, len(asked.text))
    columns = {"measure": "tokens", "definition": "tokens", "floor": 0.0, "sample": list(range(len(found)))}
    table = Table.from_columns(
        columns | {"value": [float(one.tokens) for one in found]},
        provenance=provenance(asked.model_dump(mode="json"), seeds=[]),
        command="count",
    )
    return CountFinding(texts=tuple(found), table=table)
