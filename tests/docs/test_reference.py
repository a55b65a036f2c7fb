"""The reference has a page for everything, and every page has what its kind must have."""

import inspect
import itertools
import re
from dataclasses import replace
from types import ModuleType

import pytest

from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.lang.load import _base_scope, library_forms
from sexpgpu.lang.manual import REQUIRED, Page, faults, pages, sections_of
from sexpgpu.lang.sources import KINDS
from sexpgpu.lang.toplevel import FORMS
from tests.docs.snippets import CHECKOUT

ALL = {page.name: page for page in pages()}
CLAIM = re.compile(r"; (=>|is) \S")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(CHECKOUT / "tools"))
    import docs

    return docs


def test_generated_pages_are_up_to_date(tool: ModuleType) -> None:
    assert tool.stale(tool.generated()) == [], "run python tools/docs.py"


def test_a_page_that_changed_or_is_left_over_is_stale(tool: ModuleType) -> None:
    texts = tool.generated()
    index, other = tool.DOCS / "reference" / "index.md", tool.DOCS / "reference" / "gather.md"
    del texts[other]
    assert tool.stale({**texts, index: "another text"}) == [index, other]


def test_everything_has_a_page_and_no_page_is_of_nothing() -> None:
    library = "".join(source.text for source in library_forms())
    defined = re.findall(r"^\(def(?:n|optimizer) (\S+)", library, re.MULTILINE)
    forms = {*FORMS, *EXPRESSIONS, "zip"}
    assert forms | {*BUILTINS, *defined, *_base_scope().names, *KINDS} - {"_"} == ALL.keys()
    assert len(pages()) == len(ALL)
    assert len({page.slug for page in ALL.values()}) == len(ALL)


@pytest.mark.parametrize("page", ALL.values(), ids=lambda page: page.name)
def test_a_page_says_what_its_kind_must(page: Page) -> None:
    assert faults(page) == []


@pytest.mark.parametrize("page", ALL.values(), ids=lambda page: page.name)
def test_every_operation_shows_a_value_or_a_type(page: Page) -> None:
    shows = page.kind in ("operation", "function", "special form", "loop")
    if shows and not page.sections["Example"].startswith("(def") and page.name != "weighted":
        assert CLAIM.search(page.sections["Example"])


@pytest.mark.parametrize("name", [name for name in FORMS if "allowed" in inspect.getclosurevars(FORMS[name]).nonlocals])
def test_pages_of_top_level_forms_show_their_keywords(name: str) -> None:
    allowed = inspect.getclosurevars(FORMS[name]).nonlocals["allowed"]
    assert set(allowed) <= set(ALL[name].keywords)


@pytest.mark.parametrize("name", KINDS)
def test_pages_of_sources_show_their_keywords(name: str) -> None:
    assert set(KINDS[name]) == set(ALL[name].keywords)


def test_what_a_page_lacks_is_named() -> None:
    gather = ALL["gather"]
    for name in REQUIRED["operation"]:
        without = {k: v for k, v in gather.sections.items() if k != name}
        assert faults(replace(gather, sections=without)) == [f"a section `{name}`"]
    assert faults(replace(gather, keywords=("axis", "speed"))) == ["a word on `:speed`"]
    assert faults(replace(gather, summary="")) == ["a first sentence"]


def test_sections_are_read_in_their_order() -> None:
    summary, sections = sections_of("""What it does.

    More of it.

    Example:
        (f x)
          ; a line that is further in
    Shape: any,
        or none.
    """)
    assert summary == "What it does.\n\nMore of it."
    assert list(sections.items()) == [
        ("Shape", "any,\nor none."),
        ("Example", "(f x)\n  ; a line that is further in"),
    ]


def test_pages_have_one_order_of_sections(tool: ModuleType) -> None:
    titles = []
    for path in (CHECKOUT / "docs" / "reference").glob("*.md"):
        if path.name != "index.md":
            titles.append(re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE))
    order: dict[str, set[str]] = {}
    for found in titles:
        for earlier, later in itertools.pairwise(found):
            order.setdefault(earlier, set()).add(later)
    for earlier, after in order.items():
        assert not any(earlier in order.get(later, set()) for later in after), earlier
