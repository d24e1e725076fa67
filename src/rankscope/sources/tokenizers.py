"""The tokenizer of a model as its own files mean it: what a library makes of them is compared with what they say."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rankscope.errors import FileError, MissingExtraError
from rankscope.results.files import from_json
from rankscope.sources.safety import first_line

PROBES = (
    "The Quick brown FOX jumps, 3.14 times!",
    "Don't  stop: NASA's café, naïve Ångström.",
    "x_1 = [2, 3]; Привет, Мир",
)
ENTRIES = 64
"""So many entries of the vocabulary are tried besides, spread over all of it."""

_SETTINGS = ("do_lower_case", "strip_accents", "add_prefix_space", "tokenize_chinese_chars")
"""Settings of tokenizer_config.json that may make text into other tokens than tokenizer.json says, on purpose."""


class OtherIds(str):
    """A warning that a library would read texts as other ids than the files of the model say.

    ``text`` is an example, ``library`` and ``file`` what they make of it; ``used`` tells which of them is used.
    """

    text: str
    library: tuple[int, ...]
    file: tuple[int, ...]
    used: str


def read_tokenizer(
    transformers: ModuleType, folder: Path, options: Mapping[str, Any]
) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer in the folder of a model and what there is to say about it, or an error if it has no vocabulary.

    Whether it fits is not decided here by what it makes of English: a vocabulary of amino acids is a vocabulary.
    """
    made = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    if not _ordinary(made):
        raise ValueError("its vocabulary has no entries besides special tokens")
    if "gguf_file" in options:
        return made, ()
    settings = _settings(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        return _compared(transformers, made, folder / "tokenizer.json", settings)
    return _cased(transformers, made, settings, folder, options)


def _ordinary(tokenizer: Any) -> dict[str, int]:
    """The entries of the vocabulary that texts are made of: all but special and added tokens."""
    added = set(getattr(tokenizer, "added_tokens_decoder", {})) | set(tokenizer.all_special_ids)
    return {entry: number for entry, number in tokenizer.get_vocab().items() if number not in added}


def _settings(file: Path) -> dict[str, Any]:
    try:
        found = from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _compared(
    transformers: ModuleType, made: Any, file: Path, settings: Mapping[str, Any]
) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer that gives the ids of ``tokenizer.json``, unless other settings were saved with it on purpose.

    transformers builds the tokenizer that belongs to the type of the model and lays its defaults (BERT: small letters)
    over what the file says.
    """
    from tokenizers import Tokenizer

    try:
        own = Tokenizer.from_file(str(file))
    except (
        Exception
    ) as error:  # the tokenizers package raises plain ones; what the library made of it may be right
        return made, (
            f"tokenizer.json could not be compared with what transformers reads: {first_line(error)}",
        )
    own.no_truncation()
    own.no_padding()
    ordinary = sorted(_ordinary(made).values())
    some = ordinary[:: max(len(ordinary) // ENTRIES, 1)]
    probes = dict.fromkeys((*PROBES, *filter(str.strip, (own.decode([entry]) for entry in some))))
    differ = []
    for text in probes:
        theirs = tuple(made(text, add_special_tokens=False, verbose=False)["input_ids"])
        ours = tuple(own.encode(text, add_special_tokens=False).ids)
        if theirs != ours:
            differ.append((text, theirs, ours))
    if not differ:
        return made, ()
    text, theirs, ours = min(differ, key=lambda one: len(one[0]))
    asked = [name for name in _SETTINGS if name in settings]
    words = (
        f"transformers reads tokenizer.json otherwise than the file itself says ({text!r} as {_some(theirs)} in place "
        f"of {_some(ours)}; {len(differ)} of {len(probes)} probes differ); "
    )
    if asked:
        used = "library"
        words += f"its ids are used, because tokenizer_config.json sets {', '.join(asked)}"
    else:
        used = "file"
        words += "the ids of the file are used"
        made = _of_file(transformers, made, own)
    note = OtherIds(words)
    note.text, note.library, note.file, note.used = text, theirs, ours, used
    return made, (note,)


def _of_file(transformers: ModuleType, made: Any, own: Any) -> Any:
    """The file's own tokenizer, with the special tokens and the limit that the library knows of."""
    if own.post_processor is None:
        own.post_processor = made.backend_tokenizer.post_processor
    special = {
        name: str(token)
        for name, token in made.special_tokens_map.items()
        if isinstance(token, str) and own.token_to_id(token) is not None
    }
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, model_max_length=made.model_max_length, **special
    )


def _cased(
    transformers: ModuleType, made: Any, settings: Mapping[str, Any], folder: Path, options: Mapping[str, Any]
) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer of a bare vocabulary; one that has capital letters keeps those of the texts.

    No text reaches an entry with a capital letter behind a step that makes all letters small.
    """
    normalizer = getattr(getattr(made, "backend_tokenizer", None), "normalizer", None)
    if normalizer is None or normalizer.normalize_str("A") != "a":
        return made, ()
    ordinary = _ordinary(made)
    capital = sorted((entry for entry in ordinary if entry != entry.lower()), key=ordinary.__getitem__)
    if not capital:
        return made, ()
    text, number = capital[0], ordinary[capital[0]]
    theirs = tuple(made(text, add_special_tokens=False, verbose=False)["input_ids"])
    words = (
        f"{len(capital)} of the {len(ordinary)} entries of its vocabulary have capital letters (such as {text!r}), but "
        "the tokenizer makes all letters small; "
    )
    if "do_lower_case" in settings:
        used, words = "library", f"{words}tokenizer_config.json says so (do_lower_case)"
    else:
        used, words = "file", f"{words}nothing in its files asks for that, and capital letters are kept"
        made = transformers.AutoTokenizer.from_pretrained(str(folder), do_lower_case=False, **options)
    note = OtherIds(words)
    note.text, note.library, note.file, note.used = text, theirs, (number,), used
    return made, (note,)


def _some(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:4])) + (", ..." if len(ids) > 4 else "") or "nothing"


def tokenizer_file(file: Path) -> Callable[[str], Sequence[int]]:
    """A function from a text to its ids, without special tokens around it, as a ``tokenizer.json`` says."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"reading {str(file)!r} needs: pip install 'rankscope[hub]'") from error
    try:
        made = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain ones
        raise FileError(f"{str(file)!r} is no tokenizer that can be read: {first_line(error)}") from error

    def cut(text: str) -> Sequence[int]:
        ids: Sequence[int] = made.encode(text, add_special_tokens=False).ids
        return ids

    return cut
