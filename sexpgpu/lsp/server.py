"""The protocol: an editor's messages to questions of `analysis`, and answers to its types. Checks run on a thread.

A change of a text starts a check of every open file that it bears on, a moment later; a check whose text has changed is
given up in the middle. Texts are sent whole, so that no two ideas of a line can come between editor and server.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from sexpgpu import __version__
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, Label
from sexpgpu.lang.load import RECURSION_LIMIT
from sexpgpu.lsp.analysis import Project, library_folder, path_of
from sexpgpu.lsp.checking import EditedFiles, Outdated, Report, check_plain, check_variants
from sexpgpu.lsp.completion import complete
from sexpgpu.lsp.positions import Lines
from sexpgpu.lsp.rename import Refused, renamable, rename
from sexpgpu.source import Source, Span
from sexpgpu.syntax import load_source
from sexpgpu.syntax.format import format_source

PAUSE_S = 0.02
"""How long a text must rest before it is checked."""

STACK_BYTES = 256 << 20
"""Of the thread that checks: what 256 nested calls of the language may need."""

MAX_GARBAGE = 200_000
"""New objects at which garbage is collected: half a dozen checks of a large file, some 50 MB."""

FORM_KINDS = {
    "constant": types.SymbolKind.Constant, "function": types.SymbolKind.Function, "model": types.SymbolKind.Class,
    "metric": types.SymbolKind.Function, "optimizer": types.SymbolKind.Function, "generator": types.SymbolKind.Function,
    "data": types.SymbolKind.Object, "loader": types.SymbolKind.Object, "variant": types.SymbolKind.Enum,
    "run": types.SymbolKind.Event,
}  # fmt: skip
ITEM_KINDS = {
    "constant": types.CompletionItemKind.Constant, "function": types.CompletionItemKind.Function,
    "model": types.CompletionItemKind.Class, "metric": types.CompletionItemKind.Function,
    "optimizer": types.CompletionItemKind.Function, "generator": types.CompletionItemKind.Function,
    "operation": types.CompletionItemKind.Function, "form": types.CompletionItemKind.Keyword,
    "keyword": types.CompletionItemKind.Property, "dtype": types.CompletionItemKind.TypeParameter,
    "ambient": types.CompletionItemKind.Constant, "data": types.CompletionItemKind.Module,
    "loader": types.CompletionItemKind.Module,
}  # fmt: skip


_Asked = (
    types.HoverParams | types.DefinitionParams | types.ReferenceParams | types.CompletionParams
    | types.PrepareRenameParams | types.RenameParams
)  # fmt: skip


@dataclass
class _Open:
    """A file that the editor has open. version: of its text; check: the one that is due or running."""

    uri: str
    version: int
    path: Path
    check: asyncio.Task[None] | None = None
    outdated: threading.Event = field(default_factory=threading.Event)


class Server(LanguageServer):
    """The state of one editor's session."""

    def __init__(self) -> None:
        super().__init__("sexpgpu", __version__, types.TextDocumentSyncKind.Full)
        self.project = Project()
        self.open: dict[Path, _Open] = {}
        self.published: dict[Path, dict[str, list[types.Diagnostic]]] = {}
        before = threading.stack_size(STACK_BYTES)
        self.worker = ThreadPoolExecutor(1, "check")
        self.worker.submit(_warm_up).add_done_callback(lambda done: done.result())
        threading.stack_size(before)

    # Places.

    def path_of_uri(self, uri: str) -> Path:
        """The file of a URI; one that has no file yet is beside the current directory's."""
        path = to_fs_path(uri) if uri.startswith("file:") else None
        return Path(path).resolve() if path else Path.cwd() / uri.replace("/", "_").replace(":", "-")

    def uri_of_path(self, path: Path) -> str:
        """The URI under which the editor knows a file."""
        known = self.open.get(path)
        return known.uri if known is not None else (from_fs_path(str(path)) or path.as_uri())

    def lines(self, text: str) -> Lines:
        """A text with the columns that this editor counts."""
        encoding = self.workspace.position_encoding or "utf-16"
        return Lines(text, str(getattr(encoding, "value", encoding)))

    def range(self, span: Span) -> types.Range:
        """A span as the editor counts."""
        lines = self.lines(span.source.text)
        start, end = lines.position(span.start), lines.position(span.end)
        return types.Range(types.Position(*start), types.Position(*end))

    def place(self, params: _Asked) -> tuple[Path, int]:
        """The file and offset of a request. Raises DiagnosticError where it cannot be read."""
        path = self.path_of_uri(params.text_document.uri)
        text = self.project.names(path).source.text
        return path, self.lines(text).offset(params.position.line, params.position.character)

    def location(self, span: Span) -> types.Location:
        """A span with its file."""
        return types.Location(self.uri_of_path(path_of(span.source)), self.range(span))

    # Checks.

    def changed(self, path: Path) -> None:
        """A text has changed: check it, and every open file that includes it."""
        for other, state in self.open.items():
            if other == path or any(path_of(n.source) == path for n in self.project.names(other).files()):
                self._schedule(state)

    def _schedule(self, state: _Open) -> None:
        state.outdated.set()
        state.outdated = threading.Event()
        if state.check is not None:
            state.check.cancel()
        state.check = asyncio.get_running_loop().create_task(self._check(state, state.version, state.outdated))
        state.check.add_done_callback(self._reported)

    def _reported(self, check: asyncio.Task[None]) -> None:
        """Say what went wrong in the server itself, so that it can be mended."""
        error = None if check.cancelled() else check.exception()
        if error is not None:
            text = "".join(traceback.format_exception(error))
            self.window_log_message(types.LogMessageParams(types.MessageType.Error, text))

    async def _check(self, state: _Open, version: int, outdated: threading.Event) -> None:
        await asyncio.sleep(PAUSE_S)
        path = state.path
        if path.parent == library_folder():
            return
        files = EditedFiles(dict(self.project.texts), self.project.opened)
        loop = asyncio.get_running_loop()
        try:
            report, good = await loop.run_in_executor(self.worker, check_plain, path, files, outdated.is_set)
            self.project.keep(path, report, good)
            self._publish(state, version, report)
            if good:
                whole = await loop.run_in_executor(self.worker, check_variants, path, report, outdated.is_set)
                if whole.diagnostics != report.diagnostics:
                    self._publish(state, version, whole)
        except Outdated:
            return
        finally:
            loop.run_in_executor(self.worker, _tidy)

    async def settled(self, path: Path) -> None:
        """Wait for the check of a file that is due or running."""
        state = self.open.get(path)
        while state is not None and state.check is not None and not state.check.done():
            await asyncio.wait([state.check])

    def _publish(self, state: _Open, version: int, report: Report) -> None:
        found: dict[str, list[types.Diagnostic]] = {state.uri: []}
        for diagnostic in report.diagnostics:
            uri = state.uri if diagnostic.span is None else self._uri(report, diagnostic.span.source, state)
            shown = self._diagnostic(diagnostic, report, state)
            if shown is not None:
                found.setdefault(uri, []).append(shown)
        before = self.published.get(state.path, {})
        self.published[state.path] = found
        for uri in dict.fromkeys((*found, *before)):
            self._send(uri, version if uri == state.uri else None)

    def _send(self, uri: str, version: int | None) -> None:
        """What all open files have found in one file, each diagnostic once."""
        known: list[types.Diagnostic] = []
        for found in self.published.values():
            known += [d for d in found.get(uri, []) if d not in known]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, known, version))

    def _uri(self, report: Report, source: Source, state: _Open) -> str:
        path = report.files.path_of(source)
        if path is None and source.is_library:
            path = path_of(source)
        return state.uri if path is None else self.uri_of_path(path)

    def _diagnostic(self, diagnostic: Diagnostic, report: Report, state: _Open) -> types.Diagnostic | None:
        severity = types.DiagnosticSeverity.Error
        if diagnostic.severity == "warning":
            severity = types.DiagnosticSeverity.Warning
        if diagnostic.code == "E-RUN-004":  # a file without a run: a part of other files, or the beginning of one
            if len(self.project.including(state.path)) > 1:
                return None
            severity = types.DiagnosticSeverity.Information
        own = [label.message for label in diagnostic.labels if label.span == diagnostic.span]
        lines = [diagnostic.message, *own, *(f"help: {t}" for t in diagnostic.help)]
        lines += [f"note: {t}" for t in diagnostic.notes]
        nowhere = types.Range(types.Position(0, 0), types.Position(0, 0))
        related = [self._related(label, report, state) for label in diagnostic.labels if label.span != diagnostic.span]
        return types.Diagnostic(
            self.range(diagnostic.span) if diagnostic.span is not None else nowhere,
            "\n".join(lines),
            severity=severity,
            code=diagnostic.code,
            source="sexpgpu",
            related_information=related or None,
        )

    def _related(self, label: Label, report: Report, state: _Open) -> types.DiagnosticRelatedInformation:
        uri = self._uri(report, label.span.source, state)
        return types.DiagnosticRelatedInformation(types.Location(uri, self.range(label.span)), label.message)

    def shutdown(self) -> None:
        """Give up the check that runs, and end."""
        for state in self.open.values():
            state.outdated.set()
        self.worker.shutdown(wait=False, cancel_futures=True)
        super().shutdown()  # type: ignore[no-untyped-call]


