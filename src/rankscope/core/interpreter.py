"""One rule per class of part, by its exact class: a subclass may compute something else and inherits no rule.

An ``Interpreter`` is a question asked of a tree. Its rules say how the parts answer; what parts are made of besides
parts (mixers, values, positions, activations) has to be known as well, because rules read it as they read weights.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_type_hints, overload

from rankscope.errors import NotUnderstood

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Interpreter:
    """A name, and the classes that its rules know.

    Args:
        name: as it stands in refusals.
        hint: what would work where a part is refused.

    >>> counting = Interpreter("counting")
    >>> @counting.rules
    ... def count(part): ...
    >>> @count.register(bool)
    ... def _one(part): return 1
    >>> count(True)
    1
    >>> count(3)
    Traceback (most recent call last):
    rankscope.errors.NotUnderstood: counting has no rule for the part int
    """

    def __init__(self, name: str, hint: str = "") -> None:
        self.name, self.hint = name, hint
        self._known: set[type] = set()

    def admit(self, *kinds: type) -> None:
        """Make classes known that no rule is written for: rules read them, or run them as they are."""
        self._known.update(kinds)

    def rules(self, function: "Callable[..., T]") -> "Rules[T]":
        """Decorator: a function of a part that has one rule per class; the decorated body is only its signature."""
        return Rules(self, function)

    def check(self, *things: object) -> None:
        """Raise unless these things, and all that they are made of, are known."""
        for thing in things:
            if type(thing) not in self._known:
                raise NotUnderstood(thing, self.name, self._why(thing))
            replaced = _replaced_method(thing)
            if replaced is not None:
                raise NotUnderstood(
                    thing,
                    self.name,
                    f"its method {replaced} was replaced by another; write a class of its own",
                )
            pieces = getattr(thing, "pieces", None)
            if pieces is not None:
                self.check(*pieces())

    def _why(self, thing: object) -> str:
        parent = next((kind for kind in type(thing).__mro__[1:] if kind in self._known), None)
        if parent is None:
            refused = getattr(thing, "refused", None)  # some things know best why nobody has a rule for them
            return self.hint if refused is None else str(refused())
        return f"it is a subclass of {parent.__name__}, whose rule need not hold for it; register a rule of its own"


def _replaced_method(thing: object) -> str | None:
    """A method of the class that stands replaced on this one instance."""
    kind: Any = type(thing)
    own, methods = getattr(thing, "__dict__", {}), _methods(kind)
    return None if methods.isdisjoint(own) else next(name for name in own if name in methods)


# Parts are asked at every layer of every run, and a class of torch has a hundred names: they are read once. A method
# that is given to a class later replaces nothing that instances have.
@lru_cache(maxsize=1024)
def _methods(kind: type) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name, None)))


class Rules(Generic[T]):
    """A function of a part and more, with one rule for each class that was registered."""

    def __init__(self, interpreter: Interpreter, function: Callable[..., T]) -> None:
        self.interpreter, self._rules = interpreter, dict[type, Callable[..., T]]()
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.__module__ = function.__module__

    def __call__(self, part: Any, *args: Any, **kwargs: Any) -> T:
        rule = self._rules.get(type(part))
        if rule is None:
            raise NotUnderstood(part, self.interpreter.name, self.interpreter._why(part))
        self.interpreter.check(part)
        return rule(part, *args, **kwargs)

    @overload
    def register(self, first: type, *others: type) -> Callable[[F], F]: ...
    @overload
    def register(self, first: F) -> F: ...
    def register(self, first: Any, *others: type) -> Any:
        """Decorator: the rule of a class, or of several; without any, of the class its first argument is said to be."""
        if not isinstance(first, type):
            self._enter(next(iter(get_type_hints(first).values())), first)
            return first

        def register(rule: F) -> F:
            for kind in (first, *others):
                self._enter(kind, rule)
            return rule

        return register

    def forget(self, kind: type) -> None:
        """Take the rule of a class back, here; other functions of the interpreter may still know it."""
        del self._rules[kind]

    def _enter(self, kind: type, rule: Callable[..., T]) -> None:
        self._rules[kind] = rule
        self.interpreter.admit(kind)
