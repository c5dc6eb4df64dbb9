"""The trap cases beside the checkout: small programs that graph optimisers have got wrong."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from types import ModuleType

from shared import SHARED

PATH = SHARED / "cases" / "cases_public.py"


@lru_cache(maxsize=1)
def cases() -> ModuleType:
    """The module of cases; its docstring says what a case is."""
    spec = importlib.util.spec_from_file_location("cases_public", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def names() -> list[str]:
    """The ids of all cases; none where the data is absent."""
    return [name for name, _, _ in cases().CASES] if PATH.is_file() else []
