"""What the device asks of a machine, and how it refuses; the compiler's cache; cuBLASLt's and cuDNN's arguments."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sexpgpu.backend.cuda import device as devices
from sexpgpu.backend.cuda.attention import Attention, Cudnn, Tensor, attention_of, four_axes, reason_against
from sexpgpu.backend.cuda.blas import Blas, alignment
from sexpgpu.backend.cuda.device import CudaDevice, Missing, check_driver, open_cuda
from sexpgpu.backend.cuda.driver import Driver, DriverError, OutOfMemory
from sexpgpu.backend.cuda.gemm import find
from sexpgpu.backend.cuda.nvrtc import CompileError, Compiler
from sexpgpu.backend.protocol import Budget
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import make
from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.load import load_experiment
from sexpgpu.plan.layout import Layout, contiguous
from sexpgpu.plan.phase import Step
from sexpgpu.train.phases import assemble
from tests.cuda.fake import FakeDriver, toolbox

EXAMPLES = Path(__file__).parents[2] / "examples"


class Status(IntEnum):
    OK = 0
    OUT_OF_MEMORY = 2
    NO_DEVICE = 100


class Bindings:
    """The calls of `cuda.bindings.driver` that opening a device makes."""

    CUdevice_attribute = int

    def __init__(self, version: int = 13000, capability: tuple[int, int] = (9, 0), num_devices: int = 1) -> None:
        self.version, self.capability, self.num_devices = version, capability, num_devices

    def cuInit(self, flags: int) -> tuple[Status]:
        return (Status.OK if self.num_devices else Status.NO_DEVICE,)

    def cuGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return Status.OK, status.name.lower().encode()

    def cuDeviceGetCount(self) -> tuple[Status, int]:
        return Status.OK, self.num_devices

    def cuDeviceGet(self, ordinal: int) -> tuple[Status, int]:
        return Status.OK, ordinal

    def cuDriverGetVersion(self) -> tuple[Status, int]:
        return Status.OK, self.version

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Status, bytes]:
        return Status.OK, b"Tesla T4" + bytes(length - 8)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[Status, int]:
        return Status.OK, self.capability[attribute - 75]

    def cuMemAlloc(self, num_bytes: int) -> tuple[Status, int]:
        return Status.OUT_OF_MEMORY, 0

    def cuMemFree(self, address: int) -> tuple[Status]:
        return (Status.NO_DEVICE,)


@pytest.mark.parametrize(
    "bindings, what",
    [
        (Bindings(version=12080), "the NVIDIA driver is for CUDA 12.8, and 13.0 is needed"),
        (Bindings(capability=(7, 5)), "the Tesla T4 has compute capability 7.5, and 8.0 is needed"),
        (Bindings(num_devices=0), "no NVIDIA GPU can be used (cuInit failed: no_device (100))"),
    ],
)
def test_the_floor(bindings: Bindings, what: str) -> None:
    with pytest.raises(Missing) as caught:
        check_driver(bindings)
    assert caught.value.what == what
    with pytest.raises(DiagnosticError) as refused:
        open_cuda("`cpu` can be opened here", bindings)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "E-DEV-002"
    assert diagnostic.message == f"`cuda` cannot be opened: {what}"
    assert diagnostic.help and diagnostic.notes == ("`cpu` can be opened here",)


def test_a_machine_without_bindings_or_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(error: Exception) -> None:
        def refuse(bindings: Any) -> Driver:
            raise error

        monkeypatch.setattr(devices, "Driver", refuse)

    without(ImportError("no module"))
    with pytest.raises(Missing, match="`cuda-bindings` is not installed"):
        check_driver()
    without(RuntimeError("Failed to dlopen libcuda.so.1"))
    with pytest.raises(Missing, match=r"there is no NVIDIA driver \(Failed to dlopen"):
        check_driver()
    monkeypatch.setattr(devices.sys, "platform", "darwin")  # type: ignore[attr-defined]
    with pytest.raises(Missing, match="it needs Linux"):
        check_driver()


def test_statuses_become_errors() -> None:
    driver = check_driver(Bindings())
    assert driver.capability() == (9, 0) and driver.name() == "Tesla T4"
    with pytest.raises(OutOfMemory):
        driver.allocate(1)
    with pytest.raises(DriverError, match="cuMemFree failed: no_device"):
        driver.free(1)


# The compiler.


class Nvrtc:
    """NVRTC that makes an image of anything but the word `wrong`."""

    def __init__(self) -> None:
        self.num_compiled = 0
        self.text = b""

    def nvrtcVersion(self) -> tuple[int, int, int]:
        return 0, 13, 0

    def nvrtcCreateProgram(self, text: bytes, *rest: Any) -> tuple[int, bytes]:
        return 0, text

    def nvrtcCompileProgram(self, program: bytes, count: int, options: list[bytes]) -> tuple[int]:
        assert b"--fmad=false" in options and b"--gpu-architecture=sm_90" in options
        self.num_compiled += 1
        return (int(b"wrong" in program),)

    def nvrtcGetCUBINSize(self, program: bytes) -> tuple[int, int]:
        return 0, 4

    def nvrtcGetCUBIN(self, program: bytes, image: bytes) -> tuple[int]:
        ctypes.memmove(image, b"\x7fELF", 4)
        return (0,)

    def nvrtcGetProgramLogSize(self, program: bytes) -> tuple[int, int]:
        return 0, 8

    def nvrtcGetProgramLog(self, program: bytes, log: bytes) -> tuple[int]:
        ctypes.memmove(log, b"line 1!\0", 8)
        return (0,)

    def nvrtcDestroyProgram(self, program: bytes) -> tuple[int]:
        return (0,)


def test_images_are_compiled_once(tmp_path: Path) -> None:
    nvrtc = Nvrtc()
    compiler = Compiler("sm_90", tmp_path / "cubins", nvrtc)
    assert compiler.compile(["a", "b", "c"]) == [b"\x7fELF"] * 3
    assert compiler.compile(["c", "d", "a"]) == [b"\x7fELF"] * 3
    assert nvrtc.num_compiled == 4
    kept = sorted((tmp_path / "cubins").iterdir())
    assert len(kept) == 4 and all(path.suffix == ".cubin" for path in kept)
    kept[0].write_bytes(b"half an image")
    compiler.compile(["a", "b", "c", "d"])
    assert nvrtc.num_compiled == 5, "what is no image is made again"
    with pytest.raises(CompileError, match="line 1!"):
        compiler.compile(["wrong"])


def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Compiler("sm_90", tmp_path / "file" / "cubins", Nvrtc()).compile(["a"]) == [b"\x7fELF"]
    assert Compiler("sm_90", None, Nvrtc()).compile(["a"]) == [b"\x7fELF"]


# cuBLASLt.


class LtLibrary:
    """The library's C interface; `num_found` is what the heuristic gives."""

    def __init__(self, num_found: int = 1) -> None:
        self.num_found = num_found
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append((name, args))
            if name == "cublasLtMatmulAlgoGetHeuristic":
                ctypes.cast(args[-1], ctypes.POINTER(ctypes.c_int))[0] = self.num_found
            return 3 if name == "cublasLtMatmul" and args[8] is None else 0

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args in self.calls if called == name]


