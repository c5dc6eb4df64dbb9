"""The order of the package's parts, lowest first: a part imports only from its own layer and from those before it.

Takes nothing. Gives :data:`LAYERS` and :data:`STAGE_PACKAGES`. Promises: ``tests/test_layers.py`` fails on an import
against this order and on a part that is missing here. The package's ``__init__`` and ``__main__`` stand above all.
"""

from __future__ import annotations

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "layers", "options", "remarks"),
    ("ir", "ops"),
    ("targets",),
    ("capture",),
    ("rules", "egraph", "verify"),
    ("extract",),
    ("lower",),
    ("alloc",),
    ("schedule",),
    ("run",),
    ("npu",),
    ("report", "pipeline", "cache"),
    ("api", "program"),
    ("dynamo",),
    ("resnet",),
    ("tune",),
    ("models", "families", "demo", "cached", "generation"),
    ("peers",),
    ("paper",),
    ("cli",),
)

# The packages that are stages of the pipeline; each states what it Takes, Gives and Promises.
STAGE_PACKAGES = ("capture", "egraph", "extract", "lower", "alloc", "schedule", "run")
