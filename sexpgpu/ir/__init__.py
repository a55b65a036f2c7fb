"""The intermediate representation: types, graphs, operations, programs. Importing it fills the registry."""

from sexpgpu.ir import ops as ops
