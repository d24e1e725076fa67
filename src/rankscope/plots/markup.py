"""Pieces of HTML put together from escaped parts: whatever text comes in, no element but ours comes out."""

from html import escape


class Fragment(str):
    """Text that is HTML already. Templates and ``tag`` put it in as it is; every other text they escape."""

    __slots__ = ()

    def __html__(self) -> str:
        """What template engines ask for before they escape."""
        return str(self)


def tag(name: str, /, *children: str, **attributes: str | int | float | None) -> Fragment:
    """The element with its children; plain text and attributes are escaped, an attribute of None is left out.

    A trailing underscore of an attribute is dropped, others become hyphens; True is an attribute without value.

    >>> tag("td", "a < b", class_="number", aria_label='"')
    '<td class="number" aria-label="&quot;">a &lt; b</td>'
    """
    listed = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Fragment(f"<{name}{listed}>{joined(*children)}</{name}>")


def joined(*children: str) -> Fragment:
    """The children one after the other, escaped where they are plain text.

    >>> joined(tag("b", "x"), "<")
    '<b>x</b>&lt;'
    """
    return Fragment("".join(one if isinstance(one, Fragment) else escape(one) for one in children))


def void(name: str, /, **attributes: str | int | float | None) -> Fragment:
    """An element that has no content and no end tag, such as ``input``.

    >>> void("input", type="radio", name="a")
    '<input type="radio" name="a">'
    """
    return Fragment(tag(name, **attributes).removesuffix(f"</{name}>"))
