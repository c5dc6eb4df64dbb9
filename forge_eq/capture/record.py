"""Recording: a module's pre-dispatch ATen program without torch.export, in a tenth of its time.

Takes an nn.Module and example inputs. Gives a Graph. Promises: what the recorder is not sure of raises Refused, with
the reason, and leaves the module, its classes and the globals beside them as they were; nothing is guessed, and no data
is computed. Static sizes, no writes, no random numbers, no control flow: those are for torch.export. Not here: what to
do after a refusal (``capture.export``), comparing values with the module (``run.differential``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher

from forge_eq.capture.record_layers import Layers
from forge_eq.capture.record_mode import DispatchMode, FunctionMode
from forge_eq.capture.record_state import State
from forge_eq.capture.recorder import DENSE, Recorder, stand_in
from forge_eq.capture.tape import Call, Item, Refused
from forge_eq.capture.values import DTYPE_NAMES

_PLAIN = (int, float, bool, str, type(None))


@dataclass
class Recording:
    """What one recording found. ``leaves`` are the argument leaves: a Call for a tensor, else the value itself."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    in_spec: Any
    tensors: list[tuple[str, torch.Tensor, Call]]  # (name, data, leaf)
    constants: list[Call]
    tape: list[Item]
    results: list[tuple[str, Any]]  # ("input", leaf), ("call", Call) or ("plain", value)
    out_spec: Any
    repeats: int


def record(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, layers: bool) -> Recording:
    """Runs ``module`` once on stand-ins. ``layers``: with templates for layers that are alike.

    Raises:
        Refused: and why.
    """
    leaves, in_spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    tensors = _tensors(module)
    device = _device(module, [t for _, t in tensors], leaves)
    paths = {id(part): path for path, part in module.named_modules()}
    recorder = Recorder(device, paths)
    with torch.inference_mode(False), torch.no_grad(), contextlib.ExitStack() as undo:
        swapped = _swapped(module, recorder, undo)
        inputs = [_input(recorder, k, leaf) for k, leaf in enumerate(leaves)]
        found = Layers(module, recorder) if layers else None
        if found is not None:
            undo.callback(found.remove)
        state = State(module)
        kept = undo.enter_context(contextlib.ExitStack())
        kept.callback(_restore, state)
        stand_ins = [i[0] if isinstance(leaf, torch.Tensor) else leaf for leaf, i in zip(leaves, inputs, strict=True)]
        out = _run(module, recorder, *pytree.tree_unflatten(stand_ins, in_spec))
        changed = [name for name, _ in state.changes()]
        if changed:
            raise Refused(f"the forward pass changes {', '.join(changed[:3])}")
        kept.pop_all()  # nothing changed, and no code of the module's runs any more
        if found is not None:
            found.check()
        results, out_spec = pytree.tree_flatten(out)
        places = {id(i[0]): k for k, i in enumerate(inputs) if isinstance(leaves[k], torch.Tensor)}
        ends = [_result(recorder, places, value) for value in results]
        _untouched([*(q for _, q, _ in swapped.values()), *(s for s in stand_ins if isinstance(s, torch.Tensor))])
    named = [(name, t, swapped[id(t)][2]) for name, t in tensors]
    _name_constants(module, recorder.constants)
    return Recording(
        module,
        tuple(args),
        dict(kwargs or {}),
        [i[1] if isinstance(leaf, torch.Tensor) else leaf for leaf, i in zip(leaves, inputs, strict=True)],
        in_spec,
        named,
        recorder.constants,
        recorder.tape,
        ends,
        out_spec,
        found.repeats if found is not None else 0,
    )


def _run(module: torch.nn.Module, recorder: Recorder, args: Any, kwargs: Any) -> Any:
    recorder.root = _run.__code__
    try:
        with exporting(), FunctionMode(recorder), enable_python_dispatcher(), DispatchMode(recorder):
            out = module(*args, **kwargs)
    except Refused:
        raise
    except Exception as e:  # whatever the model and torch's kernels raise
        first = next((line.strip() for line in str(e).splitlines() if line.strip()), "")
        raise recorder.refusal or Refused(f"{type(e).__name__}: {first[:160]}") from None
    if recorder.refusal is not None:  # the model caught it
        raise recorder.refusal
    return out


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """torch's own flags for a trace: models avoid looking at values where they see them."""
    flags: Any = torch.compiler
    before = flags._is_compiling_flag, flags._is_exporting_flag
    flags._is_compiling_flag = flags._is_exporting_flag = True
    try:
        yield
    finally:
        flags._is_compiling_flag, flags._is_exporting_flag = before


