"""The models that come with Whence, and the path to them."""

from __future__ import annotations

from pathlib import Path

#: each directory has a model card that says what it was trained on and how good it is
MODELS = Path(__file__).parent
