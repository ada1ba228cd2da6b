"""Where the training scripts read data and teachers, and where the trained models go."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("WHENCE_SHARED", PROJECT.parent / "shared"))
DATA = SHARED / "data"
WEIGHTS = SHARED / "weights"
MODELS = PROJECT / "src" / "whence" / "models"
