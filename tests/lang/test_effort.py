"""How the work of a check grows with its file; counted, so that no busy machine decides."""

from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.lang.load import _library_scope, library_forms
from sexpgpu.lang.scope import Lazy
from sexpgpu.source import NOWHERE
from sexpgpu.syntax import Symbol
from tests.effort import calls
from tests.lang.files import load_text
from tests.lang.long_file import long_file

CALLS_PER_LINE = 2100
"""Of Python and C together. 1,600 a line, as when this was written, are about 0.7 seconds for 2,000 lines."""


def test_a_file_twice_as_long_takes_twice_the_work():
    load_text(long_file(60))  # the library is read once
    short, long = long_file(400), long_file(800)
    few, many = calls(lambda: load_text(short)), calls(lambda: load_text(long))
    assert many < 2.2 * few * long.count("\n") / (2 * short.count("\n"))
    assert many < CALLS_PER_LINE * long.count("\n")


def test_the_library_is_read_form_by_form():
    _library_scope.cache_clear()  # another test may have read all of it
    forms = {form.items[1].name: form for result in library_forms().values() for form in result.forms}
    names, wanted = _library_scope().names, dict(forms)
    assert list(names) == list(forms)
    load_text(long_file(60))
    assert any(isinstance(value, Lazy) for value in names.values())
    for name, form in wanted.items():
        value = Elaborator(EXPRESSIONS).lookup(Symbol(name, NOWHERE), _library_scope())
        assert (value.name, value.span) == (name, form.span)
        assert value.body == tuple(form.items[-len(value.body) :])
