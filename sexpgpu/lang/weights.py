"""`defweights`: which parameters begin as arrays of a file, and everything that does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data import StoredArray, WeightFiles
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType, TypeFault
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.reading import FormReader
from sexpgpu.lang.toplevel import Declared, Module
from sexpgpu.lang.trace import Ambient, Initialised, Trace
from sexpgpu.lang.values import kind_of
from sexpgpu.syntax import Form, List, String, Symbol

WHOLE = "{*}"
"""The placeholder for one step of a path or more; a form without rules is a rule of this alone."""
PLACEHOLDER = r"\{([\w-]+|\*)\}"


@dataclass(frozen=True, eq=False)
class ImportedWeight:
    """A parameter that begins as an array of a file, rearranged. notation: how; graph: the same, from `x`."""

    type: TensorType
    files: WeightFiles
    theirs: str
    notation: str
    graph: Graph | None

    def read(self) -> NDArray[Any]:
        """The array in the parameter's type; floats are rounded to it."""
        found = self.files.arrays[self.theirs].read()
        if self.graph is not None:
            found = evaluate(self.graph, {"x": found.astype(np.float32)})["y"]
        return np.ascontiguousarray(found.astype(NUMPY_DTYPES[self.type.dtype])).reshape(self.type.shape)

    def identity(self) -> list[Any]:
        """What the experiment's digest knows of it, beside the files."""
        return [self.files.written, self.theirs, self.notation]


@dataclass(frozen=True, slots=True)
class _Rule:
    """`(OURS THEIRS "o i -> i o")`; ours None: arrays of the file that are left out on purpose."""

    ours: str | None
    theirs: str
    notation: str
    text: str


