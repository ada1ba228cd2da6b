"""``python -m whence`` and the ``whence`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from .cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"whence: the command line needs {error.name}: pip install 'whence[cli]'.")
    app()


if __name__ == "__main__":
    main()
