"""Which of the names that the metal device uses PyObjC knows, from the metadata of its wheel; for `tests/metal`.

    pip download --no-deps --only-binary=:all: --platform macosx_11_0_arm64 --python-version 3.11 pyobjc-framework-Metal
    python tools/metal_names.py pyobjc_framework_metal-*.whl > tests/metal/pyobjc_names.json

Nothing of the wheel is executed but its table of metadata, with a recorder in the place of the bridge.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).parents[1] / "sexpgpu" / "backend" / "metal" / "driver.py"


OWN = {"self", "super()", "np", "importlib", "NEW"}
"""What has methods that are not PyObjC's."""


class Recorder(types.ModuleType):
    """Stands in for `objc`: keeps what is registered, and answers anything to the rest."""

    arch = "arm64"

    def __init__(self) -> None:
        super().__init__("objc")
        self.selectors: dict[str, Any] = {}

    def registerMetaDataForSelector(self, owner: bytes, selector: bytes, metadata: dict[str, Any]) -> None:
        self.selectors[selector.decode()] = metadata

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def names_used(text: str) -> tuple[set[str], set[str]]:
    """Methods that a module calls of others' objects, and what it names of `Metal`."""
    nodes = list(ast.walk(ast.parse(text)))
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("MTL")}
    called = [node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    methods = {
        call.attr
        for call in called
        if ast.unparse(call.value) not in OWN
    }
    return methods - named, named


def plain(value: Any) -> Any:
    """Metadata as JSON has it."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    """Print the names of the wheel that the driver uses."""
    text = zipfile.ZipFile(sys.argv[1]).read("Metal/_metadata.py").decode()
    recorder = Recorder()
    sys.modules["objc"] = recorder
    table: dict[str, Any] = {}
    exec(compile(text, "_metadata.py", "exec"), table)
    constants = dict(re.findall(r"\$?(MTL\w+)@(-?\d+)", table["enums"]))
    functions = set(table["functions"])
    methods, capitals = names_used(DRIVER.read_text())
    selectors = {name.rstrip(":").replace(":", "_") + "_" * name.endswith(":"): name for name in recorder.selectors}
    found = {name: plain(recorder.selectors[selectors[name]]) for name in sorted(methods & selectors.keys())}
    print(f'{{"wheel": {json.dumps(Path(sys.argv[1]).name)},')
    print(' "selectors": {')
    print(",\n".join(f"  {json.dumps(selectors[name])}: {json.dumps(metadata)}" for name, metadata in found.items()))
    print(" },")
    values = {name: int(constants[name]) for name in sorted(capitals & constants.keys())}
    print(f' "constants": {json.dumps(values)},')
    print(f' "functions": {json.dumps(sorted(capitals & functions))}}}')


if __name__ == "__main__":
    main()
