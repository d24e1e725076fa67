"""Options that several commands share, and how their texts are read."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from rankscope.errors import ConfigError

Heads = Annotated[int, Option(help="Heads per attention; must divide --dim.")]
Dim = Annotated[int, Option(help="Width of a token.")]
Tokens = Annotated[int, Option(help="Tokens per text, N(0, 1) each.")]
Seeds = Annotated[int | None, Option(help="How many networks: seeds 0 .. N-1.")]
Seed = Annotated[int | None, Option(help="One network, of this seed.", show_default="0")]
NoError = Annotated[
    bool, Option("--no-error", help="Split pass: half the time, and no floors: nothing counts as resolved.")
]
Placement = Annotated[str, Option(help="Where norms stand: post, pre, sandwich, parallel.")]
Position = Annotated[str, Option(help="Position rule, see 'rankscope list positions'.")]
Values = Annotated[str, Option(help="Value maps: gaussian, orthogonal, identity.")]
Init = Annotated[str, Option(help="Initialisation, see 'rankscope list inits'.")]
Plot = Annotated[Path | None, Option(help="Draw the curves: .png, .svg, .html or .json.")]
Output = Annotated[Path | None, Option(help="Write there instead of stdout.")]


class IfUndecided(StrEnum):
    """What becomes of a threshold that rounding, NaN or too few texts leave open."""

    OK = "ok"
    FAIL = "fail"


Undecided = Annotated[
    IfUndecided | None,
    Option(
        help="A threshold that could not be decided exits with 0 (ok) or with 1 (fail).",
        show_default="exit with 3",
    ),
]

Model = Annotated[
    str | None,
    Argument(
        help="Hub id, folder, built-in name ('rankscope list models'), module:attribute or file.py:attribute; "
        "leave out for a random network (--layers N ...).",
        show_default=False,
    ),
]
Text = Annotated[list[str] | None, Option(help="A text; may be given several times.")]
Texts = Annotated[str | None, Option(help="File with one text per line, .jsonl, or - for stdin.")]
Images = Annotated[str | None, Option(help="Image file or folder, for vision models.")]
Audio = Annotated[str | None, Option(help="Sound file or folder, for speech models.")]
Inputs = Annotated[str | None, Option(help="Ready inputs: .pt, .npy, .npz or .safetensors.")]
Call = Annotated[str | None, Option(help="file.py:function, called with the model, which it runs.")]
Loader = Annotated[
    str | None, Option(help="file.py:loader, a DataLoader, another iterable or a function that returns one.")
]
Vocab = Annotated[int | None, Option(help="Ids of random tokens.", show_default="the model's own")]
DrawnTokens = Annotated[
    str | None, Option(help="TxN: T texts of N random tokens, where there is no tokenizer.")
]
OneVariant = Annotated[
    str | None,
    Option(
        help="san, san+mlp, san+skip, transformer; -norm drops norms.",
        show_default="a model as it is, a random network san",
    ),
]
OneMask = Annotated[str, Option(help="own, or a mask rule, see 'rankscope list masks'.")]
NormChoice = Annotated[
    str | None, Option(help="Of a model: own or none. Of a random network: none, layer, rms, sphere.")
]
Weights = Annotated[
    str | None,
    Option(
        help="trained, or initial: drawn at random, a config.json is enough.",
        show_default="trained, where there are any",
    ),
]
DrawSeed = Annotated[
    int | None, Option(help="Of random networks, initial weights and random tokens.", show_default="0")
]
DrawSeeds = Annotated[int | None, Option(help="How many networks (or draws of tokens): seeds 0 .. N-1.")]
MaxTokens = Annotated[int | None, Option(help="Tokens read of each text.", show_default="128")]
MaxTexts = Annotated[int | None, Option(help="Stop after so many texts.", show_default="all")]
Special = Annotated[str, Option(help="Special tokens around a text: drop or keep.")]
Stack = Annotated[
    str | None, Option(help="Which run of blocks, of a model with several.", show_default="the first")
]
Device = Annotated[str, Option(help="Where to run.")]
Revision = Annotated[str | None, Option(help="Branch, tag or commit of a Hub id.")]
AllowPickle = Annotated[bool, Option("--allow-pickle", help="Load checkpoints that are pickles.")]
TrustRemoteCode = Annotated[bool, Option("--trust-remote-code", help="Run code that comes with the model.")]
OwnLayers = Annotated[int | None, Option(help="Random network: blocks.", show_default="12")]
OwnHeads = Annotated[int | None, Option(help="Random network: heads; must divide --dim.", show_default="4")]
OwnDim = Annotated[int | None, Option(help="Random network: width of a token.", show_default="64")]
OwnTokens = Annotated[int | None, Option(help="Random network: tokens, N(0, 1) each.", show_default="32")]
OwnPlacement = Annotated[
    str | None, Option(help="Random network: post, pre, sandwich, parallel.", show_default="post")
]
OwnPosition = Annotated[str | None, Option(help="Random network: position rule.", show_default="none")]
OwnValues = Annotated[
    str | None, Option(help="Random network: gaussian, orthogonal, identity.", show_default="gaussian")
]
OwnInit = Annotated[str | None, Option(help="Random network: initialisation.", show_default="paper")]

MOST_SEEDS = 100_000

FORMATS = {".json": "json", ".csv": "csv", ".html": "html", ".parquet": "parquet", ".txt": "table"}
"""Output format by file ending, where --format does not say."""


PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".gif", ".webp")
"""Endings that no format of results has."""


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    HTML = "html"
    PARQUET = "parquet"  # to a file only


AsFormat = Annotated[Format | None, Option("--format", help="How to print.", show_default="table")]


def listed(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list; commas inside square brackets belong to the item.

    >>> listed("residual[frobenius,mean], cosine")
    ('residual[frobenius,mean]', 'cosine')
    """
    items, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    items.append(text[start:])
    return tuple(stripped for item in items if (stripped := item.strip()))