def test_a_product_is_prepared_once() -> None:
    library = LtLibrary()
    blas = Blas(library)
    sizes = dict(z=2, a=3, b=4, c=5)
    gemm = find("zab,zbc->zac", sizes, (12, 4, 1), (20, 5, 1), (15, 5, 1), "bf16", "f32")
    assert gemm is not None and gemm.swapped and gemm.batch == 2
    prepared = blas.prepare(gemm, (256, 16, 4))
    assert prepared is not None and blas.prepare(gemm, (256, 16, 4)) is prepared
    assert len(library.named("cublasLtMatmulAlgoGetHeuristic")) == 1
    layouts = library.named("cublasLtMatrixLayoutCreate")
    assert [(args[1], args[2].value, args[3].value, args[4].value) for args in layouts] == [
        (14, 5, 4, 5),
        (14, 4, 3, 4),
        (0, 5, 3, 5),
    ]
    assert [args[1] for args in library.named("cublasLtMatmulPreferenceSetAttribute")] == [1, 5, 6, 7, 8]
    blas.enqueue(prepared, 1, 2, 3, 4, 5)
    assert len(library.named("cublasLtMatmul")) == 1
    assert Blas(LtLibrary(num_found=0)).prepare(gemm, (256, 256, 256)) is None


def test_alignment() -> None:
    assert [alignment(address) for address in (0, 2, 48, 1 << 20)] == [256, 2, 16, 256]


