"""Pieces of markup put together from escaped parts: whatever text comes in, no element but ours comes out."""

import re
from collections.abc import Mapping
from functools import cache

from markupsafe import Markup, escape

_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Characters that no page and no picture may hold."""

Attribute = str | int | float | None


def tag(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """An element with its children. Plain text and attributes are escaped; an attribute of None is left out.

    A trailing underscore of an attribute's name is dropped, others become hyphens; True is an attribute without value.

    >>> tag("td", "a < b", class_="number", aria_label='"')
    Markup('<td class="number" aria-label="&#34;">a &lt; b</td>')
    """
    # plain strings of escaped pieces: a page has ten thousand elements, and to format markup takes ten times as long
    return Markup(f"<{name}{_written(attributes)}>{''.join(map(escape, children))}</{name}>")  # noqa: S704  # escaped


def void(name: str, /, **attributes: Attribute) -> Markup:
    """An element that has no content and no end tag, such as ``meta``.

    >>> void("meta", charset="utf-8")
    Markup('<meta charset="utf-8">')
    """
    return Markup(f"<{name}{_written(attributes)}>")  # noqa: S704  # escaped


def legal(markup: str) -> Markup:
    """Markup in which characters that XML forbids are replaced.

    >>> legal("a\\x1bb")
    Markup('a\ufffdb')
    """
    return Markup(_ILLEGAL.sub("\ufffd", markup))  # noqa: S704  # markup it was


def _written(attributes: Mapping[str, Attribute]) -> str:
    return "".join(
        f" {_spelled(key)}" if value is True else f' {_spelled(key)}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )


@cache
def _spelled(key: str) -> str:
    return key if key in _AS_WRITTEN else key.rstrip("_").replace("_", "-")


_AS_WRITTEN = frozenset({"viewBox", "preserveAspectRatio"})