def _restore(state: State) -> None:
    for _, undo in state.changes():
        undo()


# ------------------------------------------------------------------------------------ what is recorded on


def _tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """(name, tensor), each tensor once, parameters first. As torch.export has it, a tied one bears its first name and
    stands where its last stands."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, t in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
        found[id(t)] = found.pop(id(t), (name, t))
    return list(found.values())


def _device(module: torch.nn.Module, tensors: list[torch.Tensor], leaves: Sequence[Any]) -> torch.device:
    """The one device of the module and its inputs. Raises Refused on what has no stand-in."""
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule) or type(part).__module__.startswith("torch._dynamo"):
            raise Refused(f"a {type(part).__name__} inside")
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) and type(leaf) not in _PLAIN:
            raise Refused(f"an argument of class {type(leaf).__name__}")
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for t in (*tensors, *given):
        if type(t) not in DENSE:
            raise Refused(f"a tensor of class {type(t).__name__}")
        if t.layout is not torch.strided or t.dtype not in DTYPE_NAMES or t.is_conj() or t.is_neg():
            raise Refused(f"a tensor of {t.dtype} in {t.layout} layout")
    places = [t.untyped_storage()._cdata for t in given]
    if len(set(places)) < len(places) or set(places) & {t.untyped_storage()._cdata for t in tensors}:
        raise Refused("arguments that share memory with each other or with a weight")
    devices = {t.device for t in (*tensors, *given)}
    if len(devices) > 1:
        raise Refused(f"tensors on {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.get_default_device()


def _swapped(
    module: torch.nn.Module, recorder: Recorder, undo: contextlib.ExitStack
) -> dict[int, tuple[torch.Tensor, torch.Tensor, Call]]:
    """Puts a stand-in in the place of every parameter and buffer; ties stay ties. By id: (tensor, stand-in, leaf)."""
    swapped: dict[int, tuple[torch.Tensor, torch.Tensor, Call]] = {}
    for part in module.modules():
        places: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for tensors in places:
            for name, t in tensors.items():
                if t is None:
                    continue
                if id(t) not in swapped:
                    q = stand_in(t)
                    if isinstance(t, torch.nn.Parameter):
                        q = torch.nn.Parameter(q, requires_grad=t.requires_grad)
                    q.__dict__.update(t.__dict__)
                    leaf = Call(None, (), {}, q)
                    recorder.bind(q, leaf)
                    swapped[id(t)] = t, q, leaf
                undo.callback(tensors.__setitem__, name, t)
                tensors[name] = swapped[id(t)][1]
    return swapped


def _input(recorder: Recorder, index: int, leaf: Any) -> tuple[Any, Any]:
    """(stand-in, its leaf) of an argument."""
    if not isinstance(leaf, torch.Tensor):
        return leaf, leaf
    q = stand_in(leaf).requires_grad_(leaf.requires_grad)
    call = Call(None, (), {}, q)
    recorder.bind(q, call)
    return q, call


def _result(recorder: Recorder, places: dict[int, int], value: Any) -> tuple[str, Any]:
    if isinstance(value, torch.Tensor):
        if id(value) in places:
            return "input", places[id(value)]
        call = recorder.call_of(value)
        call.users.append("result")
        return "call", call
    if type(value) not in _PLAIN:
        raise Refused(f"a result of class {type(value).__name__}")
    return "plain", value


def _untouched(tensors: Sequence[torch.Tensor]) -> None:
    """Raises Refused where a write went past the recorder."""
    if any(t._version for t in tensors):
        raise Refused("something wrote into a weight or argument")


def _name_constants(module: torch.nn.Module, constants: Sequence[Call]) -> None:
    """A constant that is an attribute is called by its path."""
    names: dict[int, str] = {}
    if constants:
        for path, part in module.named_modules():
            for key, value in part.__dict__.items():
                if isinstance(value, torch.Tensor):
                    names.setdefault(id(value), f"{path}.{key}" if path else key)
    for call in constants:
        call.name = names.get(id(call.constant), call.name)
