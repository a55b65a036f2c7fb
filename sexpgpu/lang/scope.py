"""Lexical scopes: where names resolve. A file's names see the library's, never the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Lazy:
    """A top-level definition that is evaluated when first asked for, so that order does not matter."""

    __slots__ = ("busy", "compute")

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute
        self.busy = False


class Poisoned(Exception):
    """A use of a name whose own definition failed: its error has been reported, this one is a consequence."""


class Poison:
    """Stands for the value of a definition that failed."""


POISON = Poison()


class Scope:
    """Names and values, with the scope around it."""

    __slots__ = ("names", "outer")

    def __init__(self, outer: Scope | None = None, names: dict[str, Any] | None = None) -> None:
        self.outer = outer
        self.names = {} if names is None else names

    def holder(self, name: str) -> Scope | None:
        """The scope that defines `name`."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope
            scope = scope.outer
        return None

    def visible(self) -> Iterator[str]:
        """Every name in sight, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield from scope.names
            scope = scope.outer


class FileScope(Scope):
    """The names that a file defines, each once: what is made of them alone is the same wherever it is made."""

    __slots__ = ()