class WeightReader(FormReader):
    """Reads the `defweights` of one file once its parameters are known."""

    def __init__(self, el: Elaborator, module: Module, parameters: Mapping[str, Initialised]) -> None:
        super().__init__(el, module)
        self.parameters = parameters
        self.found: dict[str, ImportedWeight] = {}

    def read(self) -> dict[str, ImportedWeight]:
        """The parameters that begin as published weights. Raises DiagnosticError, of all forms together."""
        wrong: list[Diagnostic] = []
        used: dict[tuple[str, ...], set[str]] = {}
        opened: list[tuple[Declared, WeightFiles, list[str]]] = []
        for declared in self.module.weights:
            if (found := self._opened(declared)) is None:
                continue
            files, rules = found
            taken = used.setdefault(tuple(map(str, files.paths)), set())
            opened.append((declared, files, self._fill(declared, files, rules, taken)))
        for declared, files, notes in opened:
            key = tuple(map(str, files.paths))
            if key in used:  # what is left over is told once, of all forms that read the file
                taken = used.pop(key)
                notes += [f"surplus: nothing takes `{name}` {_shown(files.arrays[name])}"
                          for name in files.arrays if name not in taken]  # fmt: skip
            if notes:
                message = f"`{files.written}` and the parameters under `{declared.name}` do not fit: {notes[0]}"
                help = ("every rule takes a parameter, every array has a taker; (none THEIRS) leaves arrays out",)
                wrong.append(Diagnostic("E-PARAM-003", message, declared.span, help=help, notes=tuple(notes[1:])))
        if wrong:
            raise DiagnosticError(wrong)
        return self.found

    def _opened(self, declared: Declared) -> tuple[WeightFiles, list[_Rule]] | None:
        """The files and the rules; None where the path is `none`, which leaves the form out."""
        form, *rules = declared.plain
        written = self._eval(form)
        if written is None:
            return None
        if not isinstance(written, str):
            self._fail("E-TYPE-006", f"a path is a string, not {kind_of(written)}", form.span)
        self.el.stack = [form.span]
        base = self.module.folder_of(form)
        files = self.el.located(lambda: self.module.disk.weights(written, base))
        return files, [self._rule(r) for r in rules] or [_Rule(WHOLE, WHOLE, "", "")]

    def _rule(self, form: Form) -> _Rule:
        match form:
            case List(items=(String(ours), String(theirs))):
                return _Rule(ours, theirs, "", form.span.text)
            case List(items=(String(ours), String(theirs), String(notation))):
                return _Rule(ours, theirs, notation, form.span.text)
            case List(items=(Symbol(name="none"), String(theirs))):
                return _Rule(None, theirs, "", form.span.text)
        self._fail("E-FORM-001", 'a rule of `defweights` is (OURS THEIRS) or (OURS THEIRS "o i -> i o")', form.span,
                   help='("block.{i}.w" "h.{i}.weight" "o i -> i o"); (none THEIRS) leaves arrays out')  # fmt: skip
        raise AssertionError

    def _fill(self, declared: Declared, files: WeightFiles, rules: list[_Rule], taken: set[str]) -> list[str]:
        """Enter what the rules say; gives what does not fit, a line each."""
        root = f"{declared.name}." if declared.name else ""
        own = {n.removeprefix(root): p for n, p in self.parameters.items() if n.startswith(root)}
        if not own:
            near = nearest(declared.name, {n.rpartition(".")[0] for n in self.parameters})
            return [f"no parameter is under `{declared.name}`" + (f", `{near}` is a near root" if near else "")]
        notes: list[str] = []
        for rule in rules:
            if rule.ours is None:
                taken.update(name for name in files.arrays if _matches(rule.theirs, name) is not None)
                continue
            matched = [(n, values) for n in own if (values := _matches(rule.ours, n)) is not None]
            if not matched:
                notes.append(f"the rule {rule.text} matches no parameter")
            for name, values in matched:
                theirs = _filled(rule.theirs, values)
                if root + name in self.found:
                    notes.append(f"`{root}{name}` is given twice, by `{self.found[root + name].theirs}` and `{theirs}`")
                    continue
                stored = files.arrays.get(theirs)
                if stored is None:
                    near = nearest(theirs, files.arrays)
                    notes.append(f"missing: `{theirs}` for `{root}{name}` {own[name].type}"
                                 + (f"; there is a `{near}`" if near else ""))  # fmt: skip
                    continue
                taken.add(theirs)
                fitted = self._fitted(own[name].type, stored, rule.notation)
                if isinstance(fitted, str):
                    turned = not rule.notation and stored.shape == own[name].type.shape[::-1] and len(stored.shape) == 2
                    hint = ', which "o i -> i o" would make of it' if turned else fitted
                    notes.append(f"mis-shaped: `{theirs}` {_shown(stored)} for `{root}{name}` {own[name].type}{hint}")
                    continue
                self.found[root + name] = ImportedWeight(own[name].type, files, theirs, rule.notation, fitted)
        return notes

    def _fitted(self, type: TensorType, stored: StoredArray, notation: str) -> Graph | str | None:
        """The rearrangement of a stored array to `type`; a text says why there is none."""
        if type.is_float != stored.is_float:
            return ", one of floats and the other not"
        if not notation:
            return None if stored.shape == type.shape else ""
        el = self.el
        el.trace = trace = Trace(el.world, Ambient(), "weights")
        try:
            x = trace.builder.input("x", TensorType("f32", stored.shape))
            y = BUILTINS["rearrange"].call(el, notation, x)
        except TypeFault as fault:
            return f": {fault.message}"
        except DiagnosticError as error:
            return f": {error.diagnostics[0].message}"
        finally:
            el.trace = None
        if y.shape != type.shape:
            return f", rearranged ({' '.join(map(str, y.shape))})"
        return trace.builder.graph("weights", [("y", y)])


def _matches(pattern: str, name: str) -> dict[str, str] | None:
    """What each placeholder of `pattern` stands for in `name`: one step of the path, `{*}` one or more of them;
    None if they do not match."""
    known: dict[str, str] = {}

    def part(match: re.Match[str]) -> str:
        key = match[1]
        if key in known:
            return f"(?P={known[key]})"
        known[key] = f"p{len(known)}"
        return f"(?P<{known[key]}>{'.+' if key == '*' else '[^.]+'})"

    expression = _pieces(pattern, part)
    found = re.fullmatch(expression, name)
    return None if found is None else {key: found[group] for key, group in known.items()}


def _pieces(pattern: str, part: Callable[[re.Match[str]], str]) -> str:
    made: Iterator[str] = (
        part(match) if (match := re.fullmatch(PLACEHOLDER, piece)) else re.escape(piece)
        for piece in re.split(r"(\{(?:[\w-]+|\*)\})", pattern)
    )
    return "".join(made)


def _filled(pattern: str, values: Mapping[str, str]) -> str:
    return re.sub(PLACEHOLDER, lambda match: values.get(match[1], match[0]), pattern)


def _shown(stored: StoredArray) -> str:
    return f"({' '.join(map(str, stored.shape))})"
