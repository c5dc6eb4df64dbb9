"""A signature as JSON, both ways.

Takes a :class:`Signature` or what :func:`to_json` made of it. Gives the other. Promises: equal signatures back; Python
values are none, bool, int, float, str and tuples of these, anything else is refused; pytree specs are torch's own text
(``treespec_dumps``), which holds names of registered types and no code.
"""

from __future__ import annotations

from typing import Any

import torch.utils._pytree as pytree

from forge_eq.errors import FileError
from forge_eq.ir.graph import Signature, WriteBack


def to_json(signature: Signature) -> dict[str, Any]:
    """Raises FileError for a value or a container that only this process knows."""
    return {
        "inputs": list(signature.inputs),
        "in_spec": _spec(signature.in_spec),
        "out_spec": _spec(signature.out_spec),
        "outputs": [[kind, _value(v)] for kind, v in signature.outputs],
        "write_backs": [[w.output, w.target] for w in signature.write_backs],
        "baked": [[position, _value(v)] for position, v in signature.baked],
        "ranges": [list(r) for r in signature.ranges],
        "guards": list(signature.guards),
    }


def from_json(found: dict[str, Any]) -> Signature:
    """Raises ValueError, KeyError or TypeError when ``found`` is nothing that :func:`to_json` made."""
    return Signature(
        inputs=tuple(found["inputs"]),
        in_spec=_read_spec(found["in_spec"]),
        out_spec=_read_spec(found["out_spec"]),
        outputs=tuple((kind, _read_value(v)) for kind, v in found["outputs"]),
        write_backs=tuple(WriteBack(output, target) for output, target in found["write_backs"]),
        baked=tuple((position, _read_value(v)) for position, v in found["baked"]),
        ranges=tuple((symbol, low, high) for symbol, low, high in found["ranges"]),
        guards=tuple(found.get("guards", ())),  # files of earlier versions have none
    )


def _spec(spec: Any) -> str | None:
    if spec is None:
        return None
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError) as e:
        raise FileError(
            "save",
            "signature",
            f"the structure of arguments or results has no text form: {e}",
            "use tuples, lists and dicts, or register the container with a serialized_type_name",
        ) from e


def _read_spec(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return pytree.treespec_loads(text)
    except (NotImplementedError, KeyError) as e:
        raise FileError(
            "load",
            "signature",
            f"a container of the arguments or results is not registered here: {e}",
            "import the library that registers it with torch's pytree before loading",
        ) from e


def _value(value: Any) -> Any:
    """JSON with a tag where JSON would forget the kind."""
    if isinstance(value, tuple):
        return {"tuple": [_value(v) for v in value]}
    if type(value) is float:
        return {"float": repr(value)}
    if value is None or type(value) in (bool, int, str):
        return value
    raise FileError(
        "save",
        "signature",
        f"the program keeps a Python value of type {type(value).__name__}: {value!r:.60}",
        "pass and return tensors, numbers and strings",
    )


def _read_value(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else tuple(_read_value(v) for v in value["tuple"])
    return value
