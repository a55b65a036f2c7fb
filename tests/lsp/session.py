"""An editor, as far as a server can tell: a client over standard input and output of `sexpgpu lsp`."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lsprotocol import types
from pygls.lsp.client import LanguageClient

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120


class Session:
    """Open files, what was published about them, and what the server said went wrong in it."""

    def __init__(self) -> None:
        self.client = LanguageClient("tests", "1")
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.diagnostics: dict[str, list[types.Diagnostic]] = {}
        self.published: dict[str, int] = {}
        self.faults: list[str] = []
        self._news = asyncio.Event()

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def publish(params: types.PublishDiagnosticsParams) -> None:
            self.diagnostics[params.uri] = list(params.diagnostics)
            if params.version is not None:
                self.published[params.uri] = params.version
            self._news.set()

        @self.client.feature(types.WINDOW_LOG_MESSAGE)
        def log(params: types.LogMessageParams) -> None:
            self.faults.append(params.message)

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def show(params: types.ShowMessageParams) -> None:
            self.faults.append(params.message)

    def open(self, uri: str, text: str) -> None:
        """Open a file."""
        self.texts[uri], self.versions[uri] = text, 1
        item = types.TextDocumentItem(uri, "sexpgpu", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, uri: str, text: str) -> None:
        """Give a file another text."""
        self.texts[uri] = text
        self.versions[uri] += 1
        named = types.VersionedTextDocumentIdentifier(self.versions[uri], uri)
        whole = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(named, [whole]))

    def close(self, uri: str) -> None:
        """Close a file."""
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))

    async def settled(self, uri: str) -> list[types.Diagnostic]:
        """What the server finds in the newest text."""
        until = time.monotonic() + PATIENCE_S
        while self.published.get(uri) != self.versions[uri]:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), until - time.monotonic())
        return self.diagnostics[uri]

    async def codes(self, uri: str) -> list[str]:
        """The codes of what the server finds in the newest text."""
        return [str(d.code) for d in await self.settled(uri)]

    async def until(self, uri: str, codes: list[str]) -> None:
        """Wait until a file has findings of these codes."""
        until = time.monotonic() + PATIENCE_S
        while [d.code for d in self.diagnostics.get(uri, [])] != codes:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), until - time.monotonic())

    def at(self, uri: str, place: str) -> tuple[types.TextDocumentIdentifier, types.Position]:
        """Where `|` stands in a part of the text, as arguments of a request; columns in UTF-16."""
        text = self.texts[uri]
        plain = place.replace("|", "")
        offset = text.index(plain) + place.index("|")
        line = text.count("\n", 0, offset)
        column = text[text.rfind("\n", 0, offset) + 1 : offset]
        position = types.Position(line, len(column.encode("utf-16-le")) // 2)
        return types.TextDocumentIdentifier(uri), position

    def part(self, uri: str, range: types.Range) -> str:
        """The text of a range."""
        lines = [line.encode("utf-16-le") for line in self.texts[uri].splitlines(keepends=True)] + [b""]
        first, last = range.start, range.end
        if first.line == last.line:
            return lines[first.line][2 * first.character : 2 * last.character].decode("utf-16-le")
        middle = b"".join(lines[first.line + 1 : last.line])
        whole = lines[first.line][2 * first.character :] + middle + lines[last.line][: 2 * last.character]
        return whole.decode("utf-16-le")

    def edited(self, uri: str, edits: list[types.TextEdit]) -> str:
        """The text after edits."""
        text = self.texts[uri]
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))

        def offset(position: types.Position) -> int:
            line = text[starts[position.line] :].encode("utf-16-le")
            return starts[position.line] + len(line[: 2 * position.character].decode("utf-16-le"))

        for edit in sorted(edits, key=lambda e: (e.range.start.line, e.range.start.character), reverse=True):
            text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
        return text


@asynccontextmanager
async def session(folder: Path, encodings: list[str] | None = None) -> AsyncIterator[Session]:
    """A session in a folder, ended in order."""
    made = Session()
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    await made.client.start_io(sys.executable, "-m", "sexpgpu", "lsp", cwd=folder, env=environment)
    general = types.GeneralClientCapabilities(position_encodings=encodings)
    await made.client.initialize_async(
        types.InitializeParams(capabilities=types.ClientCapabilities(general=general), root_uri=folder.as_uri())
    )
    made.client.initialized(types.InitializedParams())
    try:
        yield made
    finally:
        await made.client.shutdown_async(None)
        made.client.exit(None)
        await made.client.stop()
