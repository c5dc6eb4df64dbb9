"""Memory that changes hands at a call: arguments come in, results go out, neither is copied.

Takes the memory of a program. Gives :class:`Input` and :class:`Output`. Promises: an argument is read where it lies if
it is dense, aligned and apart from what is written, else in a copy, and is not held after the call; a result lies in
memory that nobody else sees: memory is used again only when nobody holds it, neither tensor nor view nor storage.
Not here: when (``run.executor``), registers that are seen through others (``run.arena``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from forge_eq.errors import InputError
from forge_eq.ir.types import ScalarType, TensorType
from forge_eq.run.arena import Memory
from forge_eq.run.values import TORCH_DTYPES, fits

Extent = tuple[int, int]  # first address, one past the last

ALIGNMENT = 16  # bytes; numpy promises no more, and its arrays are what OpenVINO is mostly given
KEPT = 2  # results in memory: a caller that keeps the last one while it asks for the next needs two in turn

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may mean something else by its elements


def extent(value: torch.Tensor) -> Extent:
    """The bytes of a tensor's storage."""
    storage = value.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()


class Input:
    """An argument: checked, and bound for one call."""

    def __init__(self, memory: Memory, index: int) -> None:
        self.memory, self.index = memory, index
        self.register = memory.program.inputs[index]
        self.type = memory.program.vregs[self.register].type
        self.held = self.register in memory.outside  # else it has no elements
        self.state = self.register in memory.program.state
        self.copy: torch.Tensor | None = None  # made at the first argument that cannot be read where it lies
        self.dtype: torch.dtype | None = None
        self.shape: tuple[int, ...] = ()
        if isinstance(self.type, TensorType):
            self.dtype, self.shape = TORCH_DTYPES[self.type.dtype], tuple(int(str(d)) for d in self.type.shape)

    def take(self, value: Any, written: Sequence[Extent] = ()) -> None:
        """Binds the value; ``written`` is memory that the program writes while it reads this argument.

        Raises InputError when the value has not the type of the input.
        """
        if type(value) not in _PLAIN or value.dtype is not self.dtype or value.shape != self.shape:
            self._other(value)
            return
        if not self.held:
            return
        if self.state:
            value = value.contiguous()
        elif not _readable(value) or (written and _meets(extent(value), written)):
            value = self._copied(value)
        self.memory.bind(self.register, value)

    def _other(self, value: Any) -> None:
        """What is no plain tensor of the right type: a host number, a subclass, or wrong."""
        number = isinstance(self.type, ScalarType) and not isinstance(value, torch.Tensor)
        if not number and not fits(self.type, value):
            shown = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise InputError(
                "run", f"input {self.index}", f"{shown} where {self.type} is due", "pass a tensor of that type"
            )
        if number:
            self.memory.values[self.register] = value
        elif self.held:
            self.memory.bind(self.register, value.contiguous() if self.state else self._copied(value))

    def _copied(self, value: torch.Tensor) -> torch.Tensor:
        if self.copy is None:
            self.copy = _fresh(self.shape, value.dtype)
        self.copy.copy_(value)
        return self.copy


def _readable(value: torch.Tensor) -> bool:
    """Whether the bytes are the elements in order, at an address that kernels like."""
    return (
        value.layout is torch.strided
        and value.is_contiguous()
        and value.is_cpu
        and not value.data_ptr() % ALIGNMENT
        and not value.is_neg()
        and not value.is_conj()
    )


def _meets(one: Extent, others: Sequence[Extent]) -> bool:
    return any(one[0] < stop and start < one[1] for start, stop in others)


def _fresh(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Memory of an ordinary tensor, also where the caller is in inference mode: a later caller may not be."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=dtype, device="cpu")


class Output:
    """A result that the program makes to be returned: ``root`` is bound to memory before the run."""

    def __init__(self, memory: Memory, register: int) -> None:
        self.memory, self.root = memory, memory.program.root(register)
        made, shown = memory.program.vregs[self.root].type, memory.program.vregs[register].type
        assert isinstance(made, TensorType)
        assert isinstance(shown, TensorType)
        self.dtype = TORCH_DTYPES[made.dtype]
        self.shape, self.shown = (tuple(int(str(d)) for d in t.shape) for t in (made, shown))
        self.pool: list[_Buffer] = []

    def offer(self) -> None:
        """Binds memory that nobody holds."""
        for buffer in self.pool:
            if buffer.unheld():
                break
        else:
            buffer = _Buffer(self.shape, self.shown, self.dtype)
            self.pool = [*self.pool[1 - KEPT :], buffer]
        self.buffer = buffer
        self.memory.bind(self.root, buffer.tensor)

    def result(self) -> torch.Tensor:
        """The caller's own tensor over the memory that was offered last."""
        return self.buffer.shown.detach()


class _Buffer:
    """A piece of memory, as the program writes it and as the caller is shown it, and how to see that nobody has it.

    Tensors and views hold the storage object of C++, which counts them; whoever holds Python's storage object instead
    does not show there, but in that object's own count.
    """

    def __init__(self, shape: tuple[int, ...], shown: tuple[int, ...], dtype: torch.dtype) -> None:
        self.tensor = self.shown = _fresh(shape, dtype)
        self.storage = self.tensor.untyped_storage()
        if shown != shape:  # by set_, for a view would tell its caller so
            with torch.inference_mode(False):
                steps = self.tensor.view(shown).stride()
                self.shown = torch.empty(0, dtype=dtype, device="cpu").set_(self.storage, 0, shown, steps)
        self.address = self.tensor.data_ptr()
        self.alone = self._holders()

    def _holders(self) -> tuple[int, int]:
        return torch._C._storage_Use_Count(self.storage._cdata), sys.getrefcount(self.storage)

    def unheld(self) -> bool:
        """Whether all who were given the memory have let go of it, and left it as it was (in size, and private)."""
        return self._holders() == self.alone and self.tensor.data_ptr() == self.address
