"""Every code has a page; its example prints what the page shows, word for word, and the mended program is good.

A page has the sections `Why`, `Example` and `Mended`. The blocks of a section are a program, which becomes `file.sx`,
commands, and what the last of them prints on standard error. `Mended` goes on in the same folder; without commands of
its own the last one of the example is given again. `pytest tests/diagnostics --rewrite` writes the printed parts anew.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu import s3
from sexpgpu.backend import registry
from sexpgpu.backend.cpu import device as cpu_device
from sexpgpu.backend.cpu import session as cpu_session
from sexpgpu.backend.cuda import device as cuda_device
from sexpgpu.backend.metal.device import open_metal
from sexpgpu.cli.main import main
from sexpgpu.data import Loader
from sexpgpu.diagnostics import CODES
from sexpgpu.diagnostics.pages import COLUMNS, page
from sexpgpu.train import folder
from tests.cuda.fake import FakeDriver, toolbox
from tests.metal.fake_metal import FakeMetal, Unit

PAGES = Path(registry.__file__).parents[1] / "diagnostics" / "pages"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIBRARY = re.compile(r"(std/[\w-]+\.sx):\d+:\d+")

ABSENT = {"E-DP-002", "E-DP-003", "E-DP-004", "E-DP-005", "E-DP-006", "E-DP-007"}
"""Codes of several GPUs, which this version does not have: their pages say so and show no example."""


def a_machine_without_a_card(patch: pytest.MonkeyPatch) -> None:
    kind = registry._Kind(registry._open_cuda, lambda: "no NVIDIA driver is installed")
    patch.setitem(registry._KINDS, "cuda", kind)
    patch.setattr(platform, "system", lambda: "Linux")


def a_card_that_is_full(patch: pytest.MonkeyPatch) -> None:
    card = cuda_device.CudaDevice(toolbox(FakeDriver(refuse_above=100)))
    patch.setattr(registry, "_KINDS", {**registry._KINDS, "cuda": registry._Kind(lambda *_: card)})


def a_card(patch: pytest.MonkeyPatch) -> None:
    card = cuda_device.CudaDevice(toolbox(FakeDriver()))
    patch.setattr(registry, "_KINDS", {**registry._KINDS, "cuda": registry._Kind(lambda *_: card)})


def a_mac(patch: pytest.MonkeyPatch) -> None:
    metal = FakeMetal(refusing)
    opened = registry._Kind(lambda wanted: open_metal("", wanted.devices, metal, metal.bridge))
    patch.setattr(registry, "_KINDS", {**registry._KINDS, "metal": opened})


def refusing(text: str) -> Unit:
    raise ValueError("program_source:1:9: error: unknown type name")


def a_machine_of_two_cores(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cpu_device, "num_cores", lambda: 2)


def a_machine_without_memory(patch: pytest.MonkeyPatch) -> None:
    a_machine_of_two_cores(patch)

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    patch.setattr(cpu_session.np, "empty", refuse)


def an_installation_without_pygls(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "pygls", None)


def an_installation_without_tokenizers(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "tokenizers", None)


def data_that_is_written_again(patch: pytest.MonkeyPatch) -> None:
    plain = Loader.batch

    def batch(loader: Loader, m: int, only: Collection[str] | None = None) -> dict[str, np.ndarray]:
        if m == 20:
            os.utime("rows.npz", (0, 0))
        return plain(loader, m, only)

    patch.setattr(Loader, "batch", batch)
def an_installation_without_s3fs(patch: pytest.MonkeyPatch) -> None:
    s3.open_s3.cache_clear()
    patch.setitem(sys.modules, "s3fs", None)


def a_process_that_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folder, "_locked", lambda *_: not Path("runs/file/checkpoints").exists())


def a_user(patch: pytest.MonkeyPatch) -> None:
    patch.delenv("SEXPGPU_CPU")


STAGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "E-DATA-007": data_that_is_written_again,
    "E-DATA-008": an_installation_without_tokenizers,
    "E-DEV-001": a_machine_without_a_card,
    "E-DEV-002": a_machine_without_a_card,
    "E-DEV-004": a_card,
    "E-DEV-006": a_mac,
    "E-DP-001": a_mac,
    "E-IO-003": a_process_that_goes_on,
    "E-IO-005": an_installation_without_s3fs,
    "E-LSP-001": an_installation_without_pygls,
    "E-MEM-001": a_machine_of_two_cores,
    "E-MEM-002": a_mac,
    "E-MEM-003": a_card_that_is_full,
    "E-MEM-004": a_machine_without_memory,
    "W-DEV-001": a_user,
}
"""Examples that need another machine than this one: what stands in for it, until the program is mended."""


def sections(text: str) -> dict[str, str]:
    """Headings and what stands below them; the first is the title."""
    parts = re.split(r"^#+ (.+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def blocks(section: str) -> dict[str, str]:
    found = FENCE.findall(section)
    assert len({kind for kind, _ in found}) == len(found), "one block of a kind"
    return dict(found)


def commands(block: str) -> list[str]:
    """The commands of a block; a line that begins with a space goes on with the one before it."""
    return re.split(r"\n(?! )", block.strip("\n"))


def perform(command: str) -> tuple[int, str]:
    """The exit status of a command and what it prints on standard error, without the hint."""
    words = shlex.split(command)
    environment = dict(word.split("=", 1) for word in words if re.match(r"SEXPGPU_\w+=", word))
    words = words[len(environment) :]
    if words[0] != "sexpgpu":
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", "-c", command], env={**os.environ, "PATH": path}, capture_output=True, text=True)
        return done.returncode, done.stderr
    result = CliRunner().invoke(main, words[1:], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    text, hint, codes = result.stderr.partition("\nfor more: sexpgpu explain ")
    assert not hint or all(code in CODES for code in codes.split())
    coded = re.search(r"^sexpgpu (?!explain)\w+: [EW]-", text, re.MULTILINE) is not None
    assert bool(hint) == coded, "the hint ends what is printed, once"
    return result.exit_code, text.strip("\n").replace(os.getcwd(), "/home/me")


def act(parts: dict[str, str]) -> tuple[int, str]:
    """Write the program of a section and give its commands; all but the last must succeed."""
    if "lisp" in parts:
        Path("file.sx").write_text(parts["lisp"], "utf-8")
    *before, last = commands(parts["sh"])
    for command in before:
        status, errors = perform(command)
        assert status == 0, (command, errors)
    return perform(last)


@pytest.mark.parametrize("code", [code for code in CODES if code not in ABSENT])
def test_the_example(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrite: bool) -> None:
    text = page(code)
    found = sections(text)
    broken, mended = blocks(found["Example"]), blocks(found["Mended"])
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        STAGES.get(code, lambda _: None)(patch)
        status, printed = act(broken)
    if rewrite:
        text = text.replace(f"```text\n{broken['text']}```", f"```text\n{printed}\n```")
        (PAGES / f"{code}.md").write_text(text, "utf-8")
        broken["text"] = f"{printed}\n"
    assert LIBRARY.sub(r"\1", printed) == LIBRARY.sub(r"\1", broken["text"].rstrip("\n"))
    assert code in printed and status == (0 if code.startswith("W-") else 1)
    assert mended.get("lisp") != broken.get("lisp") or "sh" in mended, "something is mended"
    status, printed = act({"sh": commands(broken["sh"])[-1], **mended})
    assert status == 0 and not re.search(r"[EW]-[A-Z]+-\d", printed), printed


@pytest.mark.parametrize("code", CODES)
def test_the_page_is_fit_to_be_read(code: str) -> None:
    text = page(code)
    title, why, *rest = sections(text)
    assert title == f"{code}: {CODES[code].title}" and why == "Why"
    assert rest == ([] if code in ABSENT else ["Example", "Mended"])
    assert code not in ABSENT or "which this version does not have" in " ".join(text.split())
    prose = FENCE.sub("", text)
    programs = "".join(block for kind, block in FENCE.findall(text) if kind != "text")
    assert all(len(line) <= COLUMNS for line in prose.splitlines())
    assert all(len(line) <= COLUMNS - len("    $ ") for line in programs.splitlines())
    assert all(len(below.split()) > 12 for heading, below in sections(prose).items() if heading in (title, "Why"))


def test_no_page_without_a_code() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(CODES)
    assert CODES.keys() >= ABSENT and STAGES.keys() <= CODES.keys() - ABSENT
