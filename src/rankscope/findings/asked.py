"""Options that commands share. Each is declared once: a field is the option, its class is its group in ``--help``.

A configuration is flat, frozen and checked at birth. It checks types and ranges; names that need torch to be known
(masks, measures, position rules) are checked by the study. What does not change the numbers (how to print, where to
draw) is no part of it, because a run is named by the hash of its configuration: such options form a *view*.
"""

from collections.abc import Sequence
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypedDict, TypeVar, cast

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from rankscope.core.config import Config
from rankscope.core.registry import is_text, wrongly_declared
from rankscope.core.words import article, listed
from rankscope.errors import ConfigError, Option, options

if TYPE_CHECKING:
    from rankscope.document import Document
    from rankscope.results.statistics import Decision

A = TypeVar("A", bound="CommandConfig")

MOST_TOKENS = 16_384
"""Beyond this the attention maps of one layer alone would need gigabytes."""

MOST_SEEDS = 100_000
"""Networks of one run."""

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Placement = Literal["post", "pre", "sandwich", "parallel"]
ValueMaps = Literal["gaussian", "orthogonal", "identity"]
NormName = Literal["none", "layer", "rms", "sphere"]

OWN = "own"
"""A mask, norm or skip scale as the model has it."""


class Spelling(TypedDict, total=False):
    """How an option is spelled on the command line, beside its name; pydantic keeps it with the field.

    Args:
        shown: its default in words, where the value itself would not be understood.
        old: former names, which stay as hidden options.
        moved: former names that now mean something else, or nothing: using one is an error that names this option.
        positional: it is given without a name.
        many: it may be given several times.
        signed: it is a number that may begin with a minus sign, which is then no sign of an option.
        formats: of a view, the formats that it changes, where it does not change all of them.
    """

    shown: str
    old: tuple[str, ...]
    moved: tuple[str, ...]
    positional: bool
    many: bool
    signed: bool
    formats: tuple[str, ...]


def option(default: Any, help_: str, **more: Any) -> Any:
    """A field that is an option: its default, its help, how it is spelled, and what else pydantic's ``Field`` takes."""
    if not is_text(help_):
        raise wrongly_declared(f"option with the default {default!r}", "its help", help_, "a sentence")
    spelling = {name: more.pop(name) for name in Spelling.__annotations__ if name in more}
    return Field(default, description=help_, json_schema_extra=spelling or None, **more)


def spelling_of(field: FieldInfo) -> Spelling:
    """How the option of a field is spelled."""
    return cast("Spelling", field.json_schema_extra or {})


class CommandConfig(Config):
    """Base of what commands are asked. ``group`` is the heading of the fields that a class declares."""

    model_config = ConfigDict(validate_default=True)
    group: ClassVar[str] = "Options"

    @classmethod
    def from_call(cls, config: object, **fields: Any) -> Self:
        """The configuration that a verb was given, or the one of its fields; both at once is an error."""
        if config is None:
            return cls.of(**fields)
        if not isinstance(config, cls):
            raise ConfigError(
                f"{article(type(config).__name__)} was given, expected {article(cls.__name__)}, or its fields as "
                "keywords"
            )
        if fields:
            names = ", ".join(f"{name}=" for name in fields)
            raise ConfigError(
                f"{names} was given beside a configuration, which says everything; put it into the {cls.__name__}"
            )
        return config

    @property
    def explicit(self) -> frozenset[str]:
        """The fields that the caller asked for; one that is left at None, or a flag that is left off, is none of them.

        A configuration that sets every field was read from a file, where defaults are written out; of such a one, those
        that differ from their defaults.
        """
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        is_written_out = self.model_fields_set >= set(defaults)
        return frozenset(
            name
            for name in self.model_fields_set
            if getattr(self, name) != defaults[name] or not (is_written_out or _is_open(defaults[name]))
        )

    @classmethod
    def default_text(cls, name: str) -> str:
        """The default of a field as ``--help`` shows it."""
        field = cls.model_fields[name]
        default = spelling_of(field).get("shown", field.default)
        if _is_open(default):
            return ""
        return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)

    @classmethod
    def home(cls, name: str) -> type["CommandConfig"]:
        """The class that declares a field, which names its group."""
        return next(
            one
            for one in reversed(cls.__mro__)
            if issubclass(one, CommandConfig) and name in get_annotations(one)
        )


