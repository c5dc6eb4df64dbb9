"""The recorder: every ATen call of a forward pass on tensors without data, as it stands before decomposition.

Takes stand-ins on the meta device for a module's tensors and inputs. Gives a tape. Promises: a value is written down
only when it is known which call or leaf made it, and a call only when it is a pure function of its operands; all else
raises Refused. Ops run with the Python dispatcher off, in torch's C++ kernels for the meta device. Not here: how calls
reach it (``capture.record_mode``), which module is run how (``capture.record``), layers (``capture.record_layers``).
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from forge_eq.capture import targets
from forge_eq.capture.record_facts import Facts, facts_of, is_mask
from forge_eq.capture.tape import Call, Item, Refused, inputs_of
from forge_eq.ir.graph import NOWHERE, Origin

META = torch.device("meta")
DENSE = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DETACH = torch.ops.aten.detach_.default  # changes nothing where no gradient is taken
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_TORCH_HOME = torch.__file__.rpartition("/")[0]
_OWN_HOME = __file__.rpartition("/")[0]
_MODULE_CALL = torch.nn.Module._call_impl.__code__


class Recorder:
    """Writes the tape. ``device`` is where the module really is."""

    def __init__(self, device: torch.device, paths: dict[int, str]) -> None:
        self.device, self.paths = device, paths
        self.tape: list[Item] = []
        self.refusal: Refused | None = None  # also when the user's code caught it
        self.paused = False
        self.root: Any = None  # code of the function that calls the module
        self._calls: dict[int, Call] = {}  # id of a tensor -> what made it
        self._alive: list[Any] = []  # so that no id is used twice
        self._made: dict[int, tuple[Call, torch.Tensor]] = {}  # storage of a factory's result
        self._origins: dict[tuple[str, str], Origin] = {}
        self._results: dict[Any, torch.Tensor] = {}  # of calls of this form, see :meth:`execute`
        self.constants: list[Call] = []

    def refuse(self, reason: str) -> Refused:
        if self.refusal is None:
            self.refusal = Refused(reason)
        return self.refusal

    # ------------------------------------------------------------------------------ which call made a tensor

    def bind(self, value: torch.Tensor, call: Call) -> None:
        self._calls[id(value)] = call
        self._alive.append(value)

    def call_of(self, value: torch.Tensor) -> Call:
        """What made the tensor; a tensor with data that the program found somewhere is a constant."""
        found = self._calls.get(id(value))
        if found is not None:
            return found
        if type(value) not in DENSE:
            raise self.refuse(f"a tensor of class {type(value).__name__}")
        with torch._C.DisableTorchFunction():
            if not value.is_meta:
                return self.constant(value)
            made = self._made.get(value.untyped_storage()._cdata)  # C++ wraps what a factory returns once more
        if made is None or geometry(made[1]) != geometry(value):
            raise self.refuse("a tensor that no recorded call made")
        self.bind(value, made[0])
        return made[0]

    def constant(self, value: torch.Tensor) -> Call:
        if value.device != self.device or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise self.refuse(f"a constant on {value.device} in {value.layout} layout")
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise self.refuse("a tensor inside a function transform")
        call = Call(None, (), {}, self.fresh(value), name=f"lifted_tensor_{len(self.constants)}")
        call.constant = value
        self.constants.append(call)
        self.bind(value, call)
        self._alive.append(call)
        return call

    # ------------------------------------------------------------------------------ one call

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call and gives its result on the meta device."""
        if self.paused:
            return _execute(func, args, kwargs)
        if func is _DETACH:
            return args[0]
        facts = facts_of(func)
        if facts.refusal:
            raise self.refuse(f"{func}: {facts.refusal}")
        if torch._C._is_any_autocast_enabled():
            raise self.refuse("autocast is on, which changes the calls below the recorder")
        if func in _LIFTS:
            return self.lift(args[0])
        if func is torch.ops.aten.index.Tensor and any(is_mask(i) for i in args[1]):
            raise self.refuse(f"{func}: a mask as an index, the result's size depends on values")
        written = self.written(args), {k: self.written(v) for k, v in kwargs.items()}
        if targets.has_effect(func, *written):
            raise self.refuse(f"{func} draws random numbers, checks or writes something")
        arguments = tuple([self.runnable(a) for a in args])
        named = {k: self.runnable(v) for k, v in kwargs.items()} if kwargs else {}
        if facts.takes_device and "device" not in named and facts.factory:
            named["device"] = META
        out = self.execute(func, arguments, named)
        self.record(func, written[0], written[1], out, facts)
        return out

    def execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call's result; where a call of the same form gave a new tensor before, one like that.

        Layers of a model are alike, and many of torch's kernels for tensors without data are written in Python.
        """
        try:
            form = func, _form(args), _form(tuple(kwargs.items())), torch.get_default_dtype()
            known = self._results.get(form)
        except TypeError:  # an argument that is no key
            return _execute(func, args, kwargs)
        if known is not None:
            return self.fresh(known)
        out = _execute(func, args, kwargs)
        if isinstance(out, torch.Tensor) and _is_new(out, (*args, *kwargs.values())):
            self._results[form] = out
        return out

    def record(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, facts: Facts) -> None:
        call = self.append(Call(func, args, kwargs, out, self.origin(), func._opname))
        if isinstance(out, torch.Tensor):
            self.result(out, call, facts.rewrapped)
            return
        for index, part in enumerate(out):
            if isinstance(part, torch.Tensor):
                self.result(
                    part, self.append(Call(operator.getitem, (call, index), {}, part, call.meta["origin"])), False
                )

    def result(self, out: torch.Tensor, call: Call, rewrapped: bool) -> None:
        if not out.is_meta:
            raise self.refuse(f"{call.target} computed on {out.device}")
        self.bind(out, call)
        if rewrapped:
            self._made[out.untyped_storage()._cdata] = call, out

    def append(self, call: Call) -> Call:
        self.tape.append(call)
        for used in inputs_of(call):
            used.users.append(call)
        return call

    def fresh(self, value: torch.Tensor) -> torch.Tensor:
        """A stand-in that is made during the recording and is no part of it."""
        with self.pause():
            return stand_in(value)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Calls in here are run as they are and not written down."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def lift(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor made from Python numbers becomes a constant."""
        if id(value) not in self._calls and value.is_meta and self.device.type != "meta":
            raise self.refuse("a tensor made from numbers lost them")
        call = self._calls.get(id(value)) or self.constant(value)
        found: torch.Tensor = call.meta["val"]
        self.bind(found, call)
        return found

    # ------------------------------------------------------------------------------ arguments

    def written(self, value: Any) -> Any:
        """An argument for the tape: tensors as calls, the stand-ins' device as the real one."""
        if isinstance(value, torch.Tensor):
            return self.call_of(value)
        kind = type(value)
        if kind is list:
            return [self.written(v) for v in value]
        if kind is tuple:
            return tuple([self.written(v) for v in value])
        if kind is torch.device:
            if value.type not in (self.device.type, "meta"):
                raise self.refuse(f"a value on {value}, the module is on {self.device}")
            return self.device if value.type == "meta" else value
        return value

    def runnable(self, value: Any) -> Any:
        """An argument for the kernel: everything on the meta device."""
        if isinstance(value, torch.Tensor):
            return value if value.is_meta else self.call_of(value).meta["val"]
        kind = type(value)
        if kind is list or kind is tuple:
            return kind(self.runnable(v) for v in value)
        return META if kind is torch.device else value

    def origin(self) -> Origin:
        """The innermost line of the module's code outside torch, and the innermost module that is being called."""
        source, module, frame = "", "", sys._getframe(3)
        while frame is not None and not (source and module):
            code = frame.f_code
            if code is self.root:  # who asked for the recording is no part of the program
                break
            if code is _MODULE_CALL:
                module = module or self.paths.get(id(frame.f_locals["self"]), "")
            elif not source and not code.co_filename.startswith((_TORCH_HOME, _OWN_HOME)):
                source = f"{code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return self.place(source, module)

    def place(self, source: str, module: str) -> Origin:
        if not source and not module:
            return NOWHERE
        return self._origins.setdefault((source, module), Origin(source, module))


def geometry(value: torch.Tensor) -> tuple[Any, ...]:
    """What two views of one storage must share to be one value."""
    return tuple(value.shape), value.dtype, value.stride(), value.storage_offset()


def _form(value: Any) -> Any:
    """What a result's type depends on: of tensors their types and strides, of anything else its value."""
    if isinstance(value, torch.Tensor):
        return geometry(value), value.is_conj(), value.is_neg()
    if isinstance(value, tuple | list):
        return type(value), tuple([_form(v) for v in value])
    return type(value), value


def _is_new(out: torch.Tensor, operands: tuple[Any, ...]) -> bool:
    """Whether a result is all of its storage, and none of its operands'."""
    if out.storage_offset() or out.untyped_storage().nbytes() != stand_in(out).untyped_storage().nbytes():
        return False
    place, tensors = out.untyped_storage()._cdata, list(operands)
    while tensors:
        value = tensors.pop()
        if isinstance(value, tuple | list):
            tensors += value
        elif isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == place:
            return False
    return True


def stand_in(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same type and strides without data."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)


def _execute(func: Any, args: Any, kwargs: Any) -> Any:
    guard = torch._C._DisablePythonDispatcher()
    try:
        return func(*args, **kwargs)
    finally:
        del guard
