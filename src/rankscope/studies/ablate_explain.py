"""Blame and suggestions of an ablation as sections of its table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rankscope.studies.ablate_config import OWN, AblateConfig, parse_blocks
from rankscope.studies.ablate_words import NAMES
from rankscope.studies.blame import Blame
from rankscope.studies.blame_found import DEFINITION, RATIO
from rankscope.studies.cuts import Cut
from rankscope.studies.suggest import MEASURES, RANKED_BY, Suggestion, Tried, best_in_words, ranked

BLAME_DEFINITION = {
    DEFINITION: f"change of ln {RATIO} by one step of a block, below zero towards collapse: ln(after) - ln(before)"
}


def headline(cuts: Sequence[Cut]) -> Cut:
    """The network that blame and what-ifs are about: of the first mask and skip scale, the full one if it is there."""
    return next((cut for cut in cuts if cut.variant == "transformer"), cuts[0])


def explained(cut: Cut, config: AblateConfig) -> dict[str, Any]:
    """Which network that is, in words and as facts."""
    extra = [] if config.masks[0] == OWN else [f"mask {config.masks[0]}"]
    extra += [] if cut.skip_scale is None else [f"skip scale {cut.skip_scale:g}"]
    extra += ["without norms"] if config.norm == "none" else []
    if config.blocks is not None:
        extra.append(f"changed in block{'s' if len(parse_blocks(config.blocks)) > 1 else ''} {config.blocks}")
    network = {
        "variant": cut.variant,
        "mask": cut.mask,
        "norm": cut.norm,
        "skip_scale": cut.skip_scale,
        "blocks": config.blocks or "all",
    }
    return {"of": ", ".join([NAMES.get(cut.variant, cut.variant), *extra]), "network": network}


def joined(found: Sequence[Blame]) -> Blame:
    """The blame of several batches of one network, or of networks of one shape, as that of all their texts."""
    changes = [
        replace(
            same[0],
            values=tuple(value for change in same for value in change.values),
            floors=tuple(floor for change in same for floor in change.floors),
            known=tuple(ok for change in same for ok in change.known),
        )
        for same in zip(*(one.changes for one in found), strict=True)
    ]
    return Blame(
        changes=tuple(changes),
        totals=tuple(total for one in found for total in one.totals),
        blocks=found[0].blocks,
        texts=sum(one.texts for one in found),
        split=found[0].split,
        dominance=tuple(
            replace(same[0], shares=tuple(share for one in same for share in one.shares))
            for same in zip(*(one.dominance for one in found), strict=True)
        ),
    )


def suggestions(batches: Sequence[Tried]) -> dict[str, Any]:
    """Every what-if with the last layer before and after it, best first, and a sentence on the best."""
    found = ranked(batches)
    return {
        "sentence": best_in_words(found),
        "ranked by": RANKED_BY,
        "texts": found[0].texts,
        "left out": found[0].left_out,
        "what_ifs": [_entry(one) for one in found],
    }


def _entry(one: Suggestion) -> dict[str, Any]:
    """The readings are geometric means over texts; "at most" marks those that are not above the rounding floor."""
    sides = {"before": one.before, "after": one.after}
    readings = {
        f"{when} {name}": None if name not in side else side[name].value
        for name in MEASURES
        for when, side in sides.items()
    }
    bounds = {
        f"{when} at most": RANKED_BY in side and not side[RANKED_BY].resolved for when, side in sides.items()
    }
    told = {"what_if": one.name, "gain": one.gain, "at least": one.is_bound}
    return told | readings | bounds | {"reason": one.reason}
