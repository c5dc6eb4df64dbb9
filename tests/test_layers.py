"""The structure holds: import order, where egglog and op names stand, file length, stage docstrings, light import."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import forge_eq
from forge_eq.layers import LAYERS, STAGE_PACKAGES
from source_rules import import_faults, imports, module_name, op_name_faults

ROOT = Path(forge_eq.__file__).parents[1]
SOURCES = {module_name(path, ROOT): path for path in sorted((ROOT / "forge_eq").rglob("*.py"))}
SOFT_LINES, HARD_LINES = 300, 500
LONG_FILES: dict[str, str] = {}  # module -> why it may be longer than HARD_LINES


def source(module: str) -> str:
    return SOURCES[module].read_text(encoding="utf-8")


@pytest.mark.parametrize("module", SOURCES)
def test_imports_follow_the_layers(module: str) -> None:
    faults = list(import_faults(source(module), module, SOURCES[module].name == "__init__.py"))
    assert not faults, "\n".join(faults)


def test_no_op_is_named_outside_ops() -> None:
    from forge_eq.ops import REGISTRY

    assert REGISTRY
    faults = [f for module in SOURCES for f in op_name_faults(source(module), module, REGISTRY)]
    assert not faults, "\n".join(faults)


def test_layers_list_each_part_once() -> None:
    parts = [part for layer in LAYERS for part in layer]
    assert len(parts) == len(set(parts))
    assert set(STAGE_PACKAGES) <= set(parts)


def test_files_fit_a_reader() -> None:
    lengths = {module: source(module).count("\n") for module in SOURCES}
    for module, lines in lengths.items():
        if SOFT_LINES < lines <= HARD_LINES:
            warnings.warn(f"{module} has {lines} lines; above {SOFT_LINES} a file wants to be split", stacklevel=1)
    assert {m for m, lines in lengths.items() if lines > HARD_LINES} == set(LONG_FILES)


@pytest.mark.parametrize("package", STAGE_PACKAGES)
def test_stage_says_what_it_takes_gives_and_promises(package: str) -> None:
    inside = [m for m in SOURCES if m == f"forge_eq.{package}" or m.startswith(f"forge_eq.{package}.")]
    assert inside, f"{package} does not exist"
    docs = [ast.get_docstring(ast.parse(source(m))) or "" for m in inside]
    assert any(all(word in doc for word in ("Takes", "Gives", "Promises")) for doc in docs), (
        f"no module of forge_eq.{package} says Takes / Gives / Promises in its docstring"
    )


CORE_IMPORT = """
import importlib, importlib.abc, pkgutil, sys

EXTRAS = set("rich typer safetensors openvino z3 optuna highspy transformers gguf accelerate hypothesis".split())

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import forge_eq
heavy = sorted({"egglog", *EXTRAS} & set(sys.modules))
assert not heavy, f"import forge_eq loads {heavy}"
for found in pkgutil.walk_packages(forge_eq.__path__, "forge_eq."):
    if found.name.split(".")[1] not in ("cli", "report", "__main__"):
        importlib.import_module(found.name)
"""


def test_core_imports_with_torch_numpy_and_egglog_alone() -> None:
    done = subprocess.run([sys.executable, "-c", CORE_IMPORT], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------ the checks themselves can fail


@pytest.mark.parametrize(
    ("module", "code", "complaint"),
    [
        ("forge_eq.ir.graph", "from forge_eq.capture import run", "ir imports capture"),
        ("forge_eq.ir.graph", "from forge_eq import capture", "ir imports capture"),
        ("forge_eq.ir.graph", "from ..alloc.linear_scan import allocate", "ir imports alloc"),
        ("forge_eq.lower.npu", "def f():\n    import forge_eq.run.openvino", "lower imports run"),
        ("forge_eq.ops.linalg", "from forge_eq.ir.graph import Graph", "ops imports forge_eq.ir.graph"),
        ("forge_eq.rules.dsl", "def f():\n    import egglog", "only egraph imports egglog"),
        ("forge_eq.verify.smt", "import z3", "z3 is imported when the module is loaded"),
        ("forge_eq.run.openvino", "try:\n    import openvino\nexcept ImportError:\n    pass", "openvino is imported"),
        ("forge_eq.fresh", "", "in no layer"),
    ],
)
def test_wrong_imports_are_reported(module: str, code: str, complaint: str) -> None:
    assert any(complaint in fault for fault in import_faults(code, module))


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("forge_eq.alloc.checker", "from forge_eq.lower import npu\nimport numpy as np\nimport torch.nn"),
        ("forge_eq.egraph.encode", "import egglog\nfrom . import facts"),
        ("forge_eq.verify.smt", "def prove():\n    import z3"),
        ("forge_eq.verify.smt", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import z3"),
        ("forge_eq.cli", "import typer"),
    ],
)
def test_right_imports_are_not_reported(module: str, code: str) -> None:
    assert list(import_faults(code, module)) == []


def test_relative_imports_are_resolved() -> None:
    assert [f.module for f in imports("from . import b\nfrom .c import d", "p.a")] == ["p.b", "p.c.d"]
    assert [f.module for f in imports("from . import b\nfrom ..c import d", "p.a", is_package=True)] == [
        "p.a.b",
        "p.c.d",
    ]


NAMES = {"add", "split", "input"}


@pytest.mark.parametrize(
    "code",
    [
        "node.op.name == 'anything'",
        "op.name in ('add', 'x')",
        "'add' != spec.name",
        "REGISTRY['add']",
        "spec.REGISTRY.get('add')",
        "node.op.name.startswith('a')",
        "table = {'add': 1, 'split': 2}",
        "known = frozenset(['add', 'split'])",
        "match node.op.name:\n    case 'add': pass",
    ],
)
def test_op_names_are_reported(code: str) -> None:
    assert list(op_name_faults(code, "forge_eq.lower.select", NAMES))
    assert not list(op_name_faults(code, "forge_eq.ops.linalg", NAMES))


@pytest.mark.parametrize(
    "code",
    [
        "node.op.leaf == 'input'",
        "text.split('add')",
        "x = 'input'",
        "{'add': 1, 'other': 2}",
        "device.name == 'NPU'",
        "()",
    ],
)
def test_ordinary_words_are_not_reported(code: str) -> None:
    assert list(op_name_faults(code, "forge_eq.lower.select", NAMES)) == []