def chosen_format(format_: Format | None, output: Path | None) -> Format:
    """The format asked for, or the one the output's ending names, or a table for reading; they must not differ."""
    if format_ is Format.PARQUET and output is None:
        raise ConfigError("parquet is a binary format; give --output FILE")
    ending = "" if output is None else output.suffix.lower()
    if ending in PICTURES:
        raise ConfigError(
            f"--output {output} ends like a picture, but results go there; draw with --plot {output}"
        )
    named = None if ending not in FORMATS else Format(FORMATS[ending])
    if format_ is None:
        return named or Format.TABLE
    # Any text may go into a .txt.
    if named not in (None, format_) and not (named is Format.TABLE and format_ is not Format.PARQUET):
        right = next(one for one, name in FORMATS.items() if name == format_)
        raise ConfigError(
            f"--output {output} ends like {named}, but --format {format_} was asked for; leave out --format, or name "
            f"{Path(output or '').with_suffix(right)}"
        )
    return format_


def mask_files(*masks: str | None) -> list[str]:
    """The paths that mask rules ``file:PATH`` may name.

    >>> mask_files("causal+file:a.npy, window:2", None)
    ['a.npy, window:2', 'a.npy', 'window:2']
    """
    rests = [rest for mask in masks for rest in (mask or "").split("file:")[1:]]
    return [name for rest in rests for name in (rest, *map(str.strip, re.split(r"[,+]", rest))) if name]


def seed_list(count: int | None, one: int | None) -> tuple[int, ...]:
    """The seeds that ``--seeds N`` or ``--seed S`` name; seed 0 if neither is given."""
    if count is not None and one is not None:
        raise ConfigError("give --seeds N for many networks or --seed S for one, not both")
    if count is not None and not 1 <= count <= MOST_SEEDS:
        raise ConfigError(f"--seeds {count}: need at least one network and at most {MOST_SEEDS}")
    if one is not None and not 0 <= one < 2**63:
        raise ConfigError(f"--seed {one}: seeds are integers from 0 to 2^63 - 1")
    return (one or 0,) if count is None else tuple(range(count))


def given_inputs(
    *,
    texts: str | None,
    text: list[str] | None,
    inputs: str | None,
    call: str | None,
    loader: str | None,
    **others: str | None,
) -> dict[str, Any]:
    """What a model is fed, as studies take it; functions and loaders are imported from the user's files."""
    if texts is not None and text:
        raise ConfigError("give --texts FILE or --text TEXT, not both")
    if inputs is not None and loader is not None:
        raise ConfigError("give --inputs FILE or --loader FILE.py:NAME, not both")
    found: dict[str, Any] = {"texts": text or texts, "inputs": inputs, "call": None, **others}
    if loader is not None or call is not None:
        from rankscope.sources import load_attribute

        found["inputs"] = inputs if loader is None else load_attribute(loader)
        found["call"] = None if call is None else load_attribute(call)
    return found
