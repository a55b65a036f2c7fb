"""Data: from a `defdata` description to the batches that a step reads.

    TextSpec | TokensSpec | ArraysSpec | TableSpec | LinesSpec | ImagesSpec
      ─open_dataset→ TokenStream | Arrays | Images
      ─Part→ ─Rows | Windows | Packed→ ─Loader→ batch m ─Prefetcher→ the loop
             ─Streams→ ─StreamLoader→  several → ─Mixture | Zipped→

Files are mapped and read where a batch needs them; tables and compressed arrays alone are held whole, as numbers. A
batch is a pure function of its number; everything that is wrong with the data is a coded error (E-DATA-001 … 009).
"""

from sexpgpu.data.dataset import Arrays, Dataset, Lines, TokenStream, open_dataset
from sexpgpu.data.images import Images
from sexpgpu.data.loader import BatchSource, Fields, Loader, View
from sexpgpu.data.mixture import Mixture, StreamLoader, Zipped
from sexpgpu.data.packed import Packed
from sexpgpu.data.prefetch import Prefetcher
from sexpgpu.data.spec import (
    PYTHON_TOPICS,
    ArraysSpec,
    By,
    DataSpec,
    ImagesSpec,
    LinesSpec,
    TableSpec,
    TextSpec,
    TiktokenSpec,
    Tokenizer,
    TokenizerSpec,
    TokensSpec,
)
from sexpgpu.data.views import Part, Rows, Source, Streams, Windows
from sexpgpu.data.weights import StoredArray, WeightFiles, open_weights

__all__ = [
    "PYTHON_TOPICS",
    "Arrays",
    "ArraysSpec",
    "BatchSource",
    "By",
    "DataSpec",
    "Dataset",
    "Fields",
    "Images",
    "ImagesSpec",
    "Lines",
    "LinesSpec",
    "Loader",
    "Mixture",
    "Packed",
    "Part",
    "Prefetcher",
    "Rows",
    "Source",
    "StoredArray",
    "StreamLoader",
    "Streams",
    "TableSpec",
    "TextSpec",
    "TiktokenSpec",
    "TokenStream",
    "Tokenizer",
    "TokenizerSpec",
    "TokensSpec",
    "View",
    "WeightFiles",
    "Windows",
    "Zipped",
    "open_dataset",
    "open_weights",
]
