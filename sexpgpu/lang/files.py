"""How an elaboration gets at the disk: texts, data, published weights. The language server has a way of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sexpgpu.data import Dataset, DataSpec, WeightFiles, open_dataset, open_weights
from sexpgpu.diagnostics import Diagnostic
from sexpgpu.source import Source
from sexpgpu.syntax import load_source


class Files:
    """The disk as it is."""

    def source(self, path: Path | str) -> Source:
        """The text of a file. Raises E-READ-001, E-READ-002."""
        return load_source(path)

    def dataset(self, spec: DataSpec, base: Path) -> Dataset:
        """The data that `spec` describes, looked up beside `base`. Raises E-DATA-…"""
        return open_dataset(spec, base)

    def weights(self, written: str, base: Path) -> WeightFiles:
        """The published weights of a path or pattern. Raises E-DATA-001, E-DATA-002."""
        return open_weights(written, base)

    def stand_in(self, spec: DataSpec, faults: Sequence[Diagnostic]) -> Dataset | None:
        """Data to go on with where `dataset` raised `faults`; None: the faults are raised."""
        return None


class Recorded(Files):
    """The disk, but for the texts of an experiment as they were: `text` at `path`, `included` by paths from its folder.

    Everything else, the data above all, is as it is on the disk now.
    """

    def __init__(self, path: Path, text: str, included: Mapping[str, str]) -> None:
        folder = path.resolve().parent
        self._texts = {path.resolve(): text} | {(folder / name).resolve(): each for name, each in included.items()}

    def source(self, path: Path | str) -> Source:
        """The text of a file as it was. Raises E-READ-001, E-READ-002."""
        text = self._texts.get(Path(path).resolve())
        return super().source(path) if text is None else Source(str(path), text)


DISK = Files()
