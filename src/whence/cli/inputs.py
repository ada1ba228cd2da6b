"""Inputs from the command line: texts, files, patterns, stdin."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .._utils.atomic_files import is_file
from ..errors import InputError
from ..explainer.explainer import Explainer

GLOB = "*?["
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Texts, or files: pictures, recordings, texts. `-` reads one input a line from stdin; patterns like "
        "'*.jpg' are expanded.",
    ),
]


def read(words: list[str], explainer: Explainer, text: str | None = None) -> list[Any]:
    """Inputs from the command line's words: stdin, patterns and files resolved."""
    out: list[Any] = []
    for word in words:
        if word == "-":
            out += _lines()
            continue
        found = sorted(glob.glob(word)) if any(c in word for c in GLOB) and not is_file(word) else []
        if explainer.modality == "text":
            out += [_text(name) for name in found or [word]]
        elif found or not any(c in word for c in GLOB) or is_file(word):
            out += found or [word]
        else:
            raise InputError(f"No file fits the pattern '{word}'.")
    if not out:
        raise InputError("There is no input: give texts or files, or pipe them in with `-`.")
    if text is not None:
        out = [(item, text) for item in out]
    if explainer.modality == "series":
        return [_table(item) for item in out]
    return out


def _lines() -> list[str]:
    try:
        return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"What came through stdin is no text: {error}.") from error


def _text(word: str) -> str:
    """A text, or the text in the file of that name."""
    if not is_file(word):
        return word
    typer.echo(f"whence: reading the file {word}.", err=True)
    try:
        return Path(word).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{word}' is no text that can be read: {error}.") from error


def _table(path: str) -> Any:
    import numpy as np

    try:
        return np.genfromtxt(path, delimiter=",", skip_header=_has_header(path))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is no table of numbers: {error}.") from error


def _has_header(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return int(any(c.isalpha() and c not in "eEnaNif" for c in file.readline()))
