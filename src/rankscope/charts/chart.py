"""A chart: one picture or several, shown in a notebook, or written as a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rankscope.charts.markup import Attribute, legal, tag
from rankscope.charts.specs import WIDTH, Bars, Grid, Panel, Picture
from rankscope.errors import ConfigError, MissingExtraError

CHART_FORMATS = (".svg", ".png")
"""Endings of files that a chart can be written to."""

BESIDE = 2
"""Pictures of the usual width side by side in a file; narrow ones fill the same width."""


def need_png() -> Any:
    """The library that turns SVG into PNG; an error that names the extra where it is missing."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError(
            "a .png needs the extra 'plots': pip install 'rankscope[plots]'; .svg needs nothing"
        ) from None
    return vl_convert


def _filled(pictures: Sequence[Picture], columns: int, width: int) -> list[Picture]:
    """The same pictures; one that is alone in the last row of several takes the whole width."""
    if not pictures:
        return []
    *others, last = pictures
    is_alone = columns > 1 and len(others) % columns == 0
    return [
        *others,
        replace(last, width=width) if is_alone and isinstance(last, Panel | Grid | Bars) else last,
    ]


@dataclass(frozen=True, slots=True)
class Chart:
    """Pictures that belong together. In a notebook it shows itself.

    ``title`` and ``notes`` stand above all of them; one picture alone has its own.
    """

    pictures: Sequence[Picture]
    title: str = ""
    notes: Sequence[str] = ()

    def svg(self, *, tips: bool = True) -> Markup:
        """All pictures as one SVG, side by side as far as the width of two goes."""
        from rankscope.charts.svg import (  # asking for help draws nothing
            FONTS,
            heading,
            room_of,
            size_of,
            to_svg,
        )

        if len(self.pictures) == 1 and not self.title and not self.notes:
            return to_svg(self.pictures[0], tips=tips)
        wide = max((size_of(picture)[0] for picture in self.pictures), default=WIDTH)
        columns = max(1, min(int(BESIDE * WIDTH // wide), len(self.pictures)))
        pictures = _filled(self.pictures, columns, columns * int(wide))
        parts, top = (
            heading(self.title, self.notes, columns * wide) if self.title or self.notes else ([], 0.0)
        )
        sides = [room_of(pictures[at::columns]) for at in range(columns)]
        for start in range(0, len(pictures), columns):
            row = pictures[start : start + columns]
            above = room_of(row).top
            rooms = [replace(one, top=above) for one in sides]
            for at, (picture, room) in enumerate(zip(row, rooms, strict=False)):
                place = f"translate({at * wide:g} {top:g})"
                parts.append(tag("g", to_svg(picture, tips=tips, room=room), transform=place))
            top += max(size_of(picture, room)[1] for picture, room in zip(row, rooms, strict=False))
        size: dict[str, Attribute] = {"width": f"{columns * wide:g}", "height": f"{top:g}"}
        back = tag("rect", width="100%", height="100%", fill="#fff")
        return legal(tag("svg", back, *parts, xmlns="http://www.w3.org/2000/svg", **size, font_family=FONTS))

    def png(self) -> bytes:
        """The same at twice the size, still."""
        found: bytes = need_png().svg_to_png(str(self.svg(tips=False)), scale=2.0)
        return found

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write .svg or .png, by the ending."""
        from rankscope.results import write_atomically

        ending = Path(path).suffix.lower()
        if ending not in CHART_FORMATS:
            raise ConfigError(
                f"a chart cannot be written as {ending or 'a file without an ending'}; use one of "
                f"{', '.join(CHART_FORMATS)}"
            )
        return write_atomically(path, self.png() if ending == ".png" else str(self.svg()).encode())

    def _repr_svg_(self) -> str:
        return str(self.svg())
