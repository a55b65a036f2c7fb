"""Tokenizers of others: what they make of texts, what is kept, and how little a hostile file can do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.cli.main import main
from sexpgpu.data import (
    Lines,
    LinesSpec,
    Loader,
    Rows,
    TextSpec,
    TiktokenSpec,
    TokenizerSpec,
    TokensSpec,
    TokenStream,
    Windows,
    open_dataset,
    text,
    tokenizer,
)
from sexpgpu.data.tokenizer import TokenizerCodec
from sexpgpu.diagnostics import DiagnosticError
from tests.data.tokenizers import END, END_ID, PATTERN, RANKS, tokenizer_json, write_tokenizers
from tests.train.trial import write_experiment

JSON = TokenizerSpec("tokenizer.json")
TIKTOKEN = TiktokenSpec("ranks.tiktoken", PATTERN, ((END, END_ID),))
BOTH = pytest.mark.parametrize("by", [JSON, TIKTOKEN], ids=["tokenizers", "tiktoken"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_tokenizers(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that a tokenizer was asked to encode."""
    plain, seen = TokenizerCodec.encode_all, []

    def encode_all(codec: TokenizerCodec, texts: Any) -> Any:
        seen.extend(texts)
        return plain(codec, texts)

    monkeypatch.setattr(TokenizerCodec, "encode_all", encode_all)
    return seen


def stream(spec: Any, base: Path) -> TokenStream:
    opened = open_dataset(spec, base)
    assert isinstance(opened, TokenStream)
    return opened


def reason(path: Path, **options: Any) -> str:
    with pytest.raises(DiagnosticError, match=r"E-DATA-002") as caught:
        TokenizerCodec(path, **{"opening": {}, **options})
    return caught.value.diagnostics[0].message


