"""egglog's engine without egglog's Python language.

Gives ``bindings``, the compiled module ``egglog.bindings``. Promises: it is the very module that ``import egglog``
uses, before or after; the package around it, with the formatter and the notebook support that it imports, is left
alone: 0.16 s of processor time, more than saturating GPT-2 takes.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

__all__ = ["bindings"]

NAME = "egglog.bindings"


def _load() -> Any:
    package = None if "egglog" in sys.modules else find_spec("egglog")
    spec = PathFinder.find_spec(NAME, package.submodule_search_locations) if package is not None else None
    if spec is None or spec.loader is None or NAME in sys.modules:
        from egglog import bindings

        return bindings
    module = sys.modules[NAME] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from egglog import bindings
else:
    bindings = _load()
