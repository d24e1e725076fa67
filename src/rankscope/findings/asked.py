"""Options that commands share. Each is declared once: a field is the option, its class is its group in ``--help``.

A configuration is flat, frozen and checked at birth. It checks types and ranges; names that need torch to be known
(masks, measures, position rules) are checked by the study. What does not change the numbers (how to print, where to
draw) is no part of it, because a run is named by the hash of its configuration: such options form a *view*.
"""

from inspect import get_annotations
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from rankscope.core.config import Config
from rankscope.errors import ConfigError

MOST_TOKENS = 16_384
"""Beyond this the attention maps of one layer alone would need gigabytes."""

MOST_SEEDS = 100_000
"""Networks of one run."""

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Placement = Literal["post", "pre", "sandwich", "parallel"]
ValueMaps = Literal["gaussian", "orthogonal", "identity"]
NormName = Literal["none", "layer", "rms", "sphere"]


def option(default: Any, help_: str, **more: Any) -> Any:
    """A field that is an option.

    Args:
        shown: its default in words, where the value itself would not be understood.
        old: former names, which stay as hidden options.
        positional: it is given without a name.
        many: it may be given several times.
    """
    known = ("shown", "old", "positional", "many")
    extra: dict[str, Any] = {name: more.pop(name) for name in known if name in more}
    return Field(default, description=help_, json_schema_extra=extra or None, **more)


class Asked(Config):
    """Base of what commands are asked. ``group`` is the heading of the fields that a class declares."""

    model_config = ConfigDict(defer_build=True, validate_default=True)  # mixins are never made themselves
    group: ClassVar[str] = "Options"

    @classmethod
    def default_text(cls, name: str) -> str:
        """The default of a field as ``--help`` shows it."""
        field = cls.model_fields[name]
        extra = field.json_schema_extra
        default = extra.get("shown", field.default) if isinstance(extra, dict) else field.default
        if default in (None, (), False):
            return ""
        return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)

    @classmethod
    def home(cls, name: str) -> type["Asked"]:
        """The class that declares a field, which names its group."""
        return next(
            one for one in reversed(cls.__mro__) if issubclass(one, Asked) and name in get_annotations(one)
        )


class Seeds(Asked):
    group = "Randomness"
    seeds: tuple[int, ...] = option((0,), "How many networks: seeds 0 to N-1.", min_length=1, shown="1")
    seed: int | None = option(None, "One network, of this seed.", ge=0, lt=2**63, shown="0")

    @model_validator(mode="before")
    @classmethod
    def _as_tuple(cls, given: Any) -> Any:
        """A number of seeds is a range of them, one seed a tuple; both at once is an error."""
        if not isinstance(given, dict):
            return given
        seeds, seed = given.get("seeds"), given.get("seed")
        if seeds is not None and seed is not None:
            wrong = ConfigError(
                f"seeds={seeds} and seed={seed}: give the number of networks, or the seed of one, not both"
            )
            wrong.fields = ("seeds", "seed")
            raise wrong
        if isinstance(seeds, str) and seeds.isdecimal():
            seeds = int(seeds)
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            if not 1 <= seeds <= MOST_SEEDS:
                wrong = ConfigError(f"seeds={seeds}: need at least one network and at most {MOST_SEEDS}")
                wrong.fields = ("seeds",)
                raise wrong
            return given | {"seeds": tuple(range(seeds))}
        return given if seed is None else given | {"seeds": (seed,)}

    @field_validator("seeds")
    @classmethod
    def _each_seed_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(seeds))


class RandomNetwork(Asked):
    """A random network; ``None`` leaves a choice to the command."""

    group = "Random network"
    layers: int | None = option(None, "Number of blocks.", ge=1)
    heads: int | None = option(None, "Heads of every attention; must divide the width.", ge=1)
    dim: int | None = option(None, "Width of a token.", ge=1)
    tokens: int | None = option(None, "Tokens of a text, drawn from N(0, 1).", ge=2, le=MOST_TOKENS)
    placement: Placement | None = option(None, "Where norms stand.")
    position: str | None = option(None, "Position rule, see 'rankscope list positions'.")
    values: ValueMaps | None = option(None, "How value maps are drawn.")
    init: str | None = option(None, "Initialisation, see 'rankscope list inits'.")

    network: ClassVar[dict[str, Any]] = {
        **{"layers": 12, "heads": 4, "dim": 64, "tokens": 32, "placement": "post", "position": "none"},
        **{"values": "gaussian", "init": "paper"},
    }
    """What a random network is where the options do not say; a command may have defaults of its own."""

    @classmethod
    def default_text(cls, name: str) -> str:
        """The command's own default where the field has none."""
        return super().default_text(name) or str(cls.network.get(name, ""))

    def chosen(self, name: str) -> Any:
        """The value of an option of random networks, or the command's default."""
        value = getattr(self, name)
        return self.network[name] if value is None else value


class Run(Asked):
    group = "Run"
    dtype: Dtype = option("float64", "What the network computes in.")
    device: str = option("cpu", "Where to run.")


class Drawn(RandomNetwork, Run, Seeds):
    """A command about random networks alone."""

    def filled(self) -> Self:
        """The same with every default of the command written out, so that a saved configuration says everything."""
        return self.model_copy(
            update={name: self.chosen(name) for name in self.network if name in type(self).model_fields}
        )
