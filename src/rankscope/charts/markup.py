"""Pieces of markup put together from escaped parts: whatever text comes in, no element but ours comes out."""

import re

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
    head = Markup("").join(_attribute(key, value) for key, value in attributes.items())
    inside = Markup("").join(children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, head, inside)


def void(name: str, /, **attributes: Attribute) -> Markup:
    """An element that has no content and no end tag, such as ``meta``.

    >>> void("meta", charset="utf-8")
    Markup('<meta charset="utf-8">')
    """
    return Markup("<{0}{1}>").format(name, Markup("").join(_attribute(k, v) for k, v in attributes.items()))


def legal(markup: str) -> Markup:
    """Markup in which characters that XML forbids are replaced.

    >>> legal("a\\x1bb")
    Markup('a\ufffdb')
    """
    return Markup(_ILLEGAL.sub("\ufffd", markup))  # noqa: S704  # markup it was


def _attribute(key: str, value: Attribute) -> Markup:
    if value is None or value is False:
        return Markup("")
    name = key.rstrip("_").replace("_", "-") if key not in _AS_WRITTEN else key
    return Markup(f" {name}") if value is True else Markup(f' {name}="{escape(str(value))}"')  # noqa: S704  # escaped


_AS_WRITTEN = frozenset({"viewBox", "preserveAspectRatio"})
