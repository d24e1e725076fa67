"""The random network that stands in for a model, for commands that take either."""

from typing import TYPE_CHECKING, Any

from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.network import Spec

DEFAULT_TOKENS = 32
DEFAULTS: dict[str, Any] = {"layers": 12, "heads": 4, "dim": 64}
DEFAULTS |= {"placement": "post", "position": "none", "values": "gaussian", "init": "paper"}
"""Options of random networks with their defaults, those of ``rankscope collapse``."""


def random_spec(model: str | None, given: dict[str, Any], norm: str | None) -> "Spec | None":
    """The random network that the options describe, where no model is named; options of the other kind are errors."""
    used = [name for name, value in given.items() if value is not None]
    if model is not None:
        if used:
            shown = ", ".join(f"--{name}" for name in used)
            raise ConfigError(
                f"{shown} belongs to a random network, but the model {model!r} was named; leave one out"
            )
        return None
    if not used and norm is None:
        raise ConfigError(
            "no model was named; give a MODEL (rankscope list models), or a random network such as --layers 12"
        )
    from rankscope.network import Spec

    chosen = DEFAULTS | {name: given[name] for name in used if name != "tokens"}
    return Spec.of(**chosen, norm=norm or "none", variant="transformer")
