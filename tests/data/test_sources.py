"""Tables, lines and images: what they read, and where they say that something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sexpgpu.data import (
    Arrays,
    DataSpec,
    Images,
    ImagesSpec,
    Lines,
    LinesSpec,
    Loader,
    Part,
    Rows,
    TableSpec,
    Windows,
    open_dataset,
)
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.lang.load import load_experiment
from tests.lang.files import run_graph
from tests.train.trial import Trial, write_experiment


def fault(spec: DataSpec, base: Path) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        open_dataset(spec, base)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def rows_of(spec: DataSpec, base: Path) -> Any:
    dataset = open_dataset(spec, base)
    assert isinstance(dataset, Arrays | Images)
    everything = np.arange(len(dataset))
    return {name: dataset.take(name, everything) for name in dataset.schema}


class TestTables:
    def test_types_follow_the_values(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_bytes(
            b"\xef\xbb\xbfcount,petal length,far,kind,mixed\r\n"
            b'1, 2.5 ,9000000000,"red, dark",1\r\n\r\n'
            b"-7,1e3,0,blue,0.5\r\n"
        )
        spec = TableSpec("t.csv", (("kind", ("blue", "red, dark")),))
        found = rows_of(spec, tmp_path)
        dataset = open_dataset(spec, tmp_path)
        assert isinstance(dataset, Arrays)
        assert {name: type for name, (type, _) in dataset.schema.items()} == {
            "count": "i32", "petal-length": "f32", "far": "i64", "kind": "i32", "mixed": "f32",
        }  # fmt: skip
        assert found["count"].tolist() == [1, -7] and found["far"].tolist() == [9_000_000_000, 0]
        assert found["petal-length"].tolist() == [2.5, 1000] and found["kind"].tolist() == [1, 0]
        assert found["mixed"].tolist() == [1, 0.5]

    def test_tabs_columns_and_several_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_text("x\tname\ty\n1\tone\t2\n")
        (tmp_path / "b.tsv").write_text("x\tname\ty\n3\ttwo\t4.5\n")
        found = rows_of(TableSpec("?.tsv", columns=("y", "x")), tmp_path)
        assert list(found) == ["y", "x"] and found["x"].tolist() == [1, 3] and found["y"].tolist() == [2, 4.5]

    @pytest.mark.parametrize(
        ("content", "code", "words"),
        [
            ("a,b\n1,2\n3\n", "E-DATA-002", "`t.csv`, line 3: 1 value for 2 columns"),
            ("a,b\n1,2\n3,\n", "E-DATA-002", "line 3: a value is missing: the column `b` holds nothing"),
            ("a,b\n1,NaN\n", "E-DATA-002", "line 2: a value is missing: the column `b` holds `NaN`"),
            ('a,b\n1,"two\nlines"\n3,x\n', "E-DATA-002", "line 3: `two\nlines` in the column `b` is no number"),
            ("a,b\n1,1_0\n", "E-DATA-002", "line 2: `1_0`"),
            ("a,b\n1,1e39\n", "E-DATA-002", "line 2: `1e39` in the column `b` is beyond what f32 holds"),
            ("a,b\n1," + "9" * 400 + "\n", "E-DATA-002", "beyond what f32 holds"),
            ('a,b\n1,"x" y\n', "E-DATA-002", "line 2: "),
            ("a,a\n1,2\n", "E-DATA-002", "line 1: two columns are called `a`"),
            ("a,\n1,2\n", "E-DATA-002", "line 1: a column has no name"),
            ("", "E-DATA-002", "no header"),
            ("a,b\n", "E-DATA-003", "`t.csv` is empty"),
            ("a,k\n1,rad\n", "E-DATA-004", "line 2: `rad` is not among the 2 categories of `k`"),
            ("a,k\n1,\n", "E-DATA-002", "line 2: a value is missing"),
        ],
    )
    def test_faults(self, tmp_path: Path, content: str, code: str, words: str) -> None:
        (tmp_path / "t.csv").write_text(content)
        categories = (("k", ("red", "blue")),) if ",k" in content else ()
        found = fault(TableSpec("t.csv", categories), tmp_path)
        assert found.code == code and words in found.message

    def test_columns_that_there_are_not(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("width,height\n1,2\n")
        (tmp_path / "u.csv").write_text("width,depth\n1,2\n")
        for spec in (TableSpec("t.csv", columns=("widht",)), TableSpec("t.csv", (("widht", ("a",)),))):
            found = fault(spec, tmp_path)
            assert found.code == "E-DATA-005" and "`width`" in found.help[0]
        assert "`u.csv`, line 1: the columns are" in fault(TableSpec("?.csv"), tmp_path).message
        (tmp_path / "t.parquet").write_bytes(b"PAR1")
        assert "Parquet" in fault(TableSpec("t.parquet"), tmp_path).message
        (tmp_path / "t.csv").write_bytes(b"a\n\xff\n")
        assert "line 2" in fault(TableSpec("t.csv"), tmp_path).message
        assert fault(TableSpec("none.csv"), tmp_path).code == "E-DATA-001"

    def test_the_identity_knows_how_it_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("a,k\n1,red\n")
        specs = [TableSpec("t.csv", (("k", words),), columns) for words in (("red",), ("red", "blue"))
                 for columns in (None, ("a", "k"))]  # fmt: skip
        assert len({repr(open_dataset(spec, tmp_path).identity()) for spec in specs}) == 4


class TestLines:
    def test_rows_are_cut_and_filled(self, tmp_path: Path) -> None:
        (tmp_path / "names.txt").write_bytes(b"emma\r\n\r\nbo\r\nalexandra")
        dataset = open_dataset(LinesSpec("names.txt", 5), tmp_path)
        assert isinstance(dataset, Lines)
        found = rows_of(LinesSpec("names.txt", 5), tmp_path)
        assert [dataset.decode(row) for row in found["tokens"]] == ["emma\n", "bo\n\n\n", "alexa"]
        assert found["length"].tolist() == [4, 2, 5]
        assert found["mask"].tolist() == [[i < n for i in range(5)] for n in (4, 2, 5)]
        assert dataset.schema == {"tokens": ("i32", (5,)), "mask": ("bool", (5,)), "length": ("i32", ())}
        assert dataset.vocabulary == len(set("emmaboalexandra\n")) and dataset.encode("ab\n")[2] == 0

    def test_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"\xff\x00\n")
        (tmp_path / "b").write_bytes(b"xyz")
        found = rows_of(LinesSpec("?", 2, "bytes"), tmp_path)
        assert found["tokens"].tolist() == [[255, 0], [120, 121]]

    def test_faults(self, tmp_path: Path) -> None:
        (tmp_path / "blank").write_bytes(b"\n\n")
        assert fault(LinesSpec("blank", 4), tmp_path).code == "E-DATA-003"
        (tmp_path / "latin").write_bytes(b"good\nb\xe4d\n")
        found = fault(LinesSpec("latin", 4), tmp_path)
        assert found.code == "E-DATA-002" and "line 2" in found.message
        (tmp_path / "fine").write_bytes(b"good\n")
        with pytest.raises(DiagnosticError, match="E-DATA-005"):
            Windows(open_dataset(LinesSpec("fine", 4), tmp_path), 2)


def picture(path: Path, height: int, width: int, mode: str = "RGB", seed: int = 0) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(pixels, mode if mode != "RGB" else None).save(path)
    return pixels


class TestImages:
    def test_a_folder_of_classes(self, tmp_path: Path) -> None:
        made = [
            picture(tmp_path / "photos" / name, 3, 5, seed=seed)
            for seed, name in enumerate(["cat/a.png", "cat/b.ppm", "dog/a.PNG"])
        ]
        (tmp_path / "photos" / "read me.txt").write_text("no picture")
        dataset = open_dataset(ImagesSpec("photos"), tmp_path)
        assert isinstance(dataset, Images)
        assert dataset.schema == {"image": ("f32", (3, 5, 3)), "label": ("i32", ())}
        assert dataset.classes == ("cat", "dog") and dataset.vocabulary == 2
        for _ in range(2):  # decoded, then kept
            found = {name: dataset.take(name, np.arange(3)) for name in dataset.schema}
            assert found["label"].tolist() == [0, 0, 1] and found["image"].dtype == np.float32
            np.testing.assert_array_equal(found["image"], np.stack(made).astype(np.float32) / np.float32(255))
            for path in (tmp_path / "photos").rglob("*.p*"):
                path.unlink(missing_ok=True)
        np.testing.assert_array_equal(dataset.take("image", np.array([2, 0, 2]))[0], made[2] / np.float32(255))

    def test_grey_sizes_and_patterns(self, tmp_path: Path) -> None:
        first = picture(tmp_path / "x" / "a.png", 4, 4, "L")
        picture(tmp_path / "y" / "b.png", 9, 7, "RGB")
        picture(tmp_path / "y" / "c.jpg", 8, 8, "RGB")
        found = rows_of(ImagesSpec("?/*", (4, 4), 1), tmp_path)
        assert found["image"].shape == (3, 4, 4, 1) and found["label"].tolist() == [0, 1, 1]
        np.testing.assert_array_equal(found["image"][0, ..., 0], first / np.float32(255))
        wide = rows_of(ImagesSpec("x/*.png", (2, 6)), tmp_path)["image"]
        assert wide.shape == (1, 2, 6, 3) and wide.min() >= 0 and wide.max() <= 1

    def test_faults(self, tmp_path: Path) -> None:
        picture(tmp_path / "p" / "k" / "a.png", 4, 4)
        picture(tmp_path / "p" / "k" / "b.png", 4, 6)
        found = fault(ImagesSpec("p"), tmp_path)
        assert found.code == "E-DATA-002" and "`k/b.png` is 4×6, and `k/a.png` 4×4" in found.message
        assert ":size" in found.help[0]
        (tmp_path / "p" / "k" / "b.png").write_bytes(b"not a picture")
        assert "`b.png` cannot be read as a picture" in fault(ImagesSpec("p"), tmp_path).message
        whole = (tmp_path / "p" / "k" / "a.png").read_bytes()
        (tmp_path / "p" / "k" / "b.png").write_bytes(whole[: len(whole) - 30])
        dataset = open_dataset(ImagesSpec("p"), tmp_path)
        assert isinstance(dataset, Images)
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*`b.png` cannot be read"):
            dataset.take("image", np.array([0, 1]))
        Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "p" / "k" / "b.png")
        deep = open_dataset(ImagesSpec("p"), tmp_path)
        assert isinstance(deep, Images)
        with pytest.raises(DiagnosticError, match="more than 8 bits"):
            deep.take("image", np.array([1]))
        (tmp_path / "empty").mkdir()
        assert fault(ImagesSpec("empty"), tmp_path).code == "E-DATA-003"
        assert fault(ImagesSpec("nowhere"), tmp_path).code == "E-DATA-001"
        (tmp_path / "p" / "k" / "c.txt").touch()
        assert "`c.txt` is no picture" in fault(ImagesSpec("p/k/*"), tmp_path).message

    def test_a_picture_in_another_folder_is_other_data(self, tmp_path: Path) -> None:
        for folder in ("one", "two"):
            for place, name in enumerate(["cat", "dog"]):
                picture(tmp_path / folder / (name if folder == "one" else "cat") / f"{name}.png", 2, 2, seed=place)
        one, two = (open_dataset(ImagesSpec(folder), tmp_path).identity() for folder in ("one", "two"))
        assert one != two


def test_parts_and_shuffled_batches(tmp_path: Path) -> None:
    for seed in range(8):
        picture(tmp_path / "p" / f"c{seed % 2}" / f"{seed}.png", 2, 3, seed=seed)
    view = Rows(Part(open_dataset(ImagesSpec("p"), tmp_path), 0.25, 1.0))
    loader = Loader("train", view, 3, True, "drop", 0)
    batches = [loader.batch(m, ("image", "label")) for m in range(4)]
    assert all(batch["image"].shape == (3, 2, 3, 3) for batch in batches)
    labels = np.concatenate([batch["label"] for batch in batches[:2]])
    assert sorted(labels.tolist()) == [0, 0, 1, 1, 1, 1]


EXPERIMENT = """
(defdata flowers (table "flowers.csv" :columns [length width kind] :categories [kind kinds]))
(def kinds ["setosa" "virginica"])
(defdata names (lines "names.txt" :length 6))
(defdata photos (images "photos" :size [2 2] :channels 1))
(defloader plants (rows (part flowers 0.0 0.75)) :batch 3 :shuffle true)
(defloader people (rows names) :batch 2)
(defloader pictures (rows photos) :batch 2)
(defloader all-of-them (zip [a plants b people c pictures]))
(defmetric loss ((a.length (f32 _)) (a.kind (i32 _)) b.tokens b.mask (b.length (i32 _)) (c.image (f32 _ 2 2 1)) c.label)
  (let [x (concat [(rearrange "b -> b 1" a.length)] :axis 1)
        y (linear x (length kinds) :name l)
        e (embed (param e (f32 (vocabulary names) 4) (normal 1.0)) b.tokens)]
    (measure letters (sum (cast b.mask f32)) :reduce sum)
    (measure classes (* 1.0 (vocabulary photos)))
    (+ (mean (cross-entropy y a.kind)) (+ (mean e :where (rearrange "b t -> b t 1" b.mask))
       (* (mean c.image) (mean (cast c.label f32)))))))
(defgenerator say (:prompt (encode names "bo")) :show names :trips [t 1] :carry [last (gather prompt -1)]
  (next :last last :emit last))
(defrun go :loader all-of-them :loss loss :optimizer (sgd :rate 0.1) :steps 3)
"""


def test_an_experiment_of_all_three(tmp_path: Path) -> None:
    (tmp_path / "flowers.csv").write_text("id,length,width,kind\n" + "".join(
        f"f{i},{i}.5,{i},{('setosa', 'virginica')[i % 2]}\n" for i in range(4)))  # fmt: skip
    (tmp_path / "names.txt").write_text("bo\nemma\n")
    for seed, name in enumerate(["cat", "dog"]):
        picture(tmp_path / "photos" / name / "a.png", 5, 4, seed=seed)
    with Trial(load_experiment(write_experiment(tmp_path, EXPERIMENT))) as trial:
        results = [trial.step()["go"] for _ in range(3)]
        assert all(np.isfinite(r.loss) and r.measures["letters"] == 6 and r.measures["classes"] == 2 for r in results)
        assert trial.experiment.generators["say"].show == "text:names"
        start = run_graph(trial.experiment, trial.experiment.generators["say"].start, {})
        assert len(start) == 1
