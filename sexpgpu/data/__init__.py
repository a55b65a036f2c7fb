"""Data: from a `defdata` description to the batches that a step reads.

    TextSpec | TokensSpec | ArraysSpec | TableSpec | LinesSpec | ImagesSpec
      ─open_dataset→ TokenStream | Arrays | Images ─Part→ ─Rows | Windows→ ─Loader→ batch m ─Prefetcher→ the loop
                                                       ─Streams→ ─StreamLoader→  several → ─Mixture | Zipped→

Text cut into characters, lines, tables and compressed arrays are held whole; a batch is a pure function of its number;
everything that is wrong with the data is a coded error (E-DATA-001 … 006).
"""

from sexpgpu.data.dataset import Arrays, Dataset, Images, Lines, TokenStream, open_dataset
from sexpgpu.data.loader import BatchSource, Loader
from sexpgpu.data.mixture import Mixture, StreamLoader, Zipped
from sexpgpu.data.prefetch import Prefetcher
from sexpgpu.data.spec import (
    PYTHON_TOPICS,
    ArraysSpec,
    DataSpec,
    ImagesSpec,
    LinesSpec,
    TableSpec,
    TextSpec,
    TokensSpec,
)
from sexpgpu.data.views import Part, Rows, Source, Streams, View, Windows
from sexpgpu.data.weights import StoredArray, WeightFiles, open_weights

__all__ = [
    "PYTHON_TOPICS",
    "Arrays",
    "ArraysSpec",
    "BatchSource",
    "DataSpec",
    "Dataset",
    "Images",
    "ImagesSpec",
    "Lines",
    "LinesSpec",
    "Loader",
    "Mixture",
    "Part",
    "Prefetcher",
    "Rows",
    "Source",
    "StoredArray",
    "StreamLoader",
    "Streams",
    "TableSpec",
    "TextSpec",
    "TokenStream",
    "TokensSpec",
    "View",
    "WeightFiles",
    "Windows",
    "Zipped",
    "open_dataset",
    "open_weights",
]
