"""In which ways a model and its inputs come, and which options each way reads.

An option that is given and read by nobody would silently do nothing, so it is refused. What every way reads
(``max_texts``, ``stack``) is not listed here. A new option that some ways read only is one line of ``EFFECTS`` and its
name in the ways that read it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rankscope.errors import ConfigError, Option, Piece
from rankscope.findings.asked import CommandConfig


class Way(NamedTuple):
    """One way in which something comes, in words that follow "has no effect on", and the options that it reads."""

    words: str
    reads: tuple[str, ...]


class OptionEffect(NamedTuple):
    """What an option does, as a sentence about it, and the pieces of what would give it an effect."""

    does: str
    instead: tuple[Piece, ...]


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
    "hub": Way("a Hub id", (*_PLACE, "weights", "revision", "allow_pickle", "trust_remote_code", "stream")),
    "folder": Way("a folder", (*_PLACE, "weights", "allow_pickle", "trust_remote_code", "stream")),
    "file": Way("a file", (*_PLACE, "weights")),
    "listed": Way("a built-in model", (*_PLACE, "weights")),
    "attribute": Way("a model that your code makes", _PLACE),
    "live": Way("a model that is loaded already", _PLACE),  # compared with what it has
}
"""How a model comes."""

TEXTS, FOLDER = ("give ", Option("texts")), ("name one of these",)
SINGLE, MLPS = ("ask for some: ", Option("top", 20)), ("keep them: ", Option("variant", "transformer"))
FORECAST = ("name a config without ", Option("weights"))
DRAWN = ("draw weights with ", Option("weights", "initial"))

EFFECTS: Mapping[str, OptionEffect] = {
    "vocab": OptionEffect(
        "it is the number of ids of random tokens", ("ask for ", Option("random_tokens", "2x48"))
    ),
    "max_tokens": OptionEffect("it cuts texts after this many tokens", TEXTS),
    "batch_size": OptionEffect(
        "it cuts texts, images, sound and whole tensors into passes", ("give one of these",)
    ),
    "special": OptionEffect("it is about tokens that a tokenizer puts around a text", TEXTS),
    "axes": OptionEffect("it names the axes of ready inputs", ("give ", Option("inputs"))),
    "revision": OptionEffect("it is a branch, tag or commit of a Hub id", ("name one (org/name)",)),
    "allow_pickle": OptionEffect("it opens pickled weights of a folder or a Hub id, trained ones", FOLDER),
    "trust_remote_code": OptionEffect("it runs code that comes with a folder or a Hub id", FOLDER),
    "stream": OptionEffect(
        "it reads weights block by block from .safetensors files", ("name a folder that holds some",)
    ),
    "weights": OptionEffect(
        "its weights are taken as they are", ("name a folder, a Hub id or a built-in model",)
    ),
    **dict.fromkeys(
        ("seed", "seeds"),
        OptionEffect(
            "nothing is drawn at random", (*DRAWN, ", or tokens with ", Option("random_tokens", "2x48"))
        ),
    ),
    "score": OptionEffect("it ranks single paths", SINGLE),
    "seconds": OptionEffect("it is the time for a search of single paths", SINGLE),
    "mlps": OptionEffect("it says what paths do at MLPs", MLPS),
    "count_mlps": OptionEffect("it counts MLPs on a path", MLPS),
    "before_final_norm": OptionEffect(
        "it takes the last state before the final norm", ("decompose a model that has one",)
    ),
    "trajectories": OptionEffect("it records paths of random starts", ("run some: ", Option("starts", 200))),
    "cosine": OptionEffect("it is a limit of forecasts", FORECAST),
    "tokens": OptionEffect("it is the length of the texts of forecasts", FORECAST),
}
"""What options do that only some ways, networks or other options give an effect."""


def refuse_unread(config: CommandConfig, ways: Mapping[str, Way], way: str) -> None:
    """Raise if an option was given that some of the ways read, but not this one."""
    known = {name for one in ways.values() for name in one.reads}
    refuse_idle(config, known - set(ways[way].reads), f"on {ways[way].words}")


def refuse_idle(
    config: CommandConfig, names: Iterable[str], *where: Piece, instead: tuple[Piece, ...] = ()
) -> None:
    """Raise if one of these options was given; it has no effect ``where``, such as "on texts".

    ``instead`` is what would give it one, where that is not what others would say.
    """
    idle = [name for name in type(config).model_fields if name in set(names) & config.explicit]
    if "seed" in idle:  # one seed is written as a list of one besides
        idle = [name for name in idle if name != "seeds"]
    said = list[Piece]()
    for name in idle:
        does, would = EFFECTS[name]
        said += ["; "] if said else []
        said += [Option(name), " has no effect ", *where, f": {does}; leave it out, or ", *(instead or would)]
    if said:
        raise ConfigError(*said)
