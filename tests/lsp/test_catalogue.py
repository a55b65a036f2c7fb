"""What the server says of forms is what the language has."""

import re
from pathlib import Path

import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.lang.load import load_experiment
from sexpgpu.lang.sources import KINDS
from sexpgpu.lang.toplevel import FORMS
from sexpgpu.lsp.catalogue import documentation, signature, special_forms, top_level_forms
from sexpgpu.lsp.names import library


def test_every_form_has_an_entry_and_no_other_has() -> None:
    assert set(special_forms()) == set(EXPRESSIONS)
    assert set(top_level_forms()) == set(FORMS)


OPERANDS = {
    "param": "w (f32) 0.0", "state": "w (f32) 0.0", "measure": "a 1.0", "set-state": "s 1.0", "with": "1.0",
    "scan": "[h 0.0] [i 3] h", "table-scan": "[h 0.0] [i 3] h", "every": "3",
}  # fmt: skip


@pytest.mark.parametrize("head", sorted({*OPERANDS, "defrun", "defloader", "defeval", "defupdate", "defgenerator",
                                         "defaverage", "defdiagnostic", "defoptimizer"}))  # fmt: skip
def test_the_keywords_of_a_form_are_those_that_it_takes(head: str, tmp_path: Path) -> None:
    """A form that is given an unknown keyword names those that it has."""
    if head in OPERANDS:
        text = f"(defmetric loss () ({head} {OPERANDS[head]} :zzz 1))\n"
        text += "(defrun go :loss loss :optimizer (sgd :rate 1.0) :steps 1)"
        entry = special_forms()[head]
    else:
        text, entry = f"({head} name (p g) :zzz 1)", top_level_forms()[head]
    path = tmp_path / "a.sx"
    path.write_text(text, "utf-8")
    with pytest.raises(DiagnosticError) as error:
        load_experiment(path)
    found = next(d for d in error.value.diagnostics if d.code == "E-FORM-003")
    assert sorted(re.findall(r":([\w-]+)", found.help[0])) == sorted(entry.keywords) or not entry.keywords


@pytest.mark.parametrize("kind", KINDS)
def test_the_keywords_of_data(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.sx"
    path.write_text(f'(defdata c ({kind} "p" :zzz 1))', "utf-8")
    with pytest.raises(DiagnosticError) as error:
        load_experiment(path)
    found = next(d for d in error.value.diagnostics if d.code == "E-FORM-003")
    assert re.findall(r":([\w-]+)", found.help[0]) == list(KINDS[kind]) or not KINDS[kind]


def test_every_name_of_the_language_has_a_signature_and_those_of_the_library_a_text() -> None:
    for name, binding in library()[0].visible().items():
        assert name in signature(binding)
        if binding.span is not None and binding.kind == "function":
            assert documentation(binding), f"{name} of {binding.span.source.name} says nothing of itself"
