"""Where the data beside the checkout lies: model texts, trap cases and tables that are too large to keep here."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("FORGE_EQ_SHARED") or Path(__file__).resolve().parents[2] / "shared")