class FolderConfig(CommandConfig):
    """A command that makes several files: its ``--output`` is a folder, and ``files`` are names of those in it."""

    @property
    def files(self) -> tuple[str, ...]:
        """What is written into the folder."""
        raise NotImplementedError


class KeepingConfig(CommandConfig):
    """A command whose ``--output`` is a file, or a folder in which it keeps what is done so that it can go on."""

    @property
    def files(self) -> tuple[str, ...]:
        """What is written into the folder."""
        raise NotImplementedError


def _is_open(default: Any) -> bool:
    """Whether a default asks for nothing; zero is a default like others."""
    return default is None or default is False or default == ()


class SeedOptions(CommandConfig):
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
            raise ConfigError(
                Option("seeds", seeds),
                " and ",
                Option("seed", seed),
                ": give the number of networks, or the seed of one, not both",
            )
        if isinstance(seeds, str) and seeds.isdecimal():
            seeds = int(seeds)
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            if not 1 <= seeds <= MOST_SEEDS:
                raise ConfigError(
                    Option("seeds", seeds),
                    f": need at least one network and at most {MOST_SEEDS}",
                )
            return given | {"seeds": tuple(range(seeds))}
        return given if seed is None else given | {"seeds": (seed,)}

    @field_validator("seeds")
    @classmethod
    def _each_seed_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(seeds))


class RandomNetwork(CommandConfig):
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

    network: ClassVar[dict[str, int | str]] = {
        **{"layers": 12, "heads": 4, "dim": 64, "tokens": 32, "placement": "post", "position": "none"},
        **{"values": "gaussian", "init": "paper"},
    }
    """What a random network is where the options do not say; a command may have defaults of its own."""

    @classmethod
    def default_text(cls, name: str) -> str:
        """The command's own default where the field has none."""
        return super().default_text(name) or str(cls.network.get(name, ""))

    def choice(self, name: str) -> Any:
        """The value of an option of random networks, or the command's default."""
        value = getattr(self, name)
        return self.network[name] if value is None or value == OWN else value


class RunOptions(CommandConfig):
    group = "Run"
    dtype: Dtype = option("float64", "What the network computes in.")
    device: str = option("cpu", "Where to run.")


class RandomOnly(RandomNetwork, RunOptions, SeedOptions):
    """A command about random networks alone."""

    def with_defaults(self) -> Self:
        """The same with every default of the command written out, so that a saved configuration says everything."""
        return self.model_copy(
            update={name: self.choice(name) for name in self.network if name in type(self).model_fields}
        )


class Loading(TypedDict, total=False):
    """Fields of ``Model`` that say how one is fetched and opened; loading takes them by these names."""

    offline: bool
    revision: str | None
    allow_pickle: bool
    trust_remote_code: bool


class ModelLoading(CommandConfig):
    """How a model is loaded, and which of its blocks are looked at."""

    group = "Model"
    weights: Literal["trained", "initial"] | None = option(
        None,
        "trained, or initial: drawn at random, a config.json is enough.",
        shown="trained, where there are any",
    )
    stack: str | None = option(None, "Which run of blocks, of a model with several.", shown="the first")
    blocks: str | tuple[str, ...] | None = option(
        None,
        "Where the blocks are: model.layers, or one by one in their order, comma list.",
        shown="found",
    )
    dtype: Dtype | None = option(None, "Run in this dtype.", shown="the checkpoint's own")
    device: str = option("cpu", "Where to run.")
    offline: bool = option(False, "Use no network: a Hub id must be in the local cache.")
    revision: str | None = option(None, "Branch, tag or commit of a Hub id.")
    allow_pickle: bool = option(False, "Load checkpoints that are pickles.")
    trust_remote_code: bool = option(False, "Run code that comes with the model.")

    @property
    def loading(self) -> Loading:
        """How a model is loaded, as ``load_model`` takes it beside dtype and device."""
        return cast("Loading", {name: getattr(self, name) for name in Loading.__annotations__})


