"""Decomposition of a network into paths: what every length, head, source and single path adds to its output."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError
from rankscope.network import Spec
from rankscope.pathways import Reading
from rankscope.results import Table
from rankscope.results.tree_lines import end_of
from rankscope.sources.seen import Call
from rankscope.studies.ablate_config import feeding
from rankscope.studies.cuts import Cut, cuts
from rankscope.studies.inputs import Given
from rankscope.studies.paths_config import PathsConfig
from rankscope.studies.paths_found import Found, found_in
from rankscope.studies.paths_sections import sections
from rankscope.studies.paths_words import elsewhere, words
from rankscope.studies.rows import Rows
from rankscope.studies.subjects import Source, Subject, memory_words, subjects

Progress = Callable[[str, int, int | None], None]
"""Told what is being done, how many texts are through, and of how many if that is known."""

DEFINITIONS = {
    "norm[frobenius]": "size of a term Z: its Frobenius norm",
    "residual[frobenius,mean]": "how far the tokens of a term are from their mean: |J Z|_F",
    "cosine[off_diagonal]": "mean cosine between two tokens of a term",
    "share[residual]": "signed part of the residual of the output Y: <J Z, J Y> / |J Y|^2; over all lengths, and over "
    "all sources, shares add up to one",
    "cosine_to_output[residual]": "cosine of the angle between J Z and J Y",
}


class _Ran(PathsConfig):
    """What ran, for the provenance of a table."""

    model: str
    network: dict[str, Any] | None = None


def decompose(
    model: Source,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    config: PathsConfig | None = None,
    load: dict[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Table:
    """What the paths of a network add to its output, exactly, with everything that depends on the input held.

    ``model`` is what ``ablate`` takes: a name, a folder, a live or translated model, a tree of parts (with ``inputs``,
    the tokens that enter it) or the ``Spec`` of a random network. ``options`` are fields of ``PathsConfig``; ``load``
    are options of loading.

    One row per text and number. Besides the fixed columns a row has ``kind`` (``length``, ``length and mlps``,
    ``head``, ``source`` or ``path``), ``length``, ``mlps``, ``paths`` (how many there are, as text: they exceed any
    integer column), ``source``, ``path`` and ``tokens``. The sections ``identity``, ``spectrum``, ``heads``,
    ``sources`` and ``sites`` hold means over texts, as do ``pairs`` and ``mlps`` where asked for; ``search``, ``top``,
    ``samples``, ``gaps`` and ``pruning`` speak of the first text.
    """
    config = PathsConfig.of(**options) if config is None else config
    given = {"texts": texts, "images": images, "audio": audio, "inputs": inputs, "call": call}
    is_random = isinstance(model, Spec)
    asked = config.as_ablation(is_random=is_random)
    found: list[Found] = []
    about: dict[str, Any] = {}
    rows, notes = Rows(), dict[str, None]()
    with memory_words("decomposition", "lower --max-tokens, or compute in --dtype float32"):
        for subject in subjects(
            model,
            feeding(asked, load or {}),
            Given(**given),
            seeds=asked.seeds,
            tokens=asked.tokens,
            tokenizer=tokenizer,
        ):
            about = about or subject.about
            cut = next(cuts(subject.network, asked, subject.kind))
            for one in _texts(subject, cut, config, progress):
                _add_rows(rows, one, cut, subject)
                found.append(
                    replace(one, frozen=found[0].frozen) if found else one
                )  # states of one text are enough
            notes |= dict.fromkeys(subject.notes())
    return _table(rows, found, about, config, list(notes))


def _texts(subject: Subject, cut: Cut, config: PathsConfig, progress: Progress | None) -> Any:
    done = 0
    largest = max((p.numel() for p in subject.network.parameters()), default=0)
    with threads_for(largest):
        for fed in subject.feeds:
            for text in range(len(fed.x)):
                keep = None if fed.keep is None else fed.keep[text]
                is_token = fed.context.is_token
                if is_token is not None and keep is not None:
                    keep = keep[is_token[text]]
                x = fed.x[text] if is_token is None else fed.x[text][is_token[text]]

                def told(doing: str, done: int = done) -> None:
                    if progress is not None:
                        progress(doing, done, subject.total)

                yield found_in(
                    cut.network,
                    x,
                    fed.context.of_text(text),
                    keep,
                    config,
                    seed=subject.seed,
                    sample=fed.first + text,
                    told=told,
                )
                done += 1


def _add_rows(rows: Rows, one: Found, cut: Cut, subject: Subject) -> None:
    final = one.frozen.has_final_norm and one.frozen.network.final_norm is not None
    about = {
        "model": subject.about["model"],
        "variant": cut.variant,
        "mask": cut.mask,
        "norm": cut.norm,
        "seed": one.seed,
        "sample": one.sample,
        "tokens": one.tokens,
    }
    site = {"site": "final" if final else "block", "layer": one.frozen.layers}
    for length, paths in enumerate(one.counts):
        place = {"kind": "length", "length": length, "paths": str(paths)}
        _add_reading(rows, one.lengths, length, about | site | place)
    for head, share in one.attribution.heads.items():
        place = {"kind": "head", "layer": head.layer, "site": head.site, "head": head.head}
        _add(rows, "share[residual]", float(share), float(one.share_floor), about | place)
        if one.head_reading is not None:
            _add_reading(rows, one.head_reading, one.heads[head], about | place, without="share[residual]")
    for source, share in one.attribution.sources.items():
        place = {"kind": "source", "source": source.name, "layer": source.layer}
        _add(rows, "share[residual]", float(share), float(one.share_floor), about | place)
        if one.source_reading is not None:
            _add_reading(
                rows, one.source_reading, one.sources[source], about | place, without="share[residual]"
            )
    for ranked in one.top.paths if one.top is not None else ():
        place = {"kind": "path", "path": str(ranked.path), "length": ranked.path.length}
        numbers = (("norm[frobenius]", ranked.norm), ("residual[frobenius,mean]", ranked.residual))
        for name, value in numbers:
            _add(rows, name, value, ranked.floor, about | site | place)
        _add(rows, "share[residual]", ranked.share, ranked.share_floor, about | site | place)
    for length, row in enumerate(one.mlp_counts or ()):
        for mlps, paths in enumerate(row):
            place = {"kind": "length and mlps", "length": length, "mlps": mlps, "paths": str(paths)}
            if one.mlps is not None:
                _add_reading(rows, one.mlps, (length, mlps), about | site | place)


def _add_reading(
    rows: Rows, reading: Reading, place: int | tuple[int, ...], about: dict[str, Any], without: str = ""
) -> None:
    values = {
        "norm[frobenius]": (reading.norm, reading.floor),
        "residual[frobenius,mean]": (reading.residual, reading.floor),
        "cosine[off_diagonal]": (reading.cosine, None),
        "share[residual]": (reading.share, reading.share_floor),
        "cosine_to_output[residual]": (reading.cosine_to_output, None),
    }
    for definition, (value, floor) in values.items():
        if definition != without:
            known = None if floor is None else float(floor[place])
            _add(rows, definition, float(value[place]), known, about)


def _add(rows: Rows, definition: str, value: float, floor: float | None, about: dict[str, Any]) -> None:
    """One row; a share may be negative, so what is resolved goes by its size."""
    resolved = math.isfinite(value) and (floor is None or abs(value) > floor)
    columns = {"measure": definition.split("[")[0], "definition": definition, "value": value, "floor": floor}
    rows.add(1, columns | {"resolved": resolved} | about)


def _table(
    rows: Rows, found: list[Found], about: dict[str, Any], config: PathsConfig, notes: list[str]
) -> Table:
    if not found:
        raise ConfigError("no text was given; a decomposition needs at least one")
    ran = _Ran.of(**config.model_dump(), model=about["model"], network=about.get("network"))
    section = about | {
        "texts": len(found) // len(config.seeds),
        "seeds": len(config.seeds),
        "tokens": sum(one.tokens for one in found) / len(found),
        "warnings": notes,
    }
    table = rows.table(ran, command="paths", seeds=config.seeds, paths=section, definitions=DEFINITIONS)
    told, frozen = sections(found), found[0].frozen
    told["identity"] |= end_of(
        about["proof"], has_norm=frozen.network.final_norm is not None, with_norm=frozen.has_final_norm
    )
    finding = {"words": words(told), "elsewhere": elsewhere(told["sources"])}
    return replace(table, sections=table.sections | told | {"finding": finding})
