"""Printing: what is printed reads back as the same form."""

from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.source import Source
from sexpgpu.syntax import (
    Boolean,
    Float,
    Form,
    Integer,
    Keyword,
    List,
    String,
    Symbol,
    Vector,
    pretty,
    read,
    to_text,
)

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda name: read(Source("f.sx", name)).forms == (Symbol(name),) and not read(Source("f.sx", name)).diagnostics
)
ATOMS: st.SearchStrategy[Form] = st.one_of(
    NAMES.map(Symbol),
    NAMES.map(Keyword),
    st.integers(-(10**40), 10**40).map(Integer),
    st.floats(allow_nan=False, allow_infinity=False).map(Float),
    st.booleans().map(Boolean),
    st.text().map(String),
)
FORMS = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=6).map(tuple).flatmap(lambda items: st.sampled_from([List(items), Vector(items)]))
    ),
)


@given(FORMS)
def test_one_line_reads_back(form: Form) -> None:
    text = to_text(form)
    result = read(Source("f.sx", text))
    assert "\n" not in text
    assert result.diagnostics == () and result.forms == (form,)


@given(FORMS, st.integers(1, 60))
def test_several_lines_read_back(form: Form, width: int) -> None:
    result = read(Source("f.sx", pretty(form, width)))
    assert result.diagnostics == () and result.forms == (form,)


def test_pretty_is_laid_out_as_people_do() -> None:
    text = (
        "(defn block (x) (let [x (+ x (attend (layer-norm x :name ln1) :name y)) y 2] "
        "(linear (gelu x) :rate [0.5 1.0 2.0] :name (block i))))"
    )
    (form,) = read(Source("f.sx", text)).forms
    assert pretty(form, 58) == (
        "(defn block (x)\n"
        "  (let [x (+ x (attend (layer-norm x :name ln1) :name y))\n"
        "        y 2]\n"
        "    (linear\n"
        "      (gelu x)\n"
        "      :rate [0.5 1.0 2.0]\n"
        "      :name (block i))))"
    )
    assert pretty(form, 200) == text


def test_pretty_keeps_room_for_the_brackets_that_close() -> None:
    (form,) = read(Source("f.sx", "(a (b (c (d eee fff))) [x (yyy zzz) w (f 1 2)])")).forms
    for width in range(18, 50):
        assert max(map(len, pretty(form, width).splitlines())) <= width