def _warm_up() -> None:
    """Make ready the thread that checks: what is loaded once is loaded, and garbage collected between checks."""
    from sexpgpu.lsp.names import library

    sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))
    library()
    gc.collect()
    gc.freeze()
    gc.disable()


def _tidy() -> None:
    """Collect garbage between checks, once a few have left some."""
    if gc.get_count()[0] > MAX_GARBAGE:
        gc.collect()


def make_server() -> Server:
    """The server with its features."""
    server = Server()
    _documents(server)
    _questions(server)
    _changes(server)
    return server


def _documents(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def opened(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
        document = params.text_document
        path = ls.path_of_uri(document.uri)
        ls.open[path] = _Open(document.uri, document.version, path)
        ls.project.set_text(path, document.text)
        ls.changed(path)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(ls: Server, params: types.DidChangeTextDocumentParams) -> None:
        path = ls.path_of_uri(params.text_document.uri)
        ls.open[path].version = params.text_document.version
        ls.project.set_text(path, ls.workspace.get_text_document(params.text_document.uri).source)
        ls.changed(path)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def saved(ls: Server, params: types.DidSaveTextDocumentParams) -> None:
        ls.changed(ls.path_of_uri(params.text_document.uri))

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    async def closed(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
        path = ls.path_of_uri(params.text_document.uri)
        state = ls.open.pop(path)
        state.outdated.set()
        if state.check is not None:
            state.check.cancel()
        ls.project.close(path)
        for uri in ls.published.pop(path, {}):
            ls._send(uri, None)
        for other in list(ls.open):
            ls.changed(other)


def _questions(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
        await ls.settled(ls.path_of_uri(params.text_document.uri))
        path, offset = ls.place(params)
        found = ls.project.hover(path, offset)
        if found is None:
            return None
        code = "\n".join(found.code)
        parts = [f"```sexpgpu\n{code}\n```"] if code else []
        content = types.MarkupContent(types.MarkupKind.Markdown, "\n\n".join([*parts, *found.text]))
        return types.Hover(content, ls.range(found.span))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def definition(ls: Server, params: types.DefinitionParams) -> types.Location | None:
        path, offset = ls.place(params)
        span = ls.project.definition(path, offset)
        return None if span is None else ls.location(span)

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    async def references(ls: Server, params: types.ReferenceParams) -> list[types.Location]:
        path, offset = ls.place(params)
        return [ls.location(span) for span in ls.project.references(path, offset)]

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["(", ":"], resolve_provider=False)
    )
    async def completion(ls: Server, params: types.CompletionParams) -> types.CompletionList:
        path, offset = ls.place(params)
        start, found = complete(ls.project, path, offset)
        source = ls.project.names(path).source
        replaced = ls.range(Span(source, start, offset))
        items = [
            types.CompletionItem(
                p.label,
                kind=ITEM_KINDS.get(p.kind, types.CompletionItemKind.Variable),
                detail=p.detail or None,
                documentation=types.MarkupContent(types.MarkupKind.Markdown, p.doc) if p.doc else None,
                sort_text=f"{p.order}{p.label}",
                text_edit=types.TextEdit(replaced, p.label),
            )
            for p in found
        ]
        return types.CompletionList(False, items)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def symbols(ls: Server, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        found = []
        for binding in ls.project.outline(ls.path_of_uri(params.text_document.uri)):
            assert binding.form is not None and binding.span is not None, binding
            kind = FORM_KINDS.get(binding.kind, types.SymbolKind.Object)
            detail = binding.kind
            if binding.kind == "constant" and binding.value is not None:
                detail = " ".join(binding.value.span.text.split())
            found.append(
                types.DocumentSymbol(
                    binding.name, kind, ls.range(binding.form.span), ls.range(binding.span), detail=detail
                )
            )
        return found


def _changes(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    async def prepare(ls: Server, params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder:
        path, offset = ls.place(params)
        try:
            occurrence = renamable(ls.project, path, offset)
        except Refused as refused:
            raise JsonRpcInvalidParams(str(refused)) from None
        return types.PrepareRenamePlaceholder(ls.range(occurrence.span), occurrence.binding.name)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    async def renamed(ls: Server, params: types.RenameParams) -> types.WorkspaceEdit:
        path, offset = ls.place(params)
        try:
            edits = rename(ls.project, path, offset, params.new_name)
        except Refused as refused:
            raise JsonRpcInvalidParams(str(refused)) from None
        changes: dict[str, list[types.TextEdit]] = {}
        for edit in edits:
            uri = ls.uri_of_path(edit.path)
            changes.setdefault(uri, []).append(types.TextEdit(ls.range(edit.span), edit.text))
        return types.WorkspaceEdit(changes)

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    async def formatted(ls: Server, params: types.DocumentFormattingParams) -> Sequence[types.TextEdit] | None:
        path = ls.path_of_uri(params.text_document.uri)
        text = ls.project.texts[path] if path in ls.project.texts else load_source(path).text
        source = Source(str(path), text)
        try:
            made = format_source(source)
        except DiagnosticError as error:
            first = error.diagnostics[0]
            raise JsonRpcInvalidParams(f"{first.code}: {first.message}") from None
        whole = ls.range(Span(source, 0, len(text)))
        return [] if made == text else [types.TextEdit(whole, made)]


def run(stdin: Any = None, stdout: Any = None) -> None:
    """Serve one editor over standard input and output until it ends the session."""
    make_server().start_io(stdin, stdout)
