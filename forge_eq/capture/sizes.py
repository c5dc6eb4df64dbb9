"""What a captured program assumes about the sizes of its arguments.

Takes an exported program with dynamic sizes. Gives conditions over the symbols in the types of its inputs,
as Python text such as ``s0 % 2 == 0``. Promises: a condition that names no symbol of the inputs is counted, not lost.
Not here: what the text means (``ir.sizes``), lower and upper bounds of single symbols (``Signature.ranges``).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch.utils._pytree as pytree
from torch.export import ExportedProgram


def conditions(program: ExportedProgram, leaves: Sequence[Any], names: Sequence[str]) -> tuple[list[str], int]:
    """(conditions over the inputs' symbols, how many of the program's conditions could not be read).

    ``leaves`` are the captured values of the argument leaves; ``names`` stand for those that are numbers.
    """
    texts = getattr(program, "_guards_code", None) or []
    found: dict[str, None] = {}
    lost = 0
    arguments = _arguments(program) if texts else {}
    for text in texts:
        try:
            tree = _Symbols(arguments, leaves, names).visit(ast.parse(text, mode="eval"))
            found[ast.unparse(tree)] = None
        except (SyntaxError, LookupError, TypeError, AttributeError):
            lost += 1
    return list(found), lost


def _arguments(program: ExportedProgram) -> dict[str, Any]:
    """The arguments by name, each a tree of leaf numbers."""
    signature = program.module_call_graph[0].signature
    spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    names = list(getattr(signature, "forward_arg_names", None) or [])
    return {**dict(zip(names, args, strict=False)), **kwargs}


class _Symbols(ast.NodeTransformer):
    """Writes the symbol for ``L['x'][0].size()[1]``. Raises LookupError where there is none."""

    def __init__(self, arguments: Mapping[str, Any], leaves: Sequence[Any], names: Sequence[str]) -> None:
        self.arguments, self.leaves, self.names = arguments, leaves, names

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        called = node.value
        if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr == "size":
            leaf = self.leaves[self.place(called.func.value)]
            return ast.parse(str(leaf.shape[ast.literal_eval(node.slice)]), mode="eval").body
        return ast.Name(self.names[self.place(node)])

    def place(self, node: ast.expr) -> Any:
        """What ``L[..][..]`` names: a leaf number, or a part of an argument on the way to one."""
        if not isinstance(node, ast.Subscript):
            raise LookupError(ast.dump(node))
        key = ast.literal_eval(node.slice)
        if isinstance(node.value, ast.Name):
            return self.arguments[key]
        if isinstance(node.value, ast.Subscript) and isinstance(node.value.value, ast.Name):
            name = ast.literal_eval(node.value.slice)
            if name not in self.arguments:  # *args are named one by one
                return self.arguments[f"{name}_{key}"]
        return self.place(node.value)[key]
