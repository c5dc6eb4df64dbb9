"""The two heaps of a process while it compiles: what the C library keeps for later, and what Python's collector walks.

Takes nothing. Promises: where the C library has no ``malloc_trim``, nothing is given back; 0.1 to 5 ms where it has. A
compilation ends with the collector as it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

_frozen = False  # by a compilation. Python counts what is frozen one by one, 13 ms of torch's and transformers' objects


def give_back() -> None:
    """Returns what is free in all arenas of malloc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def older_left_alone() -> Iterator[None]:
    """What was there before is not walked by the collector: torch.export makes many objects, and each full collection
    walked every module of the process anew (0.2 s of a compilation of GPT-2). Garbage that is made within is collected.
    """
    global _frozen
    if _frozen or gc.get_freeze_count():  # a compilation in this one; or a caller's, and not ours to end
        yield
        return
    _frozen = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _frozen = False


@contextlib.contextmanager
def collector_held() -> Iterator[None]:
    """Holds Python's cyclic collector off stages whose forms are immutable and have no cycles.

    One full pass walks every object of torch and of the user's libraries: 0.2 s, more than all stages of GPT-2 take.
    What was there before is frozen meanwhile, or a pass that was due before would come right behind the block.
    """
    if not gc.isenabled():
        yield
        return
    with older_left_alone():
        gc.disable()
        try:
            yield
        finally:
            gc.enable()


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # musl, macOS, Windows
        return None
