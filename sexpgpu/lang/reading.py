"""What everything that reads a declared form needs: its parts as integers, words and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.toplevel import Declared, Module
from sexpgpu.source import Span
from sexpgpu.syntax import Form, Symbol


class FormReader:
    """Evaluates parts of the forms of one file."""

    def __init__(self, el: Elaborator, module: Module) -> None:
        self.el = el
        self.module = module

    def _fail(self, code: str, message: str, span: Span | None = None, *, help: str = "") -> Any:
        self.el.stack = []
        self.el.fail(code, message, span, help=help)

    def _eval(self, form: Form) -> Any:
        self.el.stack = []
        return self.el.eval(form, self.module.scope_of(form))

    def _integer(self, declared: Declared, key: str, default: int, least: int = 0) -> int:
        if key not in declared.keyed:
            return default
        form = declared.keyed[key]
        value = self.el.size(self._eval(form), form.span)
        if value < least:
            self._fail("E-TYPE-005", f"`:{key}` is at least {least}, not {value}", form.span)
        return value

    def _word(self, declared: Declared, key: str, words: Sequence[str], default: str = "") -> str:
        """A bare word after `key`, one of `words`; the first of them if it is left out."""
        form = declared.keyed.get(key)
        if form is None:
            return default or words[0]
        if not isinstance(form, Symbol) or form.name not in words:
            self._fail("E-FORM-003", f"`:{key}` is one of {' '.join(words)}", form.span)
        assert isinstance(form, Symbol)
        return form.name
