"""Inputs of the command line: texts, files, glob patterns, stdin."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .._utils.atomic_files import is_file
from ..errors import InputError
from ..explainer.explainer import Explainer

GLOB_CHARACTERS = "*?["
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Texts, or files: pictures, recordings, texts. `-` reads one input a line from stdin; patterns like "
        "'*.jpg' are expanded.",
    ),
]


def read_inputs(words: list[str], explainer: Explainer, text: str | None = None) -> list[Any]:
    """Return the inputs that the arguments name, with stdin, glob patterns and text files read."""
    items: list[Any] = []
    for word in words:
        if word == "-":
            items += _read_stdin()
            continue
        paths = sorted(glob.glob(word)) if any(c in word for c in GLOB_CHARACTERS) and not is_file(word) else []
        if explainer.modality == "text":
            items += [_read_text(name) for name in paths or [word]]
        elif paths or not any(c in word for c in GLOB_CHARACTERS) or is_file(word):
            items += paths or [word]
        else:
            raise InputError(f"No file fits the pattern '{word}'.")
    if not items:
        raise InputError("There is no input: give texts or files, or pipe them in with `-`.")
    if text is not None:
        items = [(item, text) for item in items]
    if explainer.modality == "series":
        return [_read_table(item) for item in items]
    return items


def _read_stdin() -> list[str]:
    try:
        return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"What came through stdin is no text: {error}.") from error


def _read_text(word: str) -> str:
    """Return the text of the file of that name, or the word itself if there is none."""
    if not is_file(word):
        return word
    typer.echo(f"whence: reading the file {word}.", err=True)
    try:
        return Path(word).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{word}' is no text that can be read: {error}.") from error


def _read_table(path: str) -> Any:
    import numpy as np

    try:
        return np.genfromtxt(path, delimiter=",", skip_header=_has_header(path))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is no table of numbers: {error}.") from error


def _has_header(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return int(any(c.isalpha() and c not in "eEnaNif" for c in file.readline()))
