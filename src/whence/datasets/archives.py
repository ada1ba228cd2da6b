"""Formats of single datasets: MNIST's arrays, TweetEval's parallel text files, ERASER's archive."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._utils.image_files import open_image
from .._utils.optional_imports import need
from ..errors import InputError
from .column_roles import to_label
from .item import Item, Mask
from .text_tables import Line, damaged, decoded, lines

LARGEST_MEMBER = 1 << 28  # bytes of an unpacked file of an archive
LARGEST_SIDE = 1 << 12  # pixels of a side of MNIST's images

NumberedImage = tuple[int, npt.NDArray[np.uint8], int]  # number, image, label


def parallel_lines(texts: Path, labels: Path, names: Sequence[str]) -> Iterator[Item]:
    """Read texts from one file and class indices from another; empty texts are left out."""
    pairs = zip_longest(lines(texts), lines(labels))
    return filter(lambda item: item.input, map(partial(_tweet, texts, labels, names), pairs))


def _tweet(texts: Path, labels: Path, names: Sequence[str], pair: tuple[Line | None, Line | None]) -> Item:
    text, label = pair
    if text is None or label is None:
        raise InputError(f"'{texts}' and '{labels}' must have as many lines as each other, and have not.")
    try:
        of = to_label(decoded(labels, *label).strip(), names)
    except InputError as error:
        raise damaged(labels, label[0], str(error).removesuffix(".")) from error
    return Item(str(text[0]), decoded(texts, *text).strip(), of)


def digits(images: Path, labels: Path) -> Iterator[Item]:
    """Read MNIST's format (idx) as a stream of images uint8 ``[28, 28]``."""
    return map(_digit, _numbered_images(images, labels))


def _digit(numbered: NumberedImage) -> Item:
    number, picture, label = numbered
    return Item(str(number), picture, str(label))


def _numbered_images(images: Path, labels: Path) -> Iterator[NumberedImage]:
    with _unpacked(images), gzip.open(images) as pictures, gzip.open(labels) as classes:
        magic, count, height, width = np.frombuffer(pictures.read(16), ">i4")
        also, as_many = np.frombuffer(classes.read(8), ">i4")
        if (magic, also) != (2051, 2049) or count != as_many:
            raise ValueError(f"'{images.name}' and '{labels.name}' are not pictures and their labels")
        if not (0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE):
            raise ValueError(f"its pictures would be {height} x {width} pixels")
        for number in range(1, count + 1):
            picture = np.frombuffer(pictures.read(height * width), np.uint8).reshape(height, width)
            yield number, picture, classes.read(1)[0]


def reviews(archive: Path, split: str) -> Iterator[Item]:
    """Read ERASER: documents of space-separated tokens, with the token spans that annotators marked.

    The archive is streamed twice, not unpacked: first the annotations of the split, then the documents.
    """
    with _unpacked(archive):
        marked = {row["annotation_id"]: row for row in _annotations(archive, split)}
        for name, content in _members(archive, "docs"):
            if name in marked:
                yield _review(name, content.decode("utf-8"), marked.pop(name))
        if marked:
            raise ValueError(f"the document {min(marked)} is not in it")


def _review(name: str, text: str, row: Any) -> Item:
    tokens = [match.span() for match in re.finditer(r"\S+", text)]
    spans = [(e["start_token"], e["end_token"]) for group in row["evidences"] for e in group]
    places = [(tokens[start][0], tokens[end - 1][1]) for start, end in spans]
    return Item(name.removesuffix(".txt"), text, row["classification"], merged(places))


def merged(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the spans sorted, with overlapping and touching ones merged.

    Example:
        >>> merged([(5, 9), (0, 3), (2, 4)])
        ((0, 4), (5, 9))
    """
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return tuple(out)


def _annotations(archive: Path, split: str) -> list[Any]:
    for name, content in _members(archive, None):
        if name == f"{split}.jsonl":
            return [json.loads(line) for line in content.splitlines() if line.strip()]
    raise ValueError(f"it has no {split}.jsonl")


def _members(archive: Path, folder: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files in the archive's top directory, or in a folder of it."""
    depth = 2 if folder is None else 3
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            parts = Path(member.name).parts
            if member.isfile() and len(parts) == depth and folder in (None, parts[1]):
                if member.size > LARGEST_MEMBER:
                    raise ValueError(f"{parts[-1]} in it has {member.size:,} bytes, more than {LARGEST_MEMBER:,}")
                file = tar.extractfile(member)
                yield parts[-1], file.read() if file else b""


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError, zlib.error, tarfile.TarError, ValueError, KeyError, IndexError) as error:
        raise InputError(f"'{path}' is damaged, or not what its name says: {error}.") from error


def trimap(path: Path) -> Mask:
    """Return a mask of Oxford pets (1 pet, 2 background, 3 boundary) as int8 ``[height, width]``: 1, 0 and -1."""
    image = need("PIL.Image", "pictures", "vision")
    try:
        with open_image(path) as opened:
            values = np.asarray(opened)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise InputError(f"The mask '{path}' cannot be read: {error}.") from error
    if values.ndim != 2 or not np.isin(values, (1, 2, 3)).all():
        raise InputError(f"The mask '{path}' must have one channel with the values 1, 2 and 3.")
    return np.where(values == 1, 1, np.where(values == 2, 0, -1)).astype(np.int8)
