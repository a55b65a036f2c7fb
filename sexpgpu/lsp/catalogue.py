"""What is known of names that no file defines: special forms, top-level forms, operations and ambient names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.toplevel import RUN_KEYS, UPDATE_KEYS
from sexpgpu.lsp.names import Binding
from sexpgpu.syntax import List, String


@dataclass(frozen=True, slots=True)
class Entry:
    """A form: how it is written, what it does, and its keywords."""

    shape: str
    doc: str
    keywords: tuple[str, ...] = ()


LOOP_KEYS = ("axis", "reverse", "save", "order")

SPECIAL_FORMS: Mapping[str, Entry] = {
    "let": Entry("(let [name V …] BODY)", "binds in order, each value seeing those before it"),
    "fn": Entry("(fn (x …) BODY)", "a function without a name"),
    "if": Entry("(if TEST V TEST V … V)", "a choice while the file is read; `where` chooses between tensors"),
    "when": Entry("(when TEST EFFECT …)", "effects that depend on a test"),
    "and": Entry("(and A B …)", "whether all hold; also elementwise"),
    "or": Entry("(or A B …)", "whether any holds; also elementwise"),
    "with": Entry(
        "(with :compute bf16 BODY)",
        "a body under other settings: the dtype of products, whether it is training, a part of paths, an average",
        ("scope", "compute", "training", "weights"),
    ),
    "repeat": Entry(
        "(repeat [i n x V] [carry V …] BODY)",
        "a loop that is written out; its body ends in (next :carry V … :emit V)",
    ),
    "for": Entry("(for [i n] V)", "the vector of a value for each round"),
    "next": Entry("(next :carry V … :emit V)", "ends a loop's body: new carries, and what is emitted", ("emit",)),
    "propose": Entry("(propose :p P :state S …)", "ends an optimizer's body: the new parameter and states"),
    "param": Entry("(param NAME TYPE INIT)", "a parameter, named by the path of calls that leads here"),
    "state": Entry("(state NAME TYPE INIT)", "a state, as it was when the update began", ("lane",)),
    "measure": Entry("(measure NAME V)", "records a series", ("reduce", "weight", "every", "after")),
    "set-state": Entry("(set-state STATE V)", "what a state becomes when the update commits", ("reduce", "using")),
    "grad": Entry("(grad FUNCTION X …)", "the gradient of a scalar function at X"),
    "every": Entry(
        "(every n NEW OLD) or (every n X)",
        "NEW at step 1 and at multiples of n, else OLD; in a run, what is due then",
        ("keep",),
    ),
    "error": Entry('(error "…")', "stops, and blames whoever calls the function"),
    "warning": Entry('(warning "…")', "warns whoever calls the function"),
    "scan": Entry(
        "(scan [carry V …] [x XS …] BODY)",
        "a loop at run time along an axis of tensors; its body ends in (next :carry V … :emit V)",
        LOOP_KEYS,
    ),
    "table-scan": Entry(
        "(table-scan [row T …] [i IDS x XS …] :index i BODY)",
        "a loop at run time whose carries are rows of tables, read and written one after the other",
        (*LOOP_KEYS, "index"),
    ),
}

TOP_LEVEL_FORMS: Mapping[str, Entry] = {
    "include": Entry('(include "file.sx")', "another file, all of whose definitions become known here"),
    "def": Entry('(def NAME VALUE "doc")', "a constant, which variants and --set may replace"),
    "defvariant": Entry("(defvariant NAME (CONSTANT VALUE) …)", "other values of constants, chosen by --variant"),
    "defn": Entry("(defn NAME (x :key DEFAULT) BODY)", "a function, written out where it is called"),
    "defmodel": Entry("(defmodel NAME ((x TYPE)) BODY)", "a function that owns parameters"),
    "defmetric": Entry("(defmetric NAME (FIELD …) BODY)", "a scalar of a loader's batch, for losses and evaluations"),
    "defoptimizer": Entry(
        "(defoptimizer NAME (p g :rate _) :state [s S0] BODY)",
        "a rule from a parameter, its gradient and state to what it proposes",
        ("state",),
    ),
    "defdata": Entry('(defdata NAME (text|tokens|arrays "PATH" …))', "data on disk"),
    "defloader": Entry("(defloader NAME VIEW :batch n)", "batches of a view of data", ("batch", "shuffle", "last")),
    "defeval": Entry(
        "(defeval NAME :loader L :batches n METRIC …)",
        "metrics over batches of a loader",
        ("loader", "batches", "weights"),
    ),
    "defupdate": Entry("(defupdate NAME :loss L …)", "one of several updates of a step", UPDATE_KEYS),
    "defgenerator": Entry(
        "(defgenerator NAME (:key DEFAULT) :trips [t n] :carry [x X0] BODY)",
        "trips, each of which reads carries and gives new ones",
        ("trips", "carry", "axis", "show", "weights"),
    ),
    "defaverage": Entry("(defaverage NAME :over P :decay D)", "a running average of parameters", ("over", "decay")),
    "defweights": Entry(
        '(defweights PREFIX FILE (OURS THEIRS "o i -> i o") …)', "parameters that begin as published arrays"
    ),
    "defdiagnostic": Entry(
        "(defdiagnostic NAME (p g new) BODY)",
        "a series for each parameter or group of them",
        ("over", "group", "reduce", "after", "every"),
    ),
    "defrun": Entry("(defrun NAME :loss L :optimizer O :steps n)", "a run", RUN_KEYS),
}

SOURCE_KEYWORDS = {"text": ("by",), "tokens": ("vocabulary",), "arrays": ()}
"""Kinds of data and their keywords."""

AMBIENT: Mapping[str, str] = {
    "none": "no value",
    "pi": "the constant π",
    "inf": "infinity",
    "nan": "not a number",
    "step": "the number of the step, from 1; a schedule is plainly an expression of it",
    "training": "true in losses, false in evaluations and generators",
}

CLASSES = {"float": "f32 or bf16", "int": "i32 or i64", "any": "any dtype"}
"""What may stand for a dtype in a parameter's type."""


