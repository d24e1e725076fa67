"""In which ways a model and its inputs come, and which options each way reads.

An option that is given and read by nobody would silently do nothing, so it is refused. What every way reads
(``max_texts``, ``stack``) is not listed here. A new option that some ways read only is one line of ``EFFECTS`` and its
name in the ways that read it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rankscope.errors import ConfigError
from rankscope.findings.asked import Asked


class Way(NamedTuple):
    """One way in which something comes, in words that follow "has no effect on", and the options that it reads."""

    words: str
    reads: tuple[str, ...]


class Effect(NamedTuple):
    """What an option does, as a sentence about it, and what would give it an effect; ``names`` are options in that."""

    does: str
    instead: str
    names: tuple[str, ...] = ()


READING: Mapping[str, Way] = {
    "texts": Way("texts", ("max_tokens", "batch_size", "special")),
    "random_tokens": Way("random tokens", ("vocab", "batch_size")),
    "images": Way("images", ("batch_size",)),
    "audio": Way("sound", ("batch_size",)),
    "tensors": Way("ready inputs", ("batch_size", "axes")),
    "calls": Way("inputs that come call by call, which are run as they are", ("axes",)),
}
"""How the inputs of a model come."""

_PLACE = ("dtype", "device")
LOADED: Mapping[str, Way] = {
    "hub": Way("a Hub id", (*_PLACE, "weights", "revision", "allow_pickle", "trust_remote_code")),
    "folder": Way("a folder", (*_PLACE, "weights", "allow_pickle", "trust_remote_code")),
    "file": Way("a file", (*_PLACE, "weights")),
    "listed": Way("a built-in model", (*_PLACE, "weights")),
    "attribute": Way("a model that your code makes", _PLACE),
    "live": Way("a model that is loaded already", _PLACE),  # compared with what it has
}
"""How a model comes."""

EFFECTS: Mapping[str, Effect] = {
    "vocab": Effect(
        "it is the number of ids of random tokens", "ask for random_tokens='2x48'", ("random_tokens",)
    ),
    "max_tokens": Effect("it cuts texts after this many tokens", "give texts=", ("texts",)),
    "batch_size": Effect("it cuts texts, images, sound and whole tensors into passes", "give one of these"),
    "special": Effect("it is about tokens that a tokenizer puts around a text", "give texts=", ("texts",)),
    "axes": Effect("it names the axes of ready inputs", "give inputs=", ("inputs",)),
    "revision": Effect("it is a branch, tag or commit of a Hub id", "name one (org/name)"),
    "allow_pickle": Effect(
        "it opens pickled weights of a folder or a Hub id", "name one of these, with its trained weights"
    ),
    "trust_remote_code": Effect("it runs code that comes with a folder or a Hub id", "name one of these"),
    "weights": Effect("its weights are taken as they are", "name a folder, a Hub id or a built-in model"),
    "seed": Effect(
        "nothing is drawn at random",
        "draw weights with weights='initial', or tokens with random_tokens='2x48'",
        ("weights", "random_tokens"),
    ),
    "score": Effect("it ranks single paths", "ask for some: top=20", ("top",)),
    "seconds": Effect("it is the time for a search of single paths", "ask for some: top=20", ("top",)),
    "mlps": Effect("it says what paths do at MLPs", "keep them: variant='transformer'", ("variant",)),
    "count_mlps": Effect("it counts MLPs on a path", "keep them: variant='transformer'", ("variant",)),
    "before_final_norm": Effect(
        "it takes the last state before the final norm", "decompose a model that has one"
    ),
    "trajectories": Effect("it records paths of random starts", "run some: starts=200", ("starts",)),
    "cosine": Effect(
        "it is a limit of forecasts", "ask for one: name a config without weights=", ("weights",)
    ),
    "tokens": Effect(
        "it is the length of the texts of forecasts", "name a config without weights=", ("weights",)
    ),
}
EFFECTS = {**EFFECTS, "seeds": EFFECTS["seed"]}


def refuse_unread(config: Asked, ways: Mapping[str, Way], way: str) -> None:
    """Raise if an option was given that some of the ways read, but not this one."""
    known = {name for one in ways.values() for name in one.reads}
    refuse_idle(config, known - set(ways[way].reads), f"on {ways[way].words}")


def refuse_idle(config: Asked, names: Iterable[str], where: str, instead: str = "") -> None:
    """Raise if one of these options was given; it has no effect ``where``, such as "on texts".

    ``instead`` is what would give it one, where that is not what others would say.
    """
    idle = [name for name in type(config).model_fields if name in set(names) & config.explicit]
    if "seed" in idle:  # one seed is written as a list of one besides
        idle = [name for name in idle if name != "seeds"]
    if idle:
        said = "; ".join(
            f"{name}= has no effect {where}: {EFFECTS[name].does}; leave it out, or "
            f"{instead or EFFECTS[name].instead}"
            for name in idle
        )
        raise ConfigError(said, *idle, *(other for name in idle for other in EFFECTS[name].names))
