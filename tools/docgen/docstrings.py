"""Docstrings as the reference wants them: what Python's help says in one way, MkDocs is told in another."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")  # :func:`whence.list_methods`
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SHARED = re.compile(r"^( +)(\w+(?:, \w+)+): (.*\n(?:\1 {4}.*\n)*)", re.MULTILINE)  # a, b: what both are


class Docstrings(griffe.Extension):
    """Rewrites every docstring as it is collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each function, class, attribute and module."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)


def plain(text: str) -> str:
    """Without roles; examples as a section; a line for each parameter."""
    text = EXAMPLE.sub("Examples:", ROLE.sub(r"`\1`", text + "\n"))
    return SHARED.sub(lambda m: "".join(f"{m[1]}{name}: {m[3]}" for name in m[2].split(", ")), text).strip()
