"""Optional libraries, imported only when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import MissingError


def need(module: str, what: str, extra: str) -> Any:
    """Import a module; raise an error that says how to install it if it is missing.

    Args:
        module: its name.
        what: what it is needed for, in the error.
        extra: the extra of this package that installs it.

    Example:
        >>> Image = need("PIL.Image", "pictures", "vision")
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.split(".")[0]
        raise MissingError(f"Whence needs {top} for {what}: pip install 'whence[{extra}]'. ({error})") from error
