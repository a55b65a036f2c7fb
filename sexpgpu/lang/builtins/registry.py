"""The table of operations and the decorator that fills it from a Python signature.

Positional parameters are the operation's operands, keyword-only ones its keywords (`_` for `-`), `*values` any number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from sexpgpu.lang.values import Builtin

BUILTINS: dict[str, Builtin] = {}


def builtin(
    *names: str, words: Sequence[str] = (), doc: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function (elaborator first) under `names`. words: keywords whose value is a bare word.

    doc: the operation's page of the manual; the function's own doc string where nothing else is said.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        for name in names:
            assert name not in BUILTINS, name
            BUILTINS[name] = Builtin(
                name,
                function,
                tuple(p.name.replace("_", "-") for p in plain),
                any(p.kind is p.VAR_POSITIONAL for p in parameters),
                frozenset(p.name.replace("_", "-") for p in parameters if p.kind is p.KEYWORD_ONLY),
                any(p.kind is p.VAR_KEYWORD for p in parameters),
                sum(p.default is p.empty for p in plain),
                frozenset(words),
                inspect.cleandoc(doc or function.__doc__ or ""),
            )
        return function

    return enter
