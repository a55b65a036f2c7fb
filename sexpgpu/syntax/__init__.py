"""Syntax: from a source text to forms, the second stage of the flow, and from forms back to text.

`read` never fails: it answers with the forms it could make out and the diagnostics of what it could not.
Below lie `source` and `diagnostics`; above, the elaborator and the formatter.
"""

from sexpgpu.syntax.forms import Boolean, Float, Form, Integer, Keyword, List, String, Symbol, Vector
from sexpgpu.syntax.loading import load_source
from sexpgpu.syntax.printer import pretty, to_text
from sexpgpu.syntax.reader import ReadResult, read

__all__ = [
    "Boolean",
    "Float",
    "Form",
    "Integer",
    "Keyword",
    "List",
    "ReadResult",
    "String",
    "Symbol",
    "Vector",
    "load_source",
    "pretty",
    "read",
    "to_text",
]
