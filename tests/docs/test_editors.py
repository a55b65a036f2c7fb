"""The files of editors: what can be checked of them without the editors."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sexpgpu import __version__
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.lang.toplevel import FORMS

CHECKOUT = Path(__file__).resolve().parents[2]
VSCODE = CHECKOUT / "editors" / "vscode"
GPT2 = (CHECKOUT / "examples" / "gpt2.sx").read_text("utf-8")


def read(path: Path):
    return json.loads(path.read_text("utf-8"))


def test_the_grammar_is_the_one_that_the_tables_give():
    checked = subprocess.run([sys.executable, "tools/editors.py", "--check"], cwd=CHECKOUT, check=False)
    assert checked.returncode == 0, "run python tools/editors.py"


def patterns(part):
    """Every regular expression of a grammar, with the name that it gives."""
    if isinstance(part, dict):
        for key in ("match", "begin", "end"):
            if key in part:
                yield part.get("name", ""), part[key]
        for value in part.values():
            yield from patterns(value)
    elif isinstance(part, list):
        for value in part:
            yield from patterns(value)


@pytest.fixture(scope="module")
def compiled():
    """Name and expression of every pattern of the grammar."""
    return [(name, re.compile(text)) for name, text in patterns(read(VSCODE / "syntaxes" / "sexpgpu.tmLanguage.json"))]


@pytest.mark.parametrize(
    "scope, words",
    [
        ("keyword.control.sexpgpu", EXPRESSIONS),
        ("keyword.control.definition.sexpgpu", FORMS),
        ("support.function.sexpgpu", BUILTINS),
    ],
)
def test_every_form_and_operation_is_coloured_as_a_head_and_nowhere_else(compiled, scope, words):
    (expression,) = [e for name, e in compiled if name == scope]
    for word in words:
        assert expression.search(f"({word} x)")[0] == word
        assert not expression.search(f"({word}er x)")
        assert not expression.search(f"(x {word})")


def test_gpt2_is_coloured(compiled):
    found = {name: {m[0] for m in e.finditer(GPT2)} for name, e in compiled}
    assert {"6e-4", "0.02", "50304"} <= found["constant.numeric.sexpgpu"]
    assert {":init", ":name", ":steps"} <= found["entity.other.attribute-name.sexpgpu"]
    assert {"linear", "adamw"} <= found["support.function.library.sexpgpu"]
    assert found["variable.parameter.size.sexpgpu"] == {"?t"}
    assert "bf16" in found["storage.type.sexpgpu"]


def test_the_extension_hangs_together():
    package = read(VSCODE / "package.json")
    (language,) = package["contributes"]["languages"]
    (grammar,) = package["contributes"]["grammars"]
    assert language["extensions"] == [".sx"] and grammar["language"] == language["id"]
    assert read(VSCODE / grammar["path"])["scopeName"] == grammar["scopeName"]
    assert (VSCODE / package["main"]).is_file()
    brackets = read(VSCODE / language["configuration"])
    assert brackets["brackets"] == [["(", ")"], ["[", "]"]]
    word = re.compile(brackets["wordPattern"])
    assert word.findall("(mean-over x :axis -1)") == ["mean-over", "x", "axis", "-1"]
    assert package["version"] == __version__
    assert "vscode-languageclient" in package["dependencies"]


def test_every_editor_starts_the_same_command():
    for name in ("sexpgpu-mode.el", "neovim.lua"):
        assert re.search(r'"sexpgpu",? "lsp"', (CHECKOUT / "editors" / name).read_text("utf-8"))
    assert 'args: ["lsp"]' in (VSCODE / "extension.js").read_text("utf-8")


STUBS = """
const modules = require("module"), load = modules._load;
const known = {
  vscode: { window: { showErrorMessage: console.log },
            workspace: { getConfiguration: () => ({ get: (key) => `the ${key}` }) } },
  "vscode-languageclient/node": { LanguageClient: class {
    constructor(id, name, server, client) { console.log(JSON.stringify([server, client])); }
    async start() { if (process.argv[1] === "fail") throw new Error("no such program"); }
    stop() { console.log("stopped"); }
  } },
};
modules._load = (name, ...rest) => known[name] ?? load(name, ...rest);
const extension = require("./extension.js");
extension.activate().then(() => extension.deactivate());
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.parametrize("way", ["works", "fail"])
def test_the_extension_starts_the_server_and_says_if_it_cannot(way):
    ran = subprocess.run(["node", "-e", STUBS, way], cwd=VSCODE, capture_output=True, text=True, check=True)
    first, *rest = ran.stdout.splitlines()
    assert json.loads(first) == [
        {"command": "the command", "args": ["lsp"]},
        {"documentSelector": [{"language": "sexpgpu"}]},
    ]
    told = ["`the command lsp` does not start: no such program. See the setting sexpgpu.command."]
    assert rest == (told if way == "fail" else []) + ["stopped"]
