"""From an exported ATen graph to the vocabulary, call by call.

Takes the fx graph of an exported program and the values of its placeholders. Gives nodes in a
:class:`~forge_eq.ir.graph.Builder`. Promises: every call becomes a node: of the vocabulary when ``ops``
has an adapter that accepts it and the inferred type is the captured one, else an opaque node with its exact
target and arguments; effects keep their order. Only two things leave no node, and each is noted: an
assertion about metadata that the captured types already settle, and the frame of a grad-mode block (its
calls are imported). Not here: inputs and outputs of the program (``capture.export``).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from forge_eq.capture import targets
from forge_eq.capture.tape import Call
from forge_eq.capture.template import ModuleRef, encode
from forge_eq.capture.values import DTYPE_NAMES, innermost, parts_read, refuse, type_of
from forge_eq.errors import ShapeError
from forge_eq.ir.graph import NOWHERE, Builder, Origin
from forge_eq.ir.sizes import evaluate
from forge_eq.ir.types import Sym, TupleType, Type
from forge_eq.ops import ATEN
from forge_eq.ops.aten import Ref, Unsupported
from forge_eq.ops.effects import opaque, opaque_effect
from forge_eq.ops.elementwise import cast
from forge_eq.ops.leaves import constant
from forge_eq.ops.movement import alias, clone, device_move, project
from forge_eq.ops.spec import Op

# Adapters refuse by Unsupported; the others mean that a call has a form its adapter does not know.
_DENSE = str(torch.ops.aten.contiguous.default)
_REFUSALS = (Unsupported, ShapeError, TypeError, ValueError, ZeroDivisionError, KeyError)


class GraphImporter:
    """Appends the calls of one fx graph (and of the blocks inlined into it) to ``builder``.

    It is the ``Importer`` that the adapters of ``ops.aten`` speak to.
    """

    def __init__(self, builder: Builder, constants: Any) -> None:
        self.builder, self.constants = builder, constants
        self.values: dict[FxNode | Call, Any] = {}  # fx node or recorded call -> Ref, ModuleRef or a Python constant
        self.submodules: dict[str, Any] = {}
        self.settled: dict[str, int] = {}  # target of a settled assertion or a dissolved block -> how often
        self.out: Any = None
        self.parts: frozenset[int] = frozenset()
        self.numbers: dict[int, float] = {}  # node of a tensor without axes that the program writes down -> its value
        self.symbols: dict[str, int] = {}  # of the arguments' sizes -> any size
        self.token = 0
        self._origin = NOWHERE
        self._origins: dict[tuple[str, str], Origin] = {}

    # ------------------------------------------------------------------------------ what adapters use

    def emit(self, op: Op, inputs: Sequence[Ref], attrs: Sequence[Any] = ()) -> Ref:
        return Ref(self.builder.add(op, tuple([r.id for r in inputs]), tuple(attrs), None, self._origin))

    def type(self, ref: Ref) -> Type:
        return self.builder.nodes[ref.id].type

    def dtype(self, torch_dtype: Any) -> str:
        return DTYPE_NAMES[torch_dtype]

    def sized(self, symbol: Sym) -> bool:
        return evaluate(symbol.name, self.symbols) is not None

    def number(self, ref: Ref) -> float | None:
        node = self.builder.nodes[ref.id]
        while node.op in (device_move, alias, clone):
            node = self.builder.nodes[node.inputs[0]]
        return self.numbers.get(node.id)

    # ------------------------------------------------------------------------------ the walk

    def run(self, module: GraphModule, prefix: str = "") -> Any:
        """Imports the calls of ``module`` (its placeholders are in ``values``); gives what it returns."""
        result: Any = None
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.values[node] = self.call(node, prefix)
            elif node.op == "get_attr":
                self.values[node] = self.attribute(module, node, prefix)
            elif node.op == "output":
                result = self.operand(node.args[0])
            elif node.op != "placeholder":
                raise refuse(node, f"a node of kind {node.op}")
        return result

    def operand(self, value: Any) -> Any:
        """An fx argument with graph values as Ref; everything else as it is."""
        kind = type(value)
        if kind is FxNode or kind is Call:
            return self.values[value]
        if isinstance(value, list):
            return [self.operand(v) for v in value]
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            return tuple([self.operand(v) for v in value])
        if isinstance(value, dict):
            return {k: self.operand(v) for k, v in value.items()}
        if kind is slice:
            return slice(*(self.operand(v) for v in (value.start, value.stop, value.step)))
        return value

    def call(self, node: FxNode | Call, prefix: str) -> Any:
        self._origin = self.origin(node.meta)
        target, args = node.target, tuple([self.operand(a) for a in node.args])
        kwargs = {k: self.operand(v) for k, v in node.kwargs.items()} if node.kwargs else {}
        if target is operator.getitem and isinstance(args[0], Ref | list | tuple):
            if not isinstance(args[0], Ref):
                return args[0][args[1]]  # a part of what an inlined block returned
            whole = self.type(args[0])
            if isinstance(whole, TupleType) and type(args[1]) is int:
                return self.emit(project, [args[0]], [args[1] % len(whole.items)])
        if isinstance(target, HigherOrderOperator):
            block = _dissolvable(targets.block_name(target), args)
            if block is not None:
                return self.inline(node, *block)
        try:
            self.out = type_of(node.meta.get("val"))
        except Unsupported as e:
            raise refuse(node, f"{node.target} gives {e}") from None
        self.parts = parts_read(node) if isinstance(self.out, TupleType) else frozenset()
        known = _lookup(target)
        if known is not None:
            found = self.adapted(node, known, args, kwargs)
            if found is not None:
                return found
        return self.opaque(node, args, kwargs)

    def adapted(self, node: FxNode | Call, known: tuple[Op, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in the vocabulary (a tuple: part by part), or None when it does not say what the call says."""
        op, adapter = known
        mark = len(self.builder.nodes)
        try:
            if op is cast or op is device_move:
                _same_device(node)
            found = adapter(self, op, *args, **kwargs) if adapter else self.positional(node.target, op, args, kwargs)
            if isinstance(found, tuple):
                items = self.out.items if isinstance(self.out, TupleType) else ()
                if len(found) == len(items) and all(
                    i not in self.parts if f is None else self.type(f) == t
                    for i, (f, t) in enumerate(zip(found, items, strict=True))
                ):
                    return found
            elif self.type(found) == self.out:
                return found
        except _REFUSALS:
            pass
        del self.builder.nodes[mark:]
        return None

    def positional(self, target: Any, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
        """The default adapter: tensors first, then the attributes; what is left must have its default."""
        named = list(targets.bound(target, args, kwargs).items())
        count = len(op.inputs)
        inputs, attrs, rest = named[:count], named[count : count + len(op.attrs)], named[count + len(op.attrs) :]
        if not all(isinstance(v, Ref) for _, v in inputs) or len(attrs) < len(op.attrs):
            raise Unsupported("operands that do not fit the signature")
        defaults = targets.bound(target, (), {})
        if any(type(v) is not type(defaults[n]) or v != defaults[n] for n, v in rest):
            raise Unsupported("an argument that the op does not have")
        return self.emit(op, [v for _, v in inputs], [_attribute(v) for _, v in attrs])

    def opaque(self, node: FxNode | Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call as it is. A settled assertion about metadata is noted instead."""
        target: Any = node.target
        if target is torch.ops.aten._assert_tensor_metadata.default and _settled(node):
            self.note(str(target))
            return None
        if targets.writes(target, args, kwargs):
            raise refuse(node, f"{target} writes into its operand in a way that could not be made functional")
        try:
            name = targets.stride_free(targets.target_name(target))
            if targets.depends_on_storage(name):
                args = self.stored(node, args)
            text, operands = encode(args, kwargs)
        except (Unsupported, ValueError) as e:
            raise refuse(node, str(e)) from None
        ids = tuple([r.id for r in operands])
        effect = targets.has_effect(target, args, kwargs) or any(
            _submodule_effect(self.submodules[m.name]) for m in _modules(args, kwargs)
        )
        if not effect:
            return Ref(self.builder.add(opaque, ids, (name, text), self.out, self._origin))
        self.token += 1
        return Ref(self.builder.add(opaque_effect, ids, (name, text, self.token - 1), self.out, self._origin))

    def stored(self, node: FxNode | Call, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operand stored densely by an explicit call, where that is how the capture saw it."""
        value = node.args[0].meta.get("val") if isinstance(node.args[0], FxNode | Call) else None
        if not isinstance(value, torch.Tensor) or not value.is_contiguous() or value.storage_offset() != 0:
            raise Unsupported(f"{node.target} of a value that is a view: it depends on how the value is stored")
        text, operands = encode((args[0],), {})
        dense = self.builder.add(
            opaque, tuple(r.id for r in operands), (_DENSE, text), self.type(args[0]), self._origin
        )
        return (Ref(dense), *args[1:])

    # ------------------------------------------------------------------------------ submodules and constants

    def attribute(self, module: GraphModule, node: FxNode, prefix: str) -> Any:
        """A ``get_attr``: a submodule for a higher-order call, or a tensor that only this graph holds."""
        found = operator.attrgetter(str(node.target))(module)
        name = f"{prefix}{node.target}"
        if isinstance(found, torch.Tensor):
            return self.constant(name, found)
        if isinstance(found, torch.nn.Module):
            self.submodules[name] = found
            return ModuleRef(name)
        raise refuse(node, f"an attribute of type {type(found).__name__}")

    def constant(self, name: str, value: torch.Tensor) -> Ref:
        """The one node of this tensor: tied and shared weights meet here."""
        name, known = self.constants.enter(name, value)
        if known is None:
            known = self.builder.add(constant, (), (name,), type_of(value), Origin(module=name.rpartition(".")[0]))
            self.constants.nodes[name] = known
        return Ref(known)

    def inline(self, node: FxNode | Call, block: ModuleRef, args: tuple[Any, ...]) -> Any:
        """The calls of a block whose frame means nothing when no gradient is taken."""
        module = self.submodules.pop(block.name)
        places = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.values.update(zip(places, args, strict=True))
        self.note(targets.target_name(node.target))
        return self.run(module, f"{block.name}.")

    # ------------------------------------------------------------------------------ origins and notes

    def note(self, target: str) -> None:
        self.settled[target] = self.settled.get(target, 0) + 1

    def origin(self, meta: dict[str, Any]) -> Origin:
        recorded: Origin | None = meta.get("origin")
        if recorded is not None:
            return recorded
        trace = meta.get("stack_trace") or ""
        stack = meta.get("nn_module_stack")
        path = next(reversed(stack.values()))[0] if stack else ""
        key = (trace, path)
        found = self._origins.get(key)
        if found is None:
            found = self._origins[key] = Origin(innermost(trace), path)
        return found


def _lookup(target: Any) -> tuple[Op, Any] | None:
    return ATEN.get(_overload_name(target)) if isinstance(target, OpOverload) else None


@lru_cache(maxsize=4096)
def _overload_name(target: OpOverload) -> str:
    return str(target)


def _attribute(value: Any) -> Any:
    if isinstance(value, Ref) or (isinstance(value, list | tuple) and any(isinstance(v, Ref) for v in value)):
        raise Unsupported("a computed attribute")
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    return tuple(value) if isinstance(value, list) else value


def _same_device(node: FxNode | Call) -> None:
    source: Any = node.args[0]
    before, after = source.meta["val"], node.meta["val"]
    if before.device != after.device:
        raise Unsupported("a move to another device")


def _settled(node: FxNode | Call) -> bool:
    """Whether the captured type alone decides an ``_assert_tensor_metadata``, and decides that it holds."""
    value = node.args[0].meta.get("val") if isinstance(node.args[0], FxNode | Call) else None
    if not isinstance(value, torch.Tensor):
        return False
    named = targets.bound(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    if named["size"] is not None or named["stride"] is not None:
        return False
    return all(named[k] is None or named[k] == getattr(value, k) for k in ("dtype", "device", "layout"))


def _dissolvable(name: str, args: tuple[Any, ...]) -> tuple[ModuleRef, tuple[Any, ...]] | None:
    """(block, operands) of a grad-mode block, or of an autocast block that switches autocast off."""
    if name == "wrap_with_set_grad_enabled" and isinstance(args[1], ModuleRef):
        return args[1], args[2:]
    if name == "wrap_with_autocast" and args[2] is False and isinstance(args[4], ModuleRef):
        return args[4], args[5:]
    return None


def _modules(args: Any, kwargs: Any) -> list[ModuleRef]:
    found: list[ModuleRef] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, ModuleRef):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _modules(value, {})
    return found


def _submodule_effect(module: Any) -> bool:
    """Whether a call anywhere inside has an effect."""
    if not isinstance(module, GraphModule):
        return True
    return any(
        targets.has_effect(n.target, n.args, n.kwargs)
        for part in module.modules()
        if isinstance(part, GraphModule)
        for n in part.graph.nodes
        if n.op == "call_function"
    )
