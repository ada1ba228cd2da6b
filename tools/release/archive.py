"""What is in a wheel and an sdist, and what must not be."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

LARGEST = 8 * 2**20  # bytes of a wheel or sdist
LARGEST_FILE = 4 * 2**20
NEEDED = (
    "whence/__init__.py", "whence/py.typed", "whence/app/app.css",
    "whence/render/html/page.css", "whence/render/html/page.js",
    "whence/models/sentiment/model.safetensors", "whence/models/sentiment/tokenizer.json",
    "whence/models/digits/model.safetensors", "whence/models/digits/examples/1-7.png",
)  # fmt: skip
UNWANTED = ("__pycache__", "tests/", "build/", ".venv", "golden", ".env", "docs/")


def members(path: Path) -> dict[str, int]:
    """Names and sizes of what is inside; an sdist's without its first folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {info.filename: info.file_size for info in wheel.infolist()}
    with tarfile.open(path) as sdist:
        return {m.name.partition("/")[2].removeprefix("src/"): m.size for m in sdist if m.isfile()}


def faults(path: Path) -> list[str]:
    """What is wrong with an archive, as sentences."""
    inside, size = members(path), path.stat().st_size
    found = [f"{path.name} lacks {name}." for name in NEEDED if name not in inside]
    found += [f"{path.name} has {name}." for name in inside if any(word in name for word in UNWANTED)]
    found += [f"{name} in {path.name} has {n:,} bytes." for name, n in inside.items() if n > LARGEST_FILE]
    if size > LARGEST:
        found.append(f"{path.name} has {size:,} bytes, more than {LARGEST:,}.")
    return found


def told(path: Path) -> str:
    """Its size, in words."""
    inside = members(path)
    models = sum(n for name, n in inside.items() if name.startswith("whence/models/"))
    return (
        f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(inside)} files, of which the two models have "
        f"{models / 1e6:.1f} MB unpacked"
    )
