"""Kernels on a real card, through the driver alone: units compiled by NVRTC, buffers, launches, event times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sexpgpu.backend.kernels.cuda import NVRTC_OPTIONS, module_source, print_step, workspace_bytes
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.ir.opdef import Array
from sexpgpu.plan.phase import Step


def check(result: tuple[Any, ...]) -> Any:
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]


class Card:
    """The first card of the machine."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.device))
        check(driver.cuCtxSetCurrent(self.context))
        attribute = driver.CUdevice_attribute
        major = check(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self.device))
        minor = check(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self.device))
        self.arch = f"sm_{major}{minor}"

    def unit(self, launches: Sequence[Launch]) -> dict[str, Any]:
        """The functions of distinct kernels by name."""
        from cuda.bindings import nvrtc

        program = check(nvrtc.nvrtcCreateProgram(module_source(launches).encode(), b"unit.cu", 0, [], []))
        options = [option.encode() for option in (*NVRTC_OPTIONS, f"--gpu-architecture={self.arch}")]
        check(nvrtc.nvrtcCompileProgram(program, len(options), options))
        cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
        module = check(self.driver.cuModuleLoadData(cubin))
        names = {launch.name for launch in launches}
        return {name: check(self.driver.cuModuleGetFunction(module, name.encode())) for name in names}

    def allocate(self, num_bytes: int) -> int:
        return int(check(self.driver.cuMemAlloc(max(16, num_bytes))))

    def free(self, pointer: int) -> None:
        check(self.driver.cuMemFree(pointer))

    def upload(self, pointer: int, array: Array) -> None:
        raw = np.ascontiguousarray(array)
        check(self.driver.cuMemcpyHtoD(pointer, raw.ctypes.data, raw.nbytes))

    def download(self, pointer: int, array: Array) -> None:
        check(self.driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))

    def launch(self, functions: dict[str, Any], launch: Launch, pointers: Sequence[int]) -> None:
        values = np.array(pointers, np.uint64)
        addresses = np.array([values.ctypes.data + 8 * i for i in range(len(values))], np.uint64)
        check(
            self.driver.cuLaunchKernel(
                functions[launch.name], *launch.grid, *launch.block, launch.shared_bytes, 0, addresses.ctypes.data, 0
            )
        )

    def wait(self) -> None:
        check(self.driver.cuCtxSynchronize())


def bound(step: Step, inputs: Sequence[int], outputs: Sequence[int], workspaces: Sequence[int], flag: int) -> list[Any]:
    """Each launch of a step with its pointers."""
    by_role = {"input": inputs, "output": outputs, "workspace": workspaces, "flag": [flag]}
    return [(launch, [by_role[role][number] for role, number in launch.operands]) for launch in print_step(step)]


def spaces(card: Card, step: Step) -> tuple[list[int], int]:
    """Workspaces of a step, and a zeroed flag record."""
    flag = card.allocate(FLAG_BYTES)
    card.upload(flag, np.zeros(FLAG_BYTES // 4, np.uint32))
    return [card.allocate(size) for size in workspace_bytes(step)], flag
