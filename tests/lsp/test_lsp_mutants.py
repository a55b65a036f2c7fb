"""300 slips in examples/gpt2.sx: no question about any of them may raise, and the server outlives them."""

import asyncio
from pathlib import Path
from random import Random

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInternalError

from sexpgpu.lsp.analysis import Project
from sexpgpu.lsp.completion import complete
from sexpgpu.lsp.rename import Refused, rename
from tests.lang.mutants import mutant
from tests.lsp.marked import checked
from tests.lsp.session import session

GPT2 = Path(__file__).resolve().parents[2] / "examples" / "gpt2.sx"
TEXT = GPT2.read_text("utf-8").replace("(def layers 12)", "(def layers 2)")
NUM_MUTANTS = 300
NUM_OVER_THE_PROTOCOL = 40
assert GPT2.read_text("utf-8") != TEXT


def slips(number: int, random: Random) -> str:
    """A text with one to three slips, cut off in the middle now and then."""
    text = TEXT
    for _ in range(1 + number % 3):
        text = mutant(text, random).text
    return text[: random.randrange(len(text))] if number % 7 == 0 else text


def test_no_answer_raises() -> None:
    project, wrong, refused, asked = Project(), 0, 0, 0
    for number in range(NUM_MUTANTS):
        random = Random(number)
        text = slips(number, random)
        project.set_text(GPT2, text)
        wrong += bool(checked(project, GPT2).diagnostics)
        for _ in range(12):
            offset = random.randrange(len(text) + 1)
            project.hover(GPT2, offset)
            project.definition(GPT2, offset)
            start, _found = complete(project, GPT2, offset)
            assert 0 <= start <= offset
            try:
                asked += len(rename(project, GPT2, offset, "another-name"))
            except Refused:
                refused += 1
        for binding in project.outline(GPT2):
            assert binding.form is not None
    assert wrong > NUM_MUTANTS // 2 and refused and asked


def test_the_server_outlives_them(tmp_path: Path) -> None:
    uri = (tmp_path / "a.sx").as_uri()

    async def script() -> None:
        async with session(tmp_path) as editor:
            client, named = editor.client, types.TextDocumentIdentifier(uri)
            editor.open(uri, TEXT)
            for number in range(NUM_OVER_THE_PROTOCOL):
                random = Random(number)
                text = slips(number, random)
                editor.change(uri, text)
                place = named, types.Position(random.randrange(text.count("\n") + 3), random.randrange(130))
                options = types.FormattingOptions(2, True)
                asked = [
                    client.text_document_hover_async(types.HoverParams(*place)),
                    client.text_document_definition_async(types.DefinitionParams(*place)),
                    client.text_document_references_async(types.ReferenceParams(types.ReferenceContext(True), *place)),
                    client.text_document_completion_async(types.CompletionParams(*place)),
                    client.text_document_rename_async(types.RenameParams(*place, new_name="another-name")),
                    client.text_document_document_symbol_async(types.DocumentSymbolParams(named)),
                    client.text_document_formatting_async(types.DocumentFormattingParams(named, options)),
                ]
                for answer in await asyncio.gather(*asked, return_exceptions=True):
                    assert not isinstance(answer, JsonRpcInternalError), (number, answer)
                    assert not isinstance(answer, Exception) or isinstance(answer, JsonRpcException), (number, answer)
            await editor.settled(uri)
            assert not editor.faults

    asyncio.run(script())
