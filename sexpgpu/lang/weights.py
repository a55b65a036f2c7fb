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
from sexpgpu.ir.text import graph_text
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType, TypeFault
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.reading import FormReader
from sexpgpu.lang.toplevel import Declared, Module
from sexpgpu.lang.trace import Ambient, Initialised, Trace
from sexpgpu.lang.values import Function, kind_of
from sexpgpu.source import Span
from sexpgpu.syntax import Form, List, String, Symbol, Vector

WHOLE = "{*}"
"""The placeholder for one step of a path or more; a form without rules is a rule of this alone."""
PLACEHOLDER = r"\{([\w-]+|\*)\}"


@dataclass(frozen=True, eq=False)
class ImportedWeight:
    """A parameter or state that begins as an array of a file, or as what `graph` makes of some (`x.0`, … to `y`).

    notation: what the digest knows of the graph.
    """

    type: TensorType
    files: WeightFiles
    theirs: tuple[str, ...]
    notation: str
    graph: Graph | None

    def read(self) -> NDArray[Any]:
        """The array in the parameter's type; floats are computed in f32 and rounded to it."""
        arrays = [self.files.arrays[name].read() for name in self.theirs]
        found = arrays[0]
        if self.graph is not None:
            dtypes = [NUMPY_DTYPES[x.type.dtype] for x in self.graph.inputs]
            given = zip(self.graph.input_names, arrays, dtypes, strict=True)
            found = evaluate(self.graph, {name: array.astype(dtype) for name, array, dtype in given})["y"]
        return np.ascontiguousarray(found.astype(NUMPY_DTYPES[self.type.dtype])).reshape(self.type.shape)

    def identity(self) -> list[Any]:
        """What the experiment's digest knows of it, beside the files."""
        return [self.files.written, *self.theirs, self.notation]


@dataclass(frozen=True, slots=True)
class _Rule:
    """`(OURS THEIRS HOW)`; ours None: arrays of the file that are left out on purpose.

    how: a notation or a function of the arrays, and `span` where it stands; None takes an array as it is.
    """

    ours: str | None
    theirs: tuple[str, ...]
    how: str | Function | None
    span: Span


