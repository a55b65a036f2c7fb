"""Views of data in a `defloader`: `part rows windows packed streams mix`."""

from __future__ import annotations

from typing import Any

from sexpgpu.data import Packed, Part, Rows, Streams, Windows
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import DataHandle, HostScalar, Mix, kind_of


def _source(el: Elaborator, value: Any) -> Any:
    if isinstance(value, DataHandle):
        return value.dataset
    if isinstance(value, Part):
        return value
    el.fail("E-TYPE-006", f"{kind_of(value)} stands where data is expected", help="a name of a `defdata`, or (part …)")


@builtin("part")
def part(el: Elaborator, source: Any, start: Any, stop: Any) -> Part:
    """`(part DATA 0.0 0.9)`: the rows or tokens between two fractions.

    A part may be taken of a part, and every view may be made of one.

    Fields: none of its own: `rows`, `windows` and `streams` read it.
    Example:
        (defdata corpus (text "python:topics" :by bytes))
        (defloader train (windows (part corpus 0.0 0.9) :length 64) :batch 12 :shuffle true)
        (defloader val (windows (part corpus 0.9 1.0) :length 64) :batch 12)
    """
    for bound in (start, stop):
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound <= 1:
            el.fail("E-TYPE-005", f"`part` takes fractions from 0.0 to 1.0, not {kind_of(bound)}")
    if start >= stop:
        el.fail("E-TYPE-005", f"the part from {start} to {stop} is empty")
    return el.located(lambda: Part(_source(el, source), float(start), float(stop)))


@builtin("rows")
def rows(el: Elaborator, source: Any) -> Rows:
    """`(rows DATA)`: a view of arrays, a row at a time.

    Fields: one for each array or column, by its name: (b …) of its dtype; and `valid`, (bool b), false for rows that
        `:last pad` added.
    Example:
        (defdata scans (arrays "digits.npz"))
        (defloader train (rows (part scans 0.0 0.8)) :batch 64 :shuffle true)
        (defloader test (rows (part scans 0.8 1.0)) :batch 64 :last pad)
    """
    return el.located(lambda: Rows(_source(el, source)))


@builtin("windows")
def windows(el: Elaborator, source: Any, *, length: Any = None) -> Windows:
    """`(windows DATA :length n)`: a view of a sequence, n tokens at a time, with the targets one ahead.

    The windows follow one another without overlap. Under `:shuffle true` they begin at another offset each epoch, below
    their `:length`, so that over epochs every position is the first of some window.

    Fields: `tokens` and `targets`, (i32 b n), the second one ahead; and `valid`, (bool b).
    Form: (windows DATA :length n)
    Example:
        (defdata corpus (text "python:topics" :by bytes))
        (defloader train (windows corpus :length 64) :batch 12 :shuffle true)
    """
    if length is None:
        el.fail("E-FORM-004", "`windows` needs `:length`")
    return el.located(lambda: Windows(_source(el, source), el.size(length)))


@builtin("packed")
def packed(el: Elaborator, source: Any, *, length: Any = None, cut: Any = False) -> Packed:
    """`(packed DATA :length n)`: a view of documents, packed into rows of n places, with what keeps them apart.

    A place is a token and the one after it. Documents follow in their order; a row ends where the next does not fit,
    and its rest is padding. A document longer than a row is cut. With `:cut true` no row but the last is padded: a
    document goes on in the next row. What ends a document is the `:ends` of its source; without it every file of a text
    is one. Losses leave padding out by `mask`, and attention keeps to one document by comparing `document` of both
    places.

    Fields: `tokens` and `targets`, (i32 b n), 0 in padding; `document`, (i32 b n), counted from 0 in each row, -1 in
        padding; `position`, (i32 b n), counted from 0 where a row or a document begins; `mask`, (bool b n), false in
        padding; and `valid`, (bool b).
    Form: (packed DATA :length n :cut false)
    Example:
        (defdata stories (text "stories.txt" :by bytes :ends "\\n"))
        (defloader train (packed stories :length 32) :batch 2 :shuffle true)
        (defmetric nll (tokens targets document mask)
          (let [x       (embed (param table (f32 256 16) (normal 0.02)) tokens)
                [q k v] (unstack (rearrange "b t (n w) -> n b 1 t w" (linear x 48) :n 3))
                same    (= (rearrange "b t -> b 1 t 1" document) (rearrange "b s -> b 1 1 s" document))
                y       (rearrange "b h t w -> b t (h w)" (attention q k v :causal true :mask same))]
            (mean-over (cross-entropy (linear y 256 :name head) targets) mask)))
        (defrun go :loader train :loss nll :optimizer (adam :rate 1e-3) :steps 1)
    """
    if length is None:
        el.fail("E-FORM-004", "`packed` needs `:length`")
    if not isinstance(cut, bool):
        el.fail("E-TYPE-006", f"`:cut` is true or false, not {kind_of(cut)}")
    return el.located(lambda: Packed(_source(el, source), el.size(length), cut))


@builtin("streams")
def streams(el: Elaborator, source: Any, *, length: Any = None) -> Streams:
    """`(streams DATA :length n)`: windows that go on where the same row of the batch before ended.

    A text is cut into as many stretches as a step has rows, `:batch` times `:microbatches`; each row walks along its
    own, a window of `:length` a step, and begins anew at its end. With `(state … :lane true)` a model goes on where it
    stopped. There is neither `:shuffle` nor `:last`.

    Fields: `tokens` and `targets`, (i32 b n); `first`, (bool b), true where a stretch begins; and `valid`, (bool b).
    Form: (streams DATA :length n)
    Example:
        (defdata corpus (text "python:topics" :by bytes))
        (defloader stream (streams corpus :length 32) :batch 8)
    """
    if length is None:
        el.fail("E-FORM-004", "`streams` needs `:length`")
    return el.located(lambda: Streams(_source(el, source), el.size(length)))


@builtin("mix")
def mix(el: Elaborator, parts: Any) -> Mix:
    """`(mix [VIEW W …])`: rows of several views, chosen by weights that may depend on `step`.

    Each row of a batch draws its view by the weights, which need not add up to 1. Draws depend on the seed, the
    loader's name and the number of the microbatch alone; every view gives its rows in its own order, each once in its
    epoch. There is no `:last`.

    Fields: those of the views, which agree.
    Example:
        (defdata corpus (text "python:topics" :by bytes))
        (defloader mixed
          (mix [(windows (part corpus 0.0 0.5) :length 32) (linear-schedule 1.0 0.1 :total 100)
                (windows (part corpus 0.5 1.0) :length 32) (linear-schedule 0.0 0.9 :total 100)])
          :batch 8 :shuffle true)
    """
    if not isinstance(parts, tuple) or not parts or len(parts) % 2:
        el.fail("E-FORM-001", "this form is (mix [VIEW W …])")
    views, weights = parts[::2], parts[1::2]
    for view in views:
        if not isinstance(view, Rows | Windows | Packed):
            el.fail("E-TYPE-006", f"{kind_of(view)} cannot be mixed",
                    help="(rows S), (windows S :length n) or (packed S :length n)")  # fmt: skip
    for weight in weights:
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not isinstance(weight, HostScalar) and not (number and 0 <= weight < float("inf")):
            el.fail("E-TYPE-006", f"a weight is a number from 0 up, not {kind_of(weight)}")
    if all(not isinstance(weight, HostScalar) and weight == 0 for weight in weights):
        el.fail("E-TYPE-005", "no weight of this mixture is above 0")
    return Mix(views, weights)
