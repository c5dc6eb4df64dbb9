"""Which values of a graph are the same at every call."""

from __future__ import annotations

from forge_eq.ir.graph import Graph
from forge_eq.ir.sizes import is_symbolic


def constant_nodes(graph: Graph) -> set[int]:
    """Ids of the nodes that depend on constants only. A buffer that the program writes is none, nor what is
    of a size that the call decides."""
    mutated = {w.target for w in graph.signature.write_backs}
    found: set[int] = set()
    for node in graph.nodes:
        if node.op.leaf == "constant":
            known = f"constant:{node.attrs[0]}" not in mutated
        elif node.op.leaf:
            known = node.op.leaf == "literal"
        else:
            known = node.op.pure and all(i in found for i in node.inputs) and not is_symbolic(node.attrs)
        if known:
            found.add(node.id)
    return found
