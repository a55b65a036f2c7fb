import platform

import pytest

from sexpgpu.backend.registry import open_device
from sexpgpu.diagnostics import DiagnosticError


def test_cpu_opens() -> None:
    assert open_device("cpu").name == "cpu"
    assert "double precision" in open_device("cpu", double=True).describe()


def test_an_unknown_device_lists_what_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(DiagnosticError) as caught:
        open_device("cpuu")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E-DEV-001"
    assert diagnostic.message == "there is no device `cpuu`; `cpu` is a near name"
    assert "`cpu` can be opened here; `metal` cannot: it needs a Mac, and this is Linux" in diagnostic.notes[0]


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(DiagnosticError) as caught:
        open_device("metal")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E-DEV-002"
    assert diagnostic.message.startswith("`metal` cannot be opened: it needs a Mac")
    assert "`cpu` can be opened here" in diagnostic.notes[0] and "metal" not in diagnostic.notes[0]
