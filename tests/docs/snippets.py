"""Fenced snippets of the manual, and files that put a snippet where it elaborates."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from sexpgpu.lang.toplevel import FORMS
from sexpgpu.source import Source
from sexpgpu.syntax import Form, List, Symbol, Vector, read
from tests.data.tokenizers import write_tokenizers

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CLAIM = re.compile(r";\s*(=>|is)\s+(.+?)\s*$")

SETTING = """
  (let [x (random-normal (f32 8 16)) y (random-normal (f32 8 16))
        row (random-normal (f32 16)) w (random-normal (f32 16 4))
        ids (iota (i32 8)) tokens (iota (i32 4 32) :axis 1) targets tokens
        mask (> x 0.0) image (random-normal (f32 4 8 8 3))
        [q k v] [(random-normal (f32 2 4 10 16)) (random-normal (f32 2 4 10 16)) (random-normal (f32 2 4 10 16))]]
"""
RUN = "(defmetric hidden-loss () {body})\n(defrun hidden :loss hidden-loss :steps 1)\n"


@dataclass(frozen=True)
class Snippet:
    """A fenced block: where it stands, its language and its text."""

    place: str
    language: str
    text: str


def snippets(language: str) -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in _FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Snippet(f"{page.relative_to(CHECKOUT)}:{line}", language, match[2]))
    return found


def forms_of(text: str) -> tuple[Form, ...]:
    result = read(Source("snippet", text))
    assert not result.diagnostics, [d.message for d in result.diagnostics]
    return result.forms


def _head(form: Form) -> str:
    return form.items[0].name if isinstance(form, List) and isinstance(form.items[0], Symbol) else ""


def write_files(folder: Path) -> None:
    """The files that snippets name."""
    draw = np.random.default_rng(0)
    label = np.arange(400, dtype=np.int32) % 10
    np.savez(folder / "digits.npz", image=draw.random((400, 64), np.float32), label=label)
    scores = np.asarray([[1, 2, 3, 0], [5, 0, 0, 0]], np.float32)
    np.savez(folder / "scores.npz", x=scores, kept=scores != 0)
    weights = {"qkv.w": draw.random((12, 16), np.float32), "qkv.b": draw.random(12, np.float32)}
    weights |= {"shift": np.ones(4, np.float32), "mask": np.zeros(3, np.float32)}
    np.savez(folder / "model.npz", **weights)
    (folder / "flowers.csv").write_text("length,width,kind\n" + "5.1,3.5,setosa\n6.3,2.9,virginica\n" * 5, "utf-8")
    (folder / "names.txt").write_text("emma\nolivia\nava\nisabella\nsophia\n", "utf-8")
    (folder / "stories.txt").write_text("the cat sat\non a mat\nand then it slept\nfor an hour\nor two\n" * 5, "utf-8")
    write_tokenizers(folder)
    parquet.write_table(pyarrow.table({"height": [1.5, None, 20.0] * 4}), folder / "trees.parquet")
    for kind in ("cats", "dogs"):
        (folder / "photos" / kind).mkdir(parents=True)
        for i in range(4):
            pixels = draw.integers(0, 256, (12, 10, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / kind / f"{i}.png")
    (folder / "shards").mkdir()
    for i in range(2):
        draw.integers(0, 50304, 400).astype(np.uint16).tofile(folder / "shards" / f"train-{i}.bin")
    (folder / "parts").mkdir()
    gated = "(defn gated (x hidden) (* (silu (linear x hidden :name gate)) (linear x hidden :name up)))\n"
    (folder / "parts" / "layers.sx").write_text(gated, "utf-8")


def as_file(text: str) -> str:
    """A whole experiment around a snippet: as it is, top-level forms with a run, or expressions inside a metric."""
    forms = forms_of(text)
    if any(_head(form) == "defrun" for form in forms):
        return text
    if all(_head(form) in FORMS for form in forms):
        return text + _reached(forms)
    return text_of_expressions(text, forms)


def _reached(forms: tuple[Form, ...]) -> str:
    """Forms that elaborate what top-level forms only declare."""
    calls, optimizer = [], ""
    for form in forms:
        assert isinstance(form, List)
        name = form.items[1].span.text
        match _head(form):
            case "defn" | "defmodel":
                plain = [i for i in form.items[2].items if not i.span.text.startswith(":")]
                calls.append(f"(sum ({name} {_arguments(plain)}))")
            case "defmetric" if not form.items[2].items:
                calls.append(f"({name})")
            case "defmetric":
                fields = " ".join(i.items[0].span.text if isinstance(i, List) else i.span.text
                                  for i in form.items[2].items)  # fmt: skip
                if "label" in fields:
                    calls.append("(" + name + " x ids (> (gather x 0 :axis 1) 0.0))")
            case "defoptimizer":
                optimizer = f":optimizer ({name} :rate 0.1)"
    calls.append("(sum (square (param hidden (f32 3) 1.0)))" if optimizer else "0.0")
    body = SETTING + "    (let [" + " ".join(f"_ {call}" for call in calls[:-1]) + f"] {calls[-1]}))"
    return "\n" + RUN.format(body=body).replace(":steps 1", f"{optimizer} :steps 1")


def _arguments(parameters: list[Form]) -> str:
    """`x` for the first, then a number: enough for the functions of the manual."""
    named = [p for p in parameters if isinstance(p, Symbol | List | Vector)]
    return " ".join("x" if i == 0 else "32" for i in range(len(named))) if len(named) <= 2 else "x 32"


def text_of_expressions(text: str, forms: tuple[Form, ...]) -> str:
    """Each expression bound in turn, and each claim in a comment checked by an `if`."""
    parts = []
    for index, form in enumerate(forms):
        line_end = text.find("\n", form.span.end)
        comment = text[form.span.end : line_end if line_end >= 0 else len(text)]
        name = f"value-{index}"
        parts.append(f"    {name} (with :scope (s {index}) {form.span.text})")
        claim = _CLAIM.search(comment)
        if claim is not None:
            if claim[1] == "is":
                parts.append(f"    _ (measure seen-{index} (sum (cast {name} f32)))")
            found = f"(type-of {name})" if claim[1] == "is" else name
            shown = claim[2].replace('"', "")
            parts.append(f'    _ (if (= {found} {claim[2]}) 0 (error "form {index + 1} is not {shown}"))')
    return RUN.format(body=SETTING + "    (let [\n" + "\n".join(parts) + "]\n 0.0))")
