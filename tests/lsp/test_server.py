"""The whole server, over its protocol: an editor opens files, types, asks and leaves."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from tests.lsp.marked import RUN
from tests.lsp.session import Session, session

GPT2 = Path(__file__).resolve().parents[2] / "examples" / "gpt2.sx"
GOOD = "(def width 16)" + RUN


def in_session(folder: Path, script: Callable[[Session], Awaitable[None]], encodings: list[str] | None = None) -> None:
    """Run `script` in a session, at whose end the server has had no fault of its own and has exited."""

    async def whole() -> None:
        async with session(folder, encodings) as editor:
            await script(editor)
            server = editor.client._server
        assert not editor.faults
        assert server is not None and server.returncode == 0

    asyncio.run(whole())


def test_an_hour_with_gpt2(tmp_path: Path) -> None:
    text = GPT2.read_text("utf-8")
    uri = (tmp_path / "gpt2.sx").as_uri()

    async def script(editor: Session) -> None:
        client = editor.client
        editor.open(uri, text)
        assert await editor.codes(uri) == []

        # A mistake is typed key by key, found, and taken back.
        at = text.index("(gelu (linear") + len("(gelu ")
        for key in range(1, len("wdith ") + 1):
            editor.change(uri, text[:at] + "wdith "[:key] + text[at:])
        (wrong,) = await editor.settled(uri)
        assert (wrong.code, wrong.severity) == ("E-NAME-001", types.DiagnosticSeverity.Error)
        assert editor.part(uri, wrong.range) == "wdith"
        assert "`width` is a near name" in wrong.message
        (there,) = wrong.related_information or []
        assert editor.part(uri, there.location.range) == "width"
        editor.change(uri, text)
        assert await editor.codes(uri) == []

        hover = await client.text_document_hover_async(types.HoverParams(*editor.at(uri, "(layer-norm |x :name ln1)")))
        assert isinstance(hover.contents, types.MarkupContent)
        assert "x: (bf16 b seq width) = (bf16 16 1024 768)" in hover.contents.value
        assert editor.part(uri, hover.range) == "x"

        found = await client.text_document_definition_async(types.DefinitionParams(*editor.at(uri, "(|attend (layer")))
        assert found.uri == uri and editor.part(uri, found.range) == "attend"
        found = await client.text_document_definition_async(types.DefinitionParams(*editor.at(uri, "(|gelu (linear")))
        assert found.uri.endswith("/sexpgpu/std/functions.sx")

        editor.change(uri, text.replace("(gelu (linear x", "(gelu (linear x :i"))
        items = await client.text_document_completion_async(types.CompletionParams(*editor.at(uri, "(linear x :i|")))
        proposed = {item.label: item for item in items.items}
        assert {":bias", ":name"} <= set(proposed) and proposed[":init"].detail == "lecun"
        assert editor.part(uri, proposed[":init"].text_edit.range) == ":i"
        editor.change(uri, text)

        asked = types.RenameParams(*editor.at(uri, "(def |width 768)"), new_name="channels")
        edit = await client.text_document_rename_async(asked)
        after = editor.edited(uri, edit.changes[uri])
        assert after.count("channels") == text.count(" width") and "(channels 128)" in after
        editor.change(uri, after)
        assert await editor.codes(uri) == []
        with pytest.raises(JsonRpcException, match="`linear` belongs to the library"):
            await client.text_document_rename_async(
                types.RenameParams(*editor.at(uri, "(|linear (gelu"), new_name="dense")
            )
        with pytest.raises(JsonRpcException, match="is built into the language"):
            await client.text_document_prepare_rename_async(types.PrepareRenameParams(*editor.at(uri, "(|rearrange")))

        outline = await client.text_document_document_symbol_async(
            types.DocumentSymbolParams(types.TextDocumentIdentifier(uri))
        )
        assert [s.name for s in outline][:4] == ["shards", "vocab", "seq", "layers"]
        assert {s.name: s.detail for s in outline}["pretrain"] == "run"

        options = types.FormattingOptions(tab_size=2, insert_spaces=True)
        form = types.DocumentFormattingParams(types.TextDocumentIdentifier(uri), options)
        messy = after.replace("(def vocab 50304)", "(def   vocab\n  50304   )")
        editor.change(uri, messy)
        edits = await client.text_document_formatting_async(form)
        tidy = editor.edited(uri, list(edits))
        assert "(def   vocab" not in tidy
        editor.change(uri, tidy)
        assert not await client.text_document_formatting_async(form)
        editor.change(uri, tidy + "(def")
        with pytest.raises(JsonRpcException, match="E-READ-003"):
            await client.text_document_formatting_async(form)

    in_session(tmp_path, script)


@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-16", "utf-32"])
def test_columns_are_those_of_the_editor(encoding: str | None, tmp_path: Path) -> None:
    uri = (tmp_path / "a.sx").as_uri()

    async def script(editor: Session) -> None:
        editor.open(uri, '; 𝛼𝛽\n(def s "𝛼é") (def t unknown)\n' + GOOD)
        wrong = next(d for d in await editor.settled(uri) if d.code == "E-NAME-001")
        units = {"utf-8": 4 + 2, "utf-32": 1 + 1}.get(encoding or "", 2 + 1)
        start = len('(def s ""') + units + len(") (def t ")
        assert wrong.range == types.Range(types.Position(1, start), types.Position(1, start + 7))

    in_session(tmp_path, script, [encoding] if encoding else None)


def test_a_file_with_carriage_returns(tmp_path: Path) -> None:
    uri = (tmp_path / "a.sx").as_uri()

    async def script(editor: Session) -> None:
        editor.open(uri, GOOD.replace("relu", "rely").replace("\n", "\r\n"))
        (wrong,) = await editor.settled(uri)
        assert wrong.code == "E-NAME-001" and editor.part(uri, wrong.range) == "rely"
        edit = await editor.client.text_document_rename_async(
            types.RenameParams(*editor.at(uri, "(def |width"), new_name="w")
        )
        assert editor.edited(uri, edit.changes[uri]) == editor.texts[uri].replace("width", "w")

    in_session(tmp_path, script)


def test_files_that_include_and_two_that_are_open(tmp_path: Path) -> None:
    (tmp_path / "parts.sx").write_text("(def width 16)\n", "utf-8")
    parts, main, other = ((tmp_path / name).as_uri() for name in ("parts.sx", "main.sx", "other.sx"))

    async def script(editor: Session) -> None:
        editor.open(main, '(include "parts.sx")' + RUN)
        editor.open(other, GOOD.replace("relu", "rely"))
        assert await editor.codes(main) == []
        assert await editor.codes(other) == ["E-NAME-001"]
        found = await editor.client.text_document_definition_async(types.DefinitionParams(*editor.at(main, "x |width")))
        assert found.uri == parts
        # The included file is opened and broken: its own mistake is shown there, in the editor's text of it.
        editor.open(parts, "(def width 16)\n")
        await editor.settled(parts)
        editor.change(parts, "\n(def width unknown)\n")
        await editor.until(parts, ["E-NAME-001"])
        assert editor.part(parts, editor.diagnostics[parts][0].range) == "unknown"
        assert await editor.codes(main) == []
        edit = await editor.client.text_document_rename_async(
            types.RenameParams(*editor.at(parts, "(def |width"), new_name="size")
        )
        assert set(edit.changes) == {main, parts}
        editor.change(parts, "(def width 16)\n")
        await editor.until(parts, [])
        editor.close(other)
        await editor.until(other, [])

    in_session(tmp_path, script)


def test_a_file_that_is_on_no_disk(tmp_path: Path) -> None:
    uri = "untitled:Untitled-1"

    async def script(editor: Session) -> None:
        editor.open(uri, GOOD.replace("relu", "rely"))
        assert await editor.codes(uri) == ["E-NAME-001"]
        editor.change(uri, GOOD)
        assert await editor.codes(uri) == []

    in_session(tmp_path, script)


def test_a_file_without_a_run_is_no_error(tmp_path: Path) -> None:
    uri = (tmp_path / "a.sx").as_uri()

    async def script(editor: Session) -> None:
        editor.open(uri, "(def width 16)\n")
        (only,) = await editor.settled(uri)
        assert (only.code, only.severity) == ("E-RUN-004", types.DiagnosticSeverity.Information)
        editor.change(uri, GOOD + "(def unused 1)\n")
        (only,) = await editor.settled(uri)
        assert (only.code, only.severity) == ("W-NAME-001", types.DiagnosticSeverity.Warning)

    in_session(tmp_path, script)


def test_the_files_of_the_library_can_be_opened_and_are_not_checked(tmp_path: Path) -> None:
    from sexpgpu.lsp.analysis import library_folder

    path = library_folder() / "layers.sx"

    async def script(editor: Session) -> None:
        editor.open(path.as_uri(), path.read_text("utf-8"))
        found = await editor.client.text_document_definition_async(
            types.DefinitionParams(*editor.at(path.as_uri(), "(|lerp old seen"))
        )
        assert found.uri.endswith("/sexpgpu/std/functions.sx")
        assert path.as_uri() not in editor.diagnostics

    in_session(tmp_path, script)


def test_without_its_package_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from sexpgpu.cli.main import main

    monkeypatch.setitem(sys.modules, "pygls", None)
    result = CliRunner().invoke(main, ["lsp"])
    assert result.exit_code == 1
    assert "E-LSP-001" in result.stderr and "pip install 'sexpgpu[lsp]'" in result.stderr