# cuDNN.


def attention_node(
    dtype: str = "bf16", depth: int = 64, keys: int = 16, causal: bool = True, mask: bool = False
) -> Node:
    b = Builder()
    q = b.input("q", TensorType(dtype, (2, 3, 16, depth)))
    k, v = (b.input(name, TensorType(dtype, (2, 3, keys, depth))) for name in "kv")
    beside = [b.input("mask", TensorType("bool", (2, 3, 16, keys)))] if mask else []
    return make(b, "attention", (q, k, v, *beside), causal=causal, scale=0.125)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({}, None),
        ({"keys": 24, "causal": False}, None),
        ({"dtype": "f32"}, "f32 operands"),
        ({"depth": 20}, "head size 20"),
        ({"depth": 256}, "head size 256"),
        ({"keys": 24}, "causal with other keys"),
        ({"mask": True}, "a mask"),
    ],
)
def test_what_attention_cudnn_takes(options: dict[str, Any], reason: str | None) -> None:
    found = reason_against(attention_node(**options))
    assert (found is None) == (reason is None) and (reason or "") in (found or "")


def test_how_values_lie_for_cudnn() -> None:
    node = attention_node()
    window = Layout("arena", 128, (16 * 3 * 3 * 64, 64, 3 * 3 * 64, 1))
    odd = Layout("arena", 2, window.strides)
    reversed_rows = Layout("arena", 0, (3 * 16 * 64, 16 * 64, -64, 1))
    outputs = tuple([Layout("arena", 0, contiguous(t.shape)) for t in node.types])
    attention = attention_of(Step(node, (window, odd, reversed_rows), outputs))
    q, k, v, out, sums = attention.tensors
    assert q.strides == window.strides, "a window of a packed projection is taken as it lies"
    assert k.strides == (3 * 16 * 64, 64, 3 * 64, 1), "packed in the order that it has"
    assert sorted(v.strides) == sorted(contiguous(v.shape))
    assert (out.dtype, sums.dtype, sums.strides) == ("bf16", "f32", (48, 16, 1))
    assert four_axes(sums) == ([2, 3, 16, 1], [48, 16, 1, 1])
    assert four_axes(Tensor("bf16", (16, 64), (64, 1))) == ([1, 1, 16, 64], [1024, 1024, 64, 1])
    assert four_axes(Tensor("bf16", (2, 4, 3, 16, 64), contiguous((2, 4, 3, 16, 64)))) == (
        [8, 3, 16, 64],
        [3072, 1024, 64, 1],
    )


class CudnnModule:
    """The frontend's Python interface, recorded. refuses: it supports nothing."""

    data_type = SimpleNamespace(BFLOAT16="bf16", FLOAT="f32")
    heur_mode = SimpleNamespace(A=0, FALLBACK=1)

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.graphs: list[GraphOfCudnn] = []

    def create_handle(self) -> str:
        return "handle"

    def backend_version(self) -> int:
        return 91900

    def pygraph(self, **options: Any) -> GraphOfCudnn:
        assert options["compute_data_type"] == "f32" and options["handle"] == "handle"
        self.graphs.append(GraphOfCudnn(self.refuses))
        return self.graphs[-1]


