"""Libraries that are asked for only when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import MissingError


def need(module: str, what: str, extra: str) -> Any:
    """A module, or a sentence that says how to get it.

    Example:
        >>> Image = need("PIL.Image", "pictures", "vision")
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.split(".")[0]
        raise MissingError(f"Whence needs {top} for {what}: pip install 'whence[{extra}]'. ({error})") from error
