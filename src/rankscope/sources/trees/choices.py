"""Builders that depend on what the model's configuration says."""

from collections.abc import Callable

from rankscope.errors import NotTranslated
from rankscope.network import Part
from rankscope.sources.trees.place import Builder, Place

Test = str | Callable[[Place], object]
"""An entry of the configuration, or a function of the place."""


def either(test: Test, then: Builder, otherwise: Builder) -> Builder:
    """One of two builders, whether or not a test holds."""
    return lambda place: (then if _holds(test, place) else otherwise)(place)


def refuse(reason: str) -> Builder:
    """No part at all, but an error that says why the tree has none for this block."""

    def build(place: Place) -> Part:
        raise NotTranslated(reason)

    return build


def _holds(test: Test, place: Place) -> bool:
    return bool(getattr(place.config, test, None) if isinstance(test, str) else test(place))
