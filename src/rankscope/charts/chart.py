"""A chart: one picture or several, shown in a notebook, or written as a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rankscope.charts.markup import Attribute, tag
from rankscope.charts.specs import WIDTH, Picture
from rankscope.charts.svg import FONTS, heading, size_of, to_svg
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
        if len(self.pictures) == 1 and not self.title:
            return to_svg(self.pictures[0], tips=tips)
        sizes = [size_of(picture) for picture in self.pictures]
        wide = max((width for width, _ in sizes), default=WIDTH)
        columns = max(1, min(int(BESIDE * WIDTH // wide), len(self.pictures)))
        parts, top = heading(self.title, self.notes, columns * wide) if self.title else ([], 0.0)
        for start in range(0, len(self.pictures), columns):
            row = self.pictures[start : start + columns]
            for at, picture in enumerate(row):
                place = f"translate({at * wide:g} {top:g})"
                parts.append(tag("g", to_svg(picture, tips=tips), transform=place))
            top += max(height for _, height in sizes[start : start + columns])
        size: dict[str, Attribute] = {"width": f"{columns * wide:g}", "height": f"{top:g}"}
        back = tag("rect", width="100%", height="100%", fill="#fff")
        return tag("svg", back, *parts, xmlns="http://www.w3.org/2000/svg", **size, font_family=FONTS)

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
