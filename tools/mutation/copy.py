"""A copy of the project in a temporary directory: mutants are made there, never in the files at hand."""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("src/whence", "tests", "tools", "pyproject.toml")


class Copy:
    """The package and its tests, in a place of their own.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for part in PARTS:
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, root / part)
        compileall.compile_dir(root / "src", quiet=2)

    def path(self, module: str) -> Path:
        """Where a module of the package lies."""
        return self.root / "src" / "whence" / module

    @contextmanager
    def changed(self, module: str, source: str) -> Iterator[None]:
        """With another source in place of a module's own."""
        path = self.path(module)
        own = path.read_text()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # what is compiled is known by the second it was written in, which is too coarse here
        path.write_text(source)
        try:
            yield
        finally:
            path.write_text(own)

    def enter(self) -> None:
        """Make this process one that imports the package from here."""
        os.chdir(self.root)
        sys.path[:0] = [str(self.root / "src"), str(self.root)]
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:3])


@contextmanager
def copied() -> Iterator[Copy]:
    """A copy that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="whence-mutation-") as directory:
        yield Copy(Path(directory))