def signature(binding: Binding) -> str:
    """How a name is used: the call of a function, the kind of everything else."""
    if binding.kind == "operation":
        builtin = BUILTINS[binding.name]
        needed = builtin.num_required
        plain = [n if i < needed else f"[{n}]" for i, n in enumerate(builtin.positional)]
        keys = [f":{key} …" for key in sorted(builtin.keywords)]
        return f"({' '.join([binding.name, *plain, *(['…'] if builtin.variadic else []), *keys])})"
    if binding.form is not None and binding.kind in ("function", "model", "metric", "optimizer", "generator"):
        items = binding.form.items
        if len(items) > 2 and isinstance(items[2], List):
            listed = items[2].items[2:] if binding.kind == "optimizer" else items[2].items
            parts = [" ".join(item.span.text.split()) for item in listed]
            return f"({' '.join([binding.name, *parts])})"
    return binding.name


def documentation(binding: Binding) -> str:
    """What a name is for: its own text, else the comment above its definition."""
    match binding.kind:
        case "operation":
            return inspect.getdoc(BUILTINS[binding.name].call) or ""
        case "ambient":
            return AMBIENT.get(binding.name, "")
        case "dtype":
            return f"a dtype: (cast x {binding.name}); with sizes a type: ({binding.name} 8 16)"
    if binding.form is None:
        return ""
    items = binding.form.items
    at = 4 if binding.kind == "constant" else 5
    if binding.kind in ("constant", "function", "model") and len(items) >= at:
        text = items[3]
        if isinstance(text, String):
            return text.value
    return _comment_above(binding.form)


def _comment_above(form: List) -> str:
    source = form.span.source
    line, column = source.line_column(form.span.start)
    found: list[str] = []
    while column == 1 and line > 1 and source.line_text(line - 1).startswith(";"):
        line -= 1
        found.insert(0, source.line_text(line).lstrip("; "))
    return "\n".join(found)


def keywords_of(binding: Binding) -> dict[str, str]:
    """The keywords that a call of `binding` takes, each with its default or what is known of it."""
    if binding.kind == "operation":
        return dict.fromkeys(sorted(BUILTINS[binding.name].keywords), "")
    found = {
        name: parameter.value.span.text if parameter.value is not None else ""
        for name, parameter in binding.parameters.items()
    }
    if binding.kind in ("function", "model"):
        found.setdefault("name", "a part of the path of what it owns")
    return found


