"""Directories as datasets: a HuggingFace dataset, tables with a split in their names, or images."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import FileError, InputError
from .item import Item

TABLES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".csv", ".tsv")
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip


def kind(path: Path) -> str:
    """Return the extension of a file, without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def tables(directory: Path, split: str | None) -> tuple[list[Path], str]:
    """Return the files of a split, in order, and its name; no files if the directory holds no tables.

    A directory of HuggingFace's ``save_to_disk`` has a ``dataset_dict.json`` or ``state.json``. Otherwise files are
    searched recursively, and the split is a word of their names or of their folders'.
    """
    if (directory / "dataset_dict.json").exists():
        names = list(map(str, _json(directory / "dataset_dict.json", "splits")))
        split = _chosen(directory, names, split)
        return _saved(directory / split), split
    if (directory / "state.json").exists():
        return _saved(directory), split or ""
    found = [path for path in _below(directory) if kind(path) in TABLES]
    files, split = _of_split(directory, found, split)
    if len({path.parent for path in files}) > 1:
        folders = ", ".join(sorted({f"'{path.parent.relative_to(directory)}'" for path in files}))
        raise InputError(f"'{directory}' holds tables in several folders ({folders}): give the path of one.")
    if len({kind(path) for path in files}) > 1:
        raise InputError(f"'{directory}' holds {files[0].name} and {files[-1].name}: give the path of one.")
    return files, split


def _saved(directory: Path) -> list[Path]:
    names = [str(entry["filename"]) for entry in _json(directory / "state.json", "_data_files")]
    files = [directory / name for name in names]
    for name, path in zip(names, files, strict=True):
        if path.name != name:
            raise FileError(f"The state.json of '{directory}' names '{name}', a file elsewhere, which is not read.")
        if not path.is_file():
            raise FileError(f"'{directory}' is incomplete: its state.json names '{path.name}', which is not there.")
    return files


def _json(path: Path, name: str) -> list[dict[str, str]]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"'{path}' cannot be understood ({error!r}): the dataset is damaged or incomplete.") from error


def pictures(directory: Path, split: str | None) -> tuple[Path, str, tuple[str, ...] | None]:
    """Return the directory of a split's images, its name, and the classes: the names of the image folders."""
    folders = _folders(directory)
    if folders and all(name.lower() in SPLITS for name in folders):
        parts = {SPLITS[name.lower()]: name for name in folders}
        split = _chosen(directory, parts, split)
        directory = directory / parts[split]
    elif split is not None:
        raise InputError(f"'{directory}' is a folder of pictures without splits: it has no '{split}'.")
    return directory, split or "", tuple(_folders(directory)) or None


def picture_items(directory: Path) -> Iterator[Item]:
    """Yield the images below a directory, sorted; the label is the folder, the id the relative path."""
    for path in _below(directory):
        if kind(path) in PICTURES:
            inside = path.relative_to(directory)
            yield Item(inside.as_posix(), str(path), inside.parts[0] if len(inside.parts) > 1 else None)


def _of_split(directory: Path, files: list[Path], split: str | None) -> tuple[list[Path], str]:
    """Return the files with the split in their names or in those of their folders."""
    groups: dict[str, list[Path]] = {}
    for path in files:
        words = (word for part in reversed(path.relative_to(directory).parts) for word in re.split(r"[\W\d_]+", part))
        named = next((SPLITS[word.lower()] for word in words if word.lower() in SPLITS), None)
        groups.setdefault(named or "", []).append(path)
    if groups.keys() - {""}:
        groups.pop("", None)
        split = _chosen(directory, groups, split)
        return groups[split], split
    if files and split is not None:
        raise InputError(f"No file in '{directory}' has the split '{split}' in its name.")
    return files, ""


def _chosen(directory: Path, splits: Iterable[str], split: str | None) -> str:
    """Return the requested split by its name in this directory; the only one if none was requested."""
    splits = sorted(splits)
    if split is None and len(splits) == 1:
        return splits[0]
    wanted = split or ""
    for name in (wanted, SPLITS.get(wanted.lower(), "")):
        if name in splits:
            return name
    asked = f"not '{split}'" if split else "and none was chosen"
    raise InputError(f"'{directory}' has the splits {', '.join(splits)}, {asked}. Say which is meant (split=...).")


def _folders(directory: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir() and not entry.name.startswith("."))


def _below(directory: Path) -> Iterator[Path]:
    """Yield all files below a directory that are not hidden, sorted."""
    for folder, folders, files in os.walk(directory, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))
