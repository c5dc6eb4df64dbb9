"""Reads the source and reports what breaks the structure. Used by ``test_layers``, which also feeds it wrong code."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from forge_eq.layers import LAYERS

# What a module may import when it is loaded, by the part it belongs to; "" stands for every part. All else is
# imported inside the function that needs it, so that the core runs with torch, numpy and egglog alone.
AT_LOAD = {"": {"forge_eq", "torch", "numpy"}, "egraph": {"egglog"}, "cli": {"typer", "rich"}, "report": {"rich"}}
OPS_MAY_IMPORT = ("forge_eq.errors", "forge_eq.ir.types", "forge_eq.ops")


@dataclass(frozen=True)
class Import:
    """One imported module: where it stands, and whether it happens when the importing module is loaded."""

    module: str
    line: int
    at_load: bool


def part_of(module: str) -> str:
    """``forge_eq.alloc.checker`` -> ``alloc``; the package itself and ``__main__`` give ``""``."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 and pieces[1] != "__main__" else ""


def module_name(path: Path, root: Path) -> str:
    pieces = path.relative_to(root).with_suffix("").parts
    return ".".join(pieces[:-1] if pieces[-1] == "__init__" else pieces)


def imports(source: str, module: str, is_package: bool = False) -> list[Import]:
    """Every import of the module, wherever it stands. ``from a import b`` counts as ``a.b``: b may be a module."""
    found: list[Import] = []

    def visit(node: ast.AST, at_load: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(alias.name, child.lineno, at_load) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    here = module.split(".") if is_package else module.split(".")[:-1]
                    here = here[: len(here) - child.level + 1]
                    base = ".".join([*here, *([base] if base else [])])
                found.extend(Import(f"{base}.{alias.name}", child.lineno, at_load) for alias in child.names)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                visit(child, at_load and not inside and not _type_checking(child))

    visit(ast.parse(source), True)
    return found


def _type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
    return name == "TYPE_CHECKING"


def import_faults(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Imports against the layer order, of egglog outside ``egraph``, or too early."""
    rank = {part: i for i, layer in enumerate(LAYERS) for part in layer}
    part = part_of(module)
    if part and part not in rank:
        yield f"{module}: {part} is in no layer; enter it in forge_eq/layers.py"
        return
    for found in imports(source, module, is_package):
        where, top = f"{module}:{found.line}", found.module.split(".")[0]
        if top == "forge_eq":
            other = part_of(found.module)
            if part and other in rank and rank[other] > rank[part]:
                yield f"{where}: {part} imports {other}, which is above it"
            if part == "ops" and not found.module.startswith(OPS_MAY_IMPORT):
                yield f"{where}: ops imports {found.module}; it may import only {', '.join(OPS_MAY_IMPORT)}"
        elif top == "egglog" and part != "egraph":
            yield f"{where}: only egraph imports egglog"
        elif found.at_load and top not in sys.stdlib_module_names and top not in AT_LOAD[""] | AT_LOAD.get(part, set()):
            yield f"{where}: {top} is imported when the module is loaded; import it in the function that needs it"


def op_name_faults(source: str, module: str, names: Collection[str]) -> Iterator[str]:
    """Places outside ``ops`` that know an operation by its name.

    Any string beside ``.op.name`` counts, and so do registry look-ups by a string. Beyond these, words such as
    "input" or "split" are ordinary English; only where an op's name is compared with a ``.name``, or where a table
    (dict keys, set, tuple, list of at least two strings) holds nothing but op names, is a name meant.
    """
    if part_of(module) == "ops":
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = [w for side in sides for w in _strings(side)]
            if words and any(_is_op_name(s) for s in sides):
                yield f"{module}:{node.lineno}: compares an op's name with {words}"
            elif set(words) & set(names) and any(isinstance(s, ast.Attribute) and s.attr == "name" for s in sides):
                yield f"{module}:{node.lineno}: compares a name with {words}"
        elif isinstance(node, ast.Match) and _is_op_name(node.subject):
            yield f"{module}:{node.lineno}: matches on an op's name"
        elif isinstance(node, ast.Subscript) and _called(node.value) == "REGISTRY" and _strings(node.slice):
            yield f"{module}:{node.lineno}: looks up {_strings(node.slice)} in the registry"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            words = [w for argument in node.args for w in _strings(argument)]
            if words and (_called(node.func.value) == "REGISTRY" or _is_op_name(node.func.value)):
                yield f"{module}:{node.lineno}: asks for an op by the text {words}"
        elif isinstance(node, ast.Dict | ast.Set | ast.Tuple | ast.List):
            parts = node.keys if isinstance(node, ast.Dict) else node.elts
            table = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            if len(table) == len(parts) >= 2 and set(table) <= set(names):
                yield f"{module}:{node.lineno}: a table of op names {table}"


def _is_op_name(node: ast.AST) -> bool:
    """``op.name`` or ``<anything>.op.name``."""
    return isinstance(node, ast.Attribute) and node.attr == "name" and _called(node.value) == "op"


def _called(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _strings(node: ast.AST) -> list[str]:
    """The string constant, or those of a tuple, set or list."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
    return [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
