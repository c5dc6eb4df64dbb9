"""One measurement in a process of its own: ``python -m forge_eq.paper.child KIND SPEC SETTINGS``.

Takes the settings as JSON. Gives a line of JSON, the last on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def measure(kind: str, spec: str, given: dict[str, Any]) -> Any:
    """Calls the measurement of that kind."""
    import torch

    from forge_eq.paper import graphs, programs

    os.environ["FORGE_EQ_CACHE"] = "0"  # a program that is found on disk is no measurement of a search
    tokens, threads = given["tokens"], given["threads"]
    torch.set_num_threads(threads)
    kinds: dict[str, Callable[[], Any]] = {
        "model": lambda: graphs.model(spec, tokens),
        "stages": lambda: graphs.stages(spec, tokens),
        "optimise": lambda: graphs.optimise(spec, tokens),
        "scores": lambda: graphs.scores(spec, tokens),
        "tuning": lambda: graphs.tuning(spec, tokens, given["trials"]),
        "rules": lambda: graphs.rules(spec, tokens),
        "fusion": lambda: programs.fusion(spec, tokens, threads, given["calls"]),
        "fidelity": lambda: programs.fidelity(spec, tokens, threads, given["windows"]),
        "run": lambda: programs.run(spec, tokens, threads, given["calls"]),
    }
    return kinds[kind]()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