class Model(ModelLoading):
    """What is loaded, and how."""

    group = "Model"
    model: str | None = option(
        None,
        "Hub id, folder, built-in name ('rankscope list models'), module:attribute or file.py:attribute.",
        positional=True,
    )


class Inputs(CommandConfig):
    """What a model reads. In Python the same may be given as objects: texts, tensors, a function, a loader."""

    group = "Inputs of a model"
    text: tuple[str, ...] = option((), "A text; may be given several times.", many=True)
    texts: str | None = option(
        None, "File with one text per line, .jsonl or .parquet, each also .gz or .zst; - for stdin."
    )
    images: str | None = option(None, "Image file or folder, for vision models.")
    audio: str | None = option(None, "Sound file or folder, for speech models.")
    inputs: str | None = option(None, "Ready inputs: .pt, .npy, .npz or .safetensors.")
    call: str | None = option(None, "file.py:function, called with the model, which it runs.")
    loader: str | None = option(
        None, "file.py:loader, a DataLoader, another iterable or a function that returns one."
    )
    random_tokens: str | None = option(None, "TxN: T texts of N random tokens, where there is no tokenizer.")
    vocab: int | None = option(None, "Ids of random tokens.", ge=2, shown="the model's own")
    max_texts: int | None = option(None, "Stop after this many texts.", ge=1, shown="all")
    max_tokens: int | None = option(None, "Tokens read of each text.", ge=2, shown="128")
    batch_size: int = option(8, "Texts per forward pass.", ge=1)
    special: Literal["drop", "keep"] = option("drop", "Special tokens around a text.")
    axes: str | None = option(
        None,
        "What each axis of --inputs is, where texts are not the first: tokens,texts or tokens,texts,dim.",
    )

    @field_validator("axes", mode="before")
    @classmethod
    def _in_one_text(cls, axes: Any) -> Any:
        """Names one by one, as Python may give them, are one text."""
        return ",".join(map(str, axes)) if isinstance(axes, list | tuple) else axes

    @property
    def draws(self) -> bool:
        """Whether the command itself draws at random, whatever its model and its inputs, so that a seed matters."""
        return False

    @property
    def read_files(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (self.texts, self.images, self.audio, self.inputs, self.call, self.loader)


class SharedWork(CommandConfig):
    """A command whose work several processes or machines share."""

    group = "Who shares the work"
    workers: int | None = option(
        None,
        "Processes of this machine, or the most processors of a cluster.",
        ge=1,
        le=1024,
        shown="1; of a cluster all",
    )
    cluster: str | None = option(None, "ray, ray://HOST:10001 or HOST:6379 (extra cluster).")


class ModelInputs(Model, Inputs):
    """A command that runs a model."""

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (self.model, *self.read_files)


OF_A_MODEL = (Model, ModelLoading, Inputs)
"""Classes whose options are about a model."""


class CutOptions(CommandConfig):
    """One network made of a model, or of a random one."""

    group = "Which network of it"
    variant: str | None = option(None, "san, san+mlp, san+skip, transformer; -norm drops norms.")
    mask: str | None = option(None, "own, or a mask rule, see 'rankscope list masks'.")
    norm: Literal["own", "none", "layer", "rms", "sphere"] | None = option(
        None, "Of a model: own or none. Of a random network: none, layer, rms, sphere."
    )

    @property
    def mask_files(self) -> tuple[str, ...]:
        """The file that the mask is read from, if any."""
        return files_of_masks([self.mask or ""])


def files_of_masks(masks: Sequence[str]) -> tuple[str, ...]:
    """The files that mask rules name.

    >>> files_of_masks(["causal+file:a.npy", "window:2"])
    ('a.npy',)
    """
    rules = [rule for mask in masks for rule in mask.split("+")]
    return tuple(rule.strip().removeprefix("file:") for rule in rules if rule.strip().startswith("file:"))


class ModelOrNetwork(ModelInputs, RandomNetwork, SeedOptions):
    """A command that takes a model, or the options of a random network in its place."""

    network: ClassVar[dict[str, int | str]] = RandomNetwork.network | {"norm": "none"}

    of_model: ClassVar[dict[str, str]] = {"norm": OWN}
    """What a model is left at where the options do not say, of options that both kinds have."""

    shared: ClassVar[tuple[str, ...]] = ()
    """Options of random networks that a model takes too."""

    either: ClassVar[tuple[str, ...]] = ("model", "device", "dtype")
    """Options of a model that a random network takes too."""

    needs_network: ClassVar[bool] = True
    """Whether some option must say that a random network is meant, where no model is named."""

    @classmethod
    def default_text(cls, name: str) -> str:
        """Of an option that both kinds have, what either does without it."""
        if name in cls.of_model:
            return f"model: {cls.of_model[name]}, random network: {cls.network[name]}"
        return super().default_text(name)

    def check_kind(self, *, has_model: bool, besides: Sequence[str] = ()) -> None:
        """Raise if options of a model are mixed with those of a random network, or if neither was asked for.

        ``besides``: options of random networks that this model takes as well.
        """
        asked = {name: self.home(name) for name in sorted(self.explicit)}
        of_random = [name for name, home in asked.items() if home is RandomNetwork]
        if has_model:
            wrong = [name for name in of_random if name not in (*self.shared, *besides)]
            said = f"belongs to a random network, but a model was named ({self.model or 'an object'}); leave one out"
        else:
            of_model = [name for name, home in asked.items() if home in OF_A_MODEL]
            wrong = [name for name in of_model if name not in self.either]
            said = "belongs to a model, but none was named; name a model, or leave it out"
        if wrong:
            raise ConfigError(*options(wrong), f" {said}")
        if not has_model and self.needs_network and not of_random and "norm" not in asked:
            raise ConfigError(
                "no model was named; name one (rankscope list models), or ask for a random network: ",
                Option("layers", 12),
            )

    def spec(self) -> dict[str, int | str]:
        """The fields of the ``Spec`` of the random network."""
        return {name: self.choice(name) for name in self.network if name != "tokens"}


class ModelOrRandom(CutOptions, ModelOrNetwork):
    """The same for one network made of it."""

    network: ClassVar[dict[str, int | str]] = ModelOrNetwork.network | {"mask": "full", "variant": "san"}
    of_model: ClassVar[dict[str, str]] = {"variant": "transformer", "mask": OWN, "norm": OWN}

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (*super().reads, *self.mask_files)


class View(CommandConfig):
    """Options of a command that change no number: what is shown of a finding, and what makes the program fail."""

    group = "What is shown"

    def refuse_idle(self, wanted: str) -> None:
        """Raise if an option was given that changes other formats than the one that is written."""
        for name in sorted(self.explicit):
            formats = spelling_of(type(self).model_fields[name]).get("formats", (wanted,))
            if wanted not in formats:
                raise ConfigError(
                    Option(name),
                    f" has no effect on {wanted}, only on {listed(formats)}; leave it out, or ask for ",
                    Option("format", formats[0]),
                )

    def document(self, finding: Any) -> "Document":
        """The page."""
        found: Document = finding.document()
        return found

    def decisions(self, finding: Any) -> "Sequence[Decision]":
        """What became of every limit that the user set."""
        return ()

    def notes(self, finding: Any) -> "Sequence[str]":
        """What is said on stderr where the page itself goes to a file, or is not what was asked for."""
        first: Sequence[str] = finding.words[:1]
        return first

    def asking(self, config: A) -> A:
        """The configuration with what the view needs besides, such as measures that a condition names."""
        return config


class Limits(View):
    """A view with limits, which may be undecided."""

    group = "Limits"
    limits: ClassVar[tuple[str, ...]]
    """The options that set a limit."""

    undecided: Literal["ok", "fail"] | None = option(
        None,
        "A limit that could not be decided exits with 0 (ok) or with 1 (fail).",
        shown="exit with 3",
    )

    @model_validator(mode="after")
    def _limits_are_set(self) -> Self:
        if self.undecided is not None and not any(getattr(self, name) for name in self.limits):
            raise ConfigError(
                Option("undecided", self.undecided),
                " has no effect: it says what an undecided limit means, and none is set; leave it out, or set one: ",
                *options(self.limits),
            )
        return self