class WeightReader(FormReader):
    """Reads the `defweights` of one file once its parameters and states are known."""

    def __init__(
        self, el: Elaborator, module: Module, parameters: Mapping[str, Initialised], states: Mapping[str, Initialised]
    ) -> None:
        super().__init__(el, module)
        self.parameters = dict(parameters)
        self.states = dict(states)
        self.found: dict[str, ImportedWeight] = {}

    def read(self) -> dict[str, ImportedWeight]:
        """The parameters and states that begin as published weights. Raises DiagnosticError, of all forms together."""
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
                under = f" under `{declared.name}`" if declared.name else ""
                message = f"`{files.written}` and the parameters{under} do not fit: {notes[0]}"
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
        return files, [self._rule(r) for r in rules] or [_Rule(WHOLE, (WHOLE,), None, declared.span)]

    def _rule(self, form: Form) -> _Rule:
        match form:
            case List(items=(Symbol(name="none"), String(theirs))):
                return _Rule(None, (theirs,), None, form.span)
            case List(items=(String(ours), String() | Vector() as written, *how)) if len(how) < 2:
                names = written.items if isinstance(written, Vector) else (written,)
                theirs_all = tuple(name.value for name in names if isinstance(name, String))
                if theirs_all and len(theirs_all) == len(names) and (how or len(names) == 1):
                    return _Rule(ours, theirs_all, self._how(how[0], len(names)) if how else None, form.span)
        self._fail("E-FORM-001", "a rule of `defweights` is (OURS THEIRS) or (OURS THEIRS HOW)", form.span,
                   help='("block.{i}.w" "h.{i}.weight" "o i -> i o"); (none THEIRS) leaves arrays out; several THEIRS, '
                        "[A B], meet in a function")  # fmt: skip
        raise AssertionError

    def _how(self, form: Form, num_arrays: int) -> str | Function:
        """A notation, or a function of the arrays."""
        how = self._eval(form)
        if isinstance(how, Function) or (isinstance(how, str) and num_arrays == 1):
            return how
        self._fail("E-TYPE-006", f"{kind_of(how)} says not what becomes of {_counted(num_arrays)}", form.span,
                   help='a notation such as "o i -> i o" for one, or a function: (fn (w) (slice w 0 8))')  # fmt: skip
        raise AssertionError

    def _fill(self, declared: Declared, files: WeightFiles, rules: list[_Rule], taken: set[str]) -> list[str]:
        """Enter what the rules say; gives what does not fit, a line each."""
        root = f"{declared.name}." if declared.name else ""
        stored = self.parameters | {n: state for n, state in self.states.items() if not state.lane}
        own = {n.removeprefix(root): p for n, p in stored.items() if n.startswith(root)}
        if not own:
            near = nearest(declared.name, {n.rpartition(".")[0] for n in stored})
            return [f"no parameter is under `{declared.name}`" + (f", `{near}` is a near root" if near else "")]
        notes: list[str] = []
        for rule in rules:
            if rule.ours is None:
                taken.update(name for name in files.arrays if _matches(rule.theirs[0], name) is not None)
                continue
            matched = [(n, values) for n in own if (values := _matches(rule.ours, n)) is not None]
            if not matched:
                notes.append(f"the rule {rule.span.text} matches no parameter")
            for name, values in matched:
                theirs = tuple(_filled(each, values) for each in rule.theirs)
                if root + name in self.found:
                    first = _quoted(self.found[root + name].theirs)
                    notes.append(f"`{root}{name}` is given twice, by {first} and {_quoted(theirs)}")
                    continue
                missing = [each for each in theirs if each not in files.arrays]
                for each in missing:
                    near = nearest(each, files.arrays)
                    notes.append(f"missing: `{each}` for `{root}{name}` {own[name].type}"
                                 + (f"; there is a `{near}`" if near else ""))  # fmt: skip
                taken.update(theirs)
                if missing:
                    continue
                found = [files.arrays[each] for each in theirs]
                fitted = self._fitted(own[name].type, found, rule)
                if isinstance(fitted, str):
                    shapes = " ".join(map(_shown, found))
                    notes.append(f"mis-shaped: {_quoted(theirs)} {shapes} for `{root}{name}` {own[name].type}{fitted}")
                    continue
                notation = rule.how if isinstance(rule.how, str) else "" if fitted is None else graph_text(fitted)
                self.found[root + name] = ImportedWeight(own[name].type, files, theirs, notation, fitted)
        return notes

    def _fitted(self, type: TensorType, stored: list[StoredArray], rule: _Rule) -> Graph | str | None:
        """What makes a value of `type` of the stored arrays, None for nothing; a text says why they do not fit."""
        if any(type.is_float != each.is_float for each in stored):
            return ", one of floats and the other not"
        if rule.how is None:
            turned = stored[0].shape == type.shape[::-1] and len(type.shape) == 2
            hint = ', which "o i -> i o" would make of it' if turned else ""
            return None if stored[0].shape == type.shape else hint
        el = self.el
        el.trace = trace = Trace(el.world, Ambient(), "weights")
        trace.effects_refused = trace.params_refused = "a rule of `defweights`"
        try:
            dtype = "f32" if type.is_float else type.dtype
            x = [trace.builder.input(f"x.{i}", TensorType(dtype, each.shape)) for i, each in enumerate(stored)]
            if isinstance(rule.how, str):
                y = BUILTINS["rearrange"].call(el, rule.how, *x)
            else:
                y = el.tensor(el.apply(rule.how, x, {}, rule.span))
        except TypeFault as fault:
            return f": {fault.message}"
        except DiagnosticError as error:
            return f": {error.diagnostics[0].message}"
        finally:
            el.trace = None
        if y.shape != type.shape or y.type.is_float != type.is_float:
            return f", rearranged ({' '.join(map(str, y.shape))})" if isinstance(rule.how, str) else f", made {y.type}"
        return trace.builder.graph("weights", [("y", y)], x)


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


def _counted(n: int) -> str:
    return "an array" if n == 1 else f"{n} arrays"


def _quoted(names: tuple[str, ...]) -> str:
    return " ".join(f"`{name}`" for name in names)


def _shown(stored: StoredArray) -> str:
    return f"({' '.join(map(str, stored.shape))})"
