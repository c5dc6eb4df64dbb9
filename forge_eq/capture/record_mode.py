"""How the recorder gets to see calls, and what it answers about tensors without data.

Takes a Recorder. Gives two modes. Promises: every operator call reaches the recorder before torch takes it apart; code
that asks a stand-in for its device is told the real one; code that asks for a value or a place in memory is refused.
Not here: what is written down (``capture.recorder``).

The dispatch mode stands on the PreDispatch key, where an op is seen whole; that slot takes three classes of mode, so
ours is one of these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from forge_eq.capture.recorder import Recorder


class DispatchMode(SchemaCheckMode):  # type: ignore[no-untyped-call]
    """Sees each operator before torch takes it apart."""

    def __init__(self, recorder: Recorder) -> None:
        TorchDispatchMode.__init__(self, _dispatch_key=torch._C.DispatchKey.PreDispatch)  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.run(func, args, kwargs or {})


_T = torch.Tensor
_DEVICES = ("cpu", "cuda", "meta", "xpu", "mps", "xla", "hpu", "mtia", "ipu", "maia", "vulkan")
_HIDDEN: dict[Any, str] = {  # questions about the device -> the kind of device that is asked for
    getattr(_T, f"is_{d}").__get__: d for d in _DEVICES if hasattr(_T, f"is_{d}")
}
_DEVICE = _T.device.__get__
# A stand-in has no data and no place: what asks for either has no honest answer.
_NO_ANSWER: dict[Any, str] = {
    **{
        getattr(_T, n): n
        for n in [
            "__array__",
            "__bool__",
            "__contains__",
            "__deepcopy__",
            "__dlpack__",
            "__dlpack_device__",
            "__float__",
            "__format__",
            "__index__",
            "__int__",
            "__complex__",
            "__reduce_ex__",
            "__repr__",
            "__setstate__",
            "__str__",
            "backward",
            "data_ptr",
            "get_device",
            "is_pinned",
            "is_set_to",
            "is_shared",
            "item",
            "numpy",
            "register_hook",
            "requires_grad_",
            "share_memory_",
            "storage",
            "tolist",
            "type",
            "untyped_storage",
        ]
        if hasattr(_T, n)
    },
    **{getattr(_T, n).__get__: n for n in ("data", "grad", "_version")},
    **{getattr(_T, n).__set__: n for n in ("data", "grad", "requires_grad")},
}


def _devices_named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The devices that a call asks for by name."""
    found: list[Any] = [a for a in args if type(a) is torch.device]
    if func is _T.to:
        found += [a for a in args if type(a) is str]
    return found if kwargs.get("device") is None else [*found, kwargs["device"]]


class FunctionMode(TorchFunctionMode):
    """Answers questions about a stand-in as the tensor that it stands for would."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        if not recorder.paused:
            if func == _DEVICE:
                return recorder.device
            if func in _HIDDEN:
                return recorder.device.type == _HIDDEN[func]
            if func in _NO_ANSWER and not (func is _T.type and len(args) > 1):  # type(dtype) is a cast
                raise recorder.refuse(f"Tensor.{_NO_ANSWER[func]} asks for a value or a place in memory")
            for device in _devices_named(func, args, kwargs or {}):
                if torch.device(device).type != recorder.device.type:
                    raise recorder.refuse(f"a value on {device}, the module is on {recorder.device}")
        return func(*args, **(kwargs or {}))