class TestTexts:
    @BOTH
    def test_ids_and_back(self, tmp_path: Path, by: Any) -> None:
        content = f"In the beginning, the\n\nend.{END}Ünï the"
        (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
        opened = stream(TextSpec("a.txt", by), tmp_path)
        ids = opened.ids[:].tolist()
        assert ids.count(258) == 3 and ids.count(END_ID) == 1 and len(ids) == len(content.encode()) - 9 - 6
        assert opened.vocabulary == END_ID + 1
        assert opened.encode(content.replace("\n", "\r\n")) == ids and opened.decode(ids) == content
        assert opened.decode([104, 299, 0xC3]) == "h\ufffd\ufffd"
        with pytest.raises(DiagnosticError, match=r"E-DATA-004.*id 301"):
            opened.decode([301])
        batch = Loader("l", Windows(opened, 4), 2).batch(0)
        assert batch["tokens"].dtype == np.int32 and batch["tokens"][0].tolist() == ids[:4]

    def test_both_libraries_agree_on_what_python_carries(self, tmp_path: Path) -> None:
        a, b = (stream(TextSpec("python:topics", by), tmp_path) for by in (JSON, TIKTOKEN))
        np.testing.assert_array_equal(a.ids[:], b.ids[:])
        assert len(a) < len(text.python_topics().encode()) * 0.98 and a.decode(a.ids[:]) == text.python_topics()

    @BOTH
    def test_documents(self, tmp_path: Path, by: Any) -> None:
        (tmp_path / "a.txt").write_text(f"the one{END}two{END}{END}rest")
        (tmp_path / "b.txt").write_text(f"three{END}")
        opened = stream(TextSpec("?.txt", by, END), tmp_path)
        ends = opened.document_ends.tolist()
        parts = [opened.decode(opened.ids[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
        assert parts == [f"the one{END}", f"two{END}", END, "rest", f"three{END}"]
        whole = stream(TextSpec("?.txt", by), tmp_path)
        assert whole.document_ends.tolist() == [ends[3], ends[4]] and whole.ids[:].tolist() == opened.ids[:].tolist()

    @BOTH
    def test_documents_that_nothing_ends(self, tmp_path: Path, by: Any) -> None:
        (tmp_path / "a.txt").write_text("the one and the other")
        with pytest.raises(DiagnosticError, match=r"E-DATA-003.*no document of `a.txt` ends with '!'"):
            _ = stream(TextSpec("a.txt", by, "!"), tmp_path).document_ends
        (tmp_path / "a.txt").write_text("the one!")
        assert stream(TextSpec("a.txt", by, "!"), tmp_path).document_ends.tolist() == [6]

    def test_lines(self, tmp_path: Path) -> None:
        (tmp_path / "names.txt").write_bytes(b"the cat\r\n\r\nbo\r\nthe the the the end")
        lines = open_dataset(LinesSpec("names.txt", 4, JSON), tmp_path)
        assert isinstance(lines, Lines)
        batch = Loader("l", Rows(lines), 3).batch(0)
        assert batch["length"].tolist() == [4, 2, 4] and batch["mask"].sum(axis=1).tolist() == [4, 2, 4]
        assert [lines.decode(row[row_mask]) for row, row_mask in zip(batch["tokens"], batch["mask"], strict=True)] == [
            "the ca", "bo", "the the the the",
        ]  # fmt: skip

    def test_the_identity_knows_the_tokenizer(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("the end")
        codec = TokenizerCodec(tmp_path / "tokenizer.json", {})
        assert codec.key == f"{codec.identity} tokenizers {tokenizers.__version__}"  # a newer one goes on with a run
        seen = [json.dumps(stream(TextSpec("a.txt", by), tmp_path).identity()) for by in ("bytes", JSON, TIKTOKEN)]
        assert codec.identity in seen[1]
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(), indent=1))
        seen.append(json.dumps(stream(TextSpec("a.txt", JSON), tmp_path).identity()))
        assert len(set(seen)) == 4

    def test_shards_with_the_tokenizer_that_wrote_them(self, tmp_path: Path) -> None:
        np.array([258, 259, 260], "<u2").tofile(tmp_path / "t.bin")
        opened = stream(TokensSpec("t.bin", 400, by=JSON), tmp_path)
        assert opened.vocabulary == 400 and opened.encode(" the") == [258] and opened.decode([258, 399]) == " the\ufffd"
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*has 301 ids, and `:vocabulary` is 300"):
            stream(TokensSpec("t.bin", 300, by=JSON), tmp_path)

    @pytest.mark.parametrize("source", [
        '(text "a.txt" :by (tokenizer "tokenizer.json"))',
        f'(text "a.txt" :by (tiktoken "ranks.tiktoken" :pattern "\\\\s?\\\\w+|." :special ["{END}" {END_ID}]))',
        '(tokens "t.bin" :vocabulary 301 :by (tokenizer "tokenizer.json"))',
        '(lines "a.txt" :length 8 :by (tokenizer "tokenizer.json"))',
    ])  # fmt: skip
    def test_a_prompt_and_a_sample_are_text(self, tmp_path: Path, source: str) -> None:
        """A generator that gives each token the one that follows it by number prints the texts of these."""
        (tmp_path / "a.txt").write_text("the end of the thing " * 20)
        np.full(99, 258, "<u2").tofile(tmp_path / "t.bin")
        path = write_experiment(tmp_path, f"""
            (defdata corpus {source})
            (defmetric loss () (square (param w (f32) 1.0)))
            (defgenerator show (:prompt (encode corpus "a")) :show corpus
              :trips [t 3] :carry [last (nth prompt -1)]
              (next :last (+ last 1) :emit (+ last 1)))
            (defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 2)
        """)  # fmt: skip
        for prompt, shown in (("a", "abcd"), ("th", "ththe the\ufffd")):
            found = CliRunner().invoke(main, ["generate", str(path), "--checkpoint", "initial", "--prompt", prompt])
            assert found.exit_code == 0 and found.stdout.strip("\n").endswith(shown), found.output


    def test_the_snippet_of_the_manual_writes_a_known_encoding(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        known = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens={END: END_ID})
        monkeypatch.setattr(tiktoken, "get_encoding", {"gpt2": known}.__getitem__)
        monkeypatch.chdir(tmp_path)
        page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text("utf-8")
        (snippet,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        exec(snippet, {})
        assert capsys.readouterr().out == f"{PATTERN} {{'{END}': {END_ID}}}\n"
        codec = TokenizerCodec(tmp_path / "gpt2.tiktoken", {"pattern": PATTERN, "special": [[END, END_ID]]})
        assert codec.encode(f"in the end{END}") == known.encode(f"in the end{END}", allowed_special="all")


class TestPieces:
    @given(st.lists(st.text("ab \n", max_size=6), max_size=8), st.sampled_from([None, "b", "\n\n", "aba"]))
    def test_they_are_the_text_whatever_the_blocks(self, blocks: list[str], separator: str | None) -> None:
        whole = "".join(blocks)
        for keep in (True, False):
            found = list(text.pieces(blocks, separator, keep))
            assert found == list(text.pieces([whole], separator, keep))
            expected = [whole] if separator is None else whole.split(separator)
            parts = [part + separator if keep and separator else part for part in expected[:-1]] + expected[-1:]
            assert [p for p, _ in found] == (parts if parts[-1] else parts[:-1]) and all(end for _, end in found)

    def test_a_long_document_is_cut_after_line_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        content = "the first line\n\nthe next, the\nlast \n the\n" * 30
        (tmp_path / "a.txt").write_text(content)
        whole = stream(TextSpec("a.txt", JSON), tmp_path).ids[:]
        monkeypatch.setattr(text, "FORMAT", "pieces")
        monkeypatch.setattr(text, "PIECE_CHARACTERS", 50)
        found = [piece for piece, _ in text.pieces([content], None, True)]
        assert len(found) > 10 and all(p.endswith(("the\n", "\n")) and not p[-2].isspace() for p in found[:-1])
        np.testing.assert_array_equal(stream(TextSpec("a.txt", JSON), tmp_path).ids[:], whole)
        monkeypatch.setattr(text, "LARGEST_PIECE", 70)
        assert [len(piece) for piece, _ in text.pieces(["x" * 200], None, True)] == [70, 70, 60]


class TestKept:
    def test_a_text_is_encoded_once(self, tmp_path: Path, asked: list[str]) -> None:
        (tmp_path / "a.txt").write_text("the one")
        (tmp_path / "b.txt").write_text("the two")
        first = stream(TextSpec("a.txt", JSON), tmp_path).ids[:]
        assert asked == ["the one"]
        both = stream(TextSpec("?.txt", JSON), tmp_path).ids[:]
        assert asked == ["the one", "the two"] and both[: len(first)].tolist() == first.tolist()
        (tmp_path / "a.txt").rename(tmp_path / "c.txt")  # the name is of no account, the content is
        stream(TextSpec("c.txt", JSON), tmp_path)
        assert len(asked) == 2
        (tmp_path / "c.txt").write_text("the One")
        stream(TextSpec("c.txt", JSON), tmp_path)
        stream(TextSpec("c.txt", TIKTOKEN), tmp_path)
        stream(TextSpec("c.txt", JSON, "O"), tmp_path)
        assert asked[2:] == ["the One", "the One", "the O", "ne"]

    def test_what_is_damaged_is_made_again(self, tmp_path: Path, home: Path, asked: list[str]) -> None:
        (tmp_path / "a.txt").write_text("the one")
        expected = stream(TextSpec("a.txt", JSON), tmp_path).ids[:]
        kept = sorted((home / ".cache" / "sexpgpu" / "tokens").iterdir())
        assert len(kept) == 2
        for path in kept:
            content = path.read_bytes()
            for damage in (b"", content[:20], content[:-1]):
                path.write_bytes(damage)
                np.testing.assert_array_equal(stream(TextSpec("a.txt", JSON), tmp_path).ids[:], expected)
        assert len(asked) == 7 and sorted((home / ".cache" / "sexpgpu" / "tokens").iterdir()) == kept

    def test_no_place_to_keep_it(self, tmp_path: Path, home: Path) -> None:
        (tmp_path / "a.txt").write_text("the one")
        home.write_text("a file where a folder is needed")
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*tokens of `a.txt` cannot be kept"):
            open_dataset(TextSpec("a.txt", JSON), tmp_path)

    def test_a_text_that_changes_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.txt").write_text("the one")
        plain = TokenizerCodec.encode_all

        def encode_all(codec: TokenizerCodec, texts: Any) -> Any:
            (tmp_path / "a.txt").write_text("the other")
            return plain(codec, texts)

        monkeypatch.setattr(TokenizerCodec, "encode_all", encode_all)
        with pytest.raises(DiagnosticError, match=r"E-DATA-007.*`a.txt` changed"):
            open_dataset(TextSpec("a.txt", JSON), tmp_path)
        monkeypatch.setattr(TokenizerCodec, "encode_all", plain)
        for content in ("the other", "the one"):
            (tmp_path / "a.txt").write_text(content)
            again = stream(TextSpec("a.txt", JSON), tmp_path)
            assert again.decode(again.ids[:]) == content

    def test_large_text_by_characters_is_read_in_blocks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        content = "".join(chr(97 + i % 26) * (i % 7) + "é\r\n" for i in range(3000))
        (tmp_path / "a.txt").write_bytes(content.encode())
        small = stream(TextSpec("a.txt"), tmp_path)
        monkeypatch.setattr(text, "IN_MEMORY_BYTES", 1000)
        large = stream(TextSpec("a.txt"), tmp_path)
        np.testing.assert_array_equal(large.ids[:], small.ids[:])
        assert large.identity() == small.identity() and large.decode(large.ids[:]) == content.replace("\r\n", "\n")


def bomb() -> dict[str, Any]:
    double = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64} for _ in range(12)]
    return tokenizer_json(normalizer={"type": "Sequence", "normalizers": double})


def endless() -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    return tokenizer_json(pre_tokenizer=split)


class TestHostile:
    @pytest.mark.parametrize(
        "content",
        [
            b"", b"\xff\xfe", b"[]", b"{}", b"null", b'{"model": 3}', b"[" * 100_000, b'{"version": "1.0"}' * 2,
            json.dumps(tokenizer_json(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]})).encode(),
            json.dumps(tokenizer_json(model={"type": "BPE", "vocab": {"a": -1}, "merges": []})).encode(),
            json.dumps(tokenizer_json(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[])).encode(),
            json.dumps(tokenizer_json(model={"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []})).encode(),
            json.dumps(tokenizer_json(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("},
                                                     "behavior": "Isolated", "invert": False})).encode(),
        ],
    )  # fmt: skip
    def test_files_that_are_no_tokenizers(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "t.json").write_bytes(content)
        assert "the tokenizer `t.json` fails: " in reason(tmp_path / "t.json")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (b"AA== x", "line 260 is not a token"), (b"!! 300", "line 260 does not begin with base 64"),
            (b"AA== 300", "the token of line 260 is there twice"), (b"AAAA 3", "two tokens have one id"),
            (b"AAAA 99999999999", "an id is above"), (b"\xff\xff 7", "base 64"),
        ],
    )  # fmt: skip
    def test_ranks_that_are_none(self, tmp_path: Path, change: bytes, words: str) -> None:
        path = tmp_path / "ranks.tiktoken"
        path.write_bytes(path.read_bytes() + change + b"\n")
        assert words in reason(path, opening={"pattern": PATTERN, "special": []})

    def test_ranks_without_a_byte_and_patterns_that_are_none(self, tmp_path: Path) -> None:
        path = tmp_path / "ranks.tiktoken"
        assert "fails" in reason(path, opening={"pattern": "(", "special": []})
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
        assert "the byte 0x00 has no token of its own" in reason(path, opening={"pattern": PATTERN, "special": []})

    def test_cutting_and_filling_of_the_file_do_not_hold(self, tmp_path: Path) -> None:
        padding = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                   "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
        truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
        made = tokenizer_json(padding=padding, truncation=truncation)
        (tmp_path / "t.json").write_text(json.dumps(made))
        assert len(TokenizerCodec(tmp_path / "t.json", {}).encode("abcdef")) == 6

    def test_an_expression_that_never_ends(self, tmp_path: Path) -> None:
        (tmp_path / "t.json").write_text(json.dumps(endless()))
        codec = TokenizerCodec(tmp_path / "t.json", {})
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*retry-limit"):
            codec.encode("x" * 5000)
        assert codec.encode("y") == [ord("y")]

    def test_an_answer_that_does_not_come(self, tmp_path: Path) -> None:
        codec = TokenizerCodec(tmp_path / "tokenizer.json", {})
        codec._process._answer_s = 0.0
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*no answer after 0 seconds"):
            codec.encode("the " * 500_000)
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*it failed before"):
            codec.encode("abc")

    def test_a_replacement_that_fills_the_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tokenizer, "MEMORY_BYTES", 256 << 20)
        (tmp_path / "t.json").write_text(json.dumps(bomb()))
        codec = TokenizerCodec(tmp_path / "t.json", {})
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*`t.json` fails"):
            codec.encode("a" * 1000)

    def test_a_process_that_dies(self, tmp_path: Path) -> None:
        codec = TokenizerCodec(tmp_path / "tokenizer.json", {})
        os.kill(codec._process._process.pid, 9)
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*it ended"):
            codec.encode("abc")

    def test_no_process_is_left(self, tmp_path: Path) -> None:
        codec = TokenizerCodec(tmp_path / "tokenizer.json", {})
        process = codec._process._process
        assert process.poll() is None
        del codec
        assert process.poll() is not None

    def test_an_answer_that_does_not_fit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        codec = TokenizerCodec(tmp_path / "tokenizer.json", {})
        for answer in (({"counts": [1]}, b""), ({"counts": []}, b""), ({"counts": [1]}, b"\xff\xff\xff\x7f")):
            monkeypatch.setattr(codec._process, "ask", lambda *_, answer=answer: answer)
            with pytest.raises(DiagnosticError, match=r"E-DATA-002.*does not fit"):
                codec.encode("a")


@pytest.mark.parametrize(
    ("library", "spec", "extra"),
    [("tokenizers", TextSpec("a.txt", JSON), "text"), ("tiktoken", TextSpec("a.txt", TIKTOKEN), "text")],
)
def test_a_library_that_is_not_installed(
    tmp_path: Path, library: str, spec: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("abc")
    monkeypatch.setitem(tokenizer.sys.modules, library, None)
    with pytest.raises(DiagnosticError) as caught:
        open_dataset(spec, tmp_path)
    (found,) = caught.value.diagnostics
    assert found.code == "E-DATA-008" and library in found.message
    assert found.help == (f"pip install 'sexpgpu[{extra}]'",)


