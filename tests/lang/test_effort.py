"""How the work of a check grows with its file; counted, so that no busy machine decides."""

from tests.effort import calls
from tests.lang.files import load_text
from tests.lang.long_file import long_file

CALLS_PER_LINE = 4500
"""Of Python and C together. 3,500 a line, as when this was written, are about 1.6 seconds for 2,000 lines."""


def test_a_file_twice_as_long_takes_twice_the_work():
    load_text(long_file(60))  # the library is read once
    short, long = long_file(400), long_file(800)
    few, many = calls(lambda: load_text(short)), calls(lambda: load_text(long))
    assert many < 2.2 * few * long.count("\n") / (2 * short.count("\n"))
    assert many < CALLS_PER_LINE * long.count("\n")
