"""g2p-en beside the package's own NumPy code."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.published.looking import FILES, beside, generate, script

pytestmark = [
    pytest.mark.published,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # the package leaves files open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WORDS = ("activation", "quiet", "thoroughly", "sexp", "o'clock", "a")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"weights": str(script("prepare_g2p_en").prepare(tmp_path_factory.mktemp("g2p")))}


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch):
    """The package's model. What it imports for corpora and numbers takes no part in it, and would be fetched."""
    script("prepare_g2p_en")
    for name in ("nltk", "nltk.corpus", "nltk.tokenize", "inflect"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    from g2p_en.g2p import G2p

    model = G2p()
    monkeypatch.delitem(sys.modules, "g2p_en")
    return model


def encoded(model, word: str) -> np.ndarray:
    start = np.zeros((1, 256), np.float32)
    of = model.variables
    given = [of[f"enc_{name}"] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
    return model.gru(model.encode(word), len(word) + 1, *given, h0=start)[:, -1]


def test_the_encoder(settings, theirs, tmp_path: Path) -> None:
    text = '(defgenerator memory (:word (encode ascii "a")) :show ascii (reader (reshape (letter-ids word) [1 _])))'
    file = beside(tmp_path, "g2p-en", text)
    worst = 0.0
    for word in WORDS:
        (memory,) = generate(file, "memory", settings, word=word).carries
        worst = max(worst, float(np.abs(memory - encoded(theirs, word)).max()))
    print(f"largest difference {worst:.1e}")
    assert worst < 1e-5


def test_the_sounds(settings, theirs) -> None:
    for word in WORDS:
        said = generate(FILES["g2p-en"], "say", settings, word=word).text
        assert said is not None and said.split() == theirs.predict(word), word