class HandleOfCudnn:
    def __init__(self, **told: Any) -> None:
        self.told = told

    def __getattr__(self, name: str) -> Any:
        def set_(value: Any) -> HandleOfCudnn:
            self.told[name.removeprefix("set_")] = value
            return self

        return set_


class GraphOfCudnn:
    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses
        self.asked: dict[str, Any] = {}
        self.ran: Any = None

    def tensor(self, **told: Any) -> HandleOfCudnn:
        return HandleOfCudnn(**told)

    def sdpa(self, **asked: Any) -> tuple[HandleOfCudnn, HandleOfCudnn]:
        self.asked = asked
        return HandleOfCudnn(), HandleOfCudnn()

    def sdpa_backward(self, **asked: Any) -> tuple[HandleOfCudnn, ...]:
        self.asked = asked
        return HandleOfCudnn(), HandleOfCudnn(), HandleOfCudnn()

    def validate(self) -> None: ...

    def build_operation_graph(self) -> None: ...

    def create_execution_plans(self, modes: list[int]) -> None: ...

    def check_support(self) -> None:
        if self.refuses:
            raise RuntimeError("no engine\nfor this")

    def build_plans(self) -> None: ...

    def get_workspace_size(self) -> int:
        return 512

    def execute(self, pack: dict[Any, int], workspace: int, handle: str) -> None:
        self.ran = (list(pack.values()), workspace, handle)


def forward() -> Attention:
    node = attention_node()
    layouts = [Layout("arena", 0, contiguous(t.shape)) for t in (*[v.type for v in node.inputs], *node.types)]
    return attention_of(Step(node, tuple(layouts[:3]), tuple(layouts[3:])))


def test_cudnn_graphs() -> None:
    module = CudnnModule()
    cudnn = Cudnn(module)
    built = cudnn.build(forward())
    assert not isinstance(built, str) and built.workspace_bytes == 512 and cudnn.build(forward()) is built
    (graph,) = module.graphs
    assert graph.asked["use_causal_mask"] and graph.asked["attn_scale"] == 0.125 and graph.asked["generate_stats"]
    cudnn.enqueue(built, [1, 2, 3, 4, 5], 6)
    assert graph.ran == ([1, 2, 3, 4, 5], 6, "handle")
    tensors = forward().tensors
    backward = Attention(True, True, 0.125, (*tensors, tensors[3], *tensors[:3]))
    assert not isinstance(cudnn.build(backward), str)
    assert module.graphs[-1].asked["use_deterministic_algorithm"] is True


def test_a_refusal_is_the_reason() -> None:
    assert Cudnn(CudnnModule(refuses=True)).build(forward()) == "no engine for this"


def test_the_report() -> None:
    program = assemble(load_experiment(EXAMPLES / "gpt2.sx", variant="smoke")).program
    device = CudaDevice(toolbox(FakeDriver()))
    assert device.describe() == "compute_90 Paper GPU, patterns on"
    lines = device.lowering(device.plan(program, Budget()))
    assert any(line.startswith("  update.pretrain.first") and "27 products, 4 attention" in line for line in lines)
    assert any(line.split(None, 1) == ["taken", "attention-gradient × 2: cuDNN"] for line in lines)
    without = CudaDevice(toolbox(FakeDriver(), cudnn=False), "cuDNN cannot be loaded (no module)")
    lines = without.lowering(without.plan(program, Budget()))
    assert any("attention × 4: cuDNN cannot be loaded (no module)" in line for line in lines)
    assert any(line.split(None, 1) == ["taken", "layer-norm-gradient × 5: row program"] for line in lines)
    assert any(line.split(None, 1)[0] == "missed" and "gelu" in line for line in lines)
    assert any("attention runs as generated kernels" in line for line in without.details())
