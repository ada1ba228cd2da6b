"""The columns of a table that hold the input, the label and the id; and the conversion of rows to items."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._utils.image_files import open_image
from .._utils.optional_imports import need
from ..errors import InputError
from .item import Item
from .text_tables import Row, TableFile, damaged

TEXT = ("text", "sentence", "review", "smiles", "tweet", "utterance", "comment", "content", "document", "message")
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("text1", "text2"), ("text_a", "text_b"),
)  # fmt: skip
IMAGE = ("image", "img", "picture", "image_path", "file_name")
LABEL = ("label", "labels", "class", "sentiment", "target", "category", "emotion")
ID = ("id", "idx", "guid", "uid")


@dataclass(frozen=True)
class ColumnRoles:
    """Names of columns: one text or a pair, an image, or both; the label and the id, if there are any."""

    text: tuple[str, ...]
    image: str | None
    label: str | None
    id: str | None

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are read."""
        return tuple(dict.fromkeys(name for name in (*self.text, self.image, self.label, self.id) if name))


def choose(
    table: TableFile, text: str | Sequence[str] | None, label: str | None, image: str | None, id: str | None
) -> ColumnRoles:
    """Return the columns that the user named; for the others, those with a usual name.

    Args:
        table: whose columns.
        text: one name, or two for pairs.
        label: a name; empty: none is read.
        image: a name.
        id: a name; empty: rows are numbered.
    """
    if not table.columns:
        raise InputError(f"'{table.path}' is empty.")
    texts = (text,) if isinstance(text, str) else tuple(text or ())
    if len(texts) > 2:
        raise InputError(f"A text is one column, or two for pairs, not {len(texts)}.")
    for name in (*texts, image, label, id):
        if name and name not in table.columns:
            raise InputError(f"'{table.path}' has no column '{name}'; it has {_listed(table)}.")
    if not texts and image is None:
        texts, image = _input(table)
    return ColumnRoles(
        texts,
        image,
        _usual(table, LABEL, "label") if label is None else label or None,
        _usual(table, ID, "id") if id is None else id or None,
    )


def _input(table: TableFile) -> tuple[tuple[str, ...], str | None]:
    """Find the text, the pair or the image by their usual names; more than one of them is an error."""
    by_name = _by_name(table)
    pairs = [tuple(by_name[name] for name in pair) for pair in PAIRS if set(pair) <= set(by_name)]
    of_pairs = {name for pair in pairs for name in pair}
    texts = [(by_name[name],) for name in TEXT if name in by_name and by_name[name] not in of_pairs]
    images = [by_name[name] for name in IMAGE if name in by_name]
    found: list[tuple[tuple[str, ...], str | None]] = [(t, None) for t in [*pairs, *texts]]
    found += [((), name) for name in images]
    if not found:
        raise InputError(
            f"None of the columns of '{table.path}' has a usual name for a text or a picture; it has {_listed(table)}. "
            "Say which it is (text=..., or image=...)."
        )
    if len(found) > 1:
        names = ", ".join(" and ".join(f"'{name}'" for name in (*t, i) if name) for t, i in found)
        raise InputError(
            f"Several columns of '{table.path}' may be the input: {names}. Say which is (text=..., image=..., or both "
            "for a model that reads both)."
        )
    return found[0]


def _usual(table: TableFile, names: Sequence[str], what: str) -> str | None:
    by_name = _by_name(table)
    found = [by_name[name] for name in names if name in by_name]
    if len(found) > 1:
        listed = ", ".join(f"'{name}'" for name in found)
        raise InputError(
            f"Several columns of '{table.path}' may be the {what}: {listed}. Say which is ({what}=...; {what}='' for "
            "none)."
        )
    return found[0] if found else None


def _by_name(table: TableFile) -> dict[str, str]:
    return {name.lower(): name for name in table.columns}


def _listed(table: TableFile) -> str:
    return ", ".join(f"'{name}'" for name in table.columns)


def to_item(table: TableFile, columns: ColumnRoles, prefix: str, row: Row) -> Item:
    """Return a row as an item; ``prefix`` precedes the number of a row without an id."""
    number, values = row
    missing = [name for name in columns.used if name not in values]
    if missing:
        raise damaged(table.path, number, f"it has no '{missing[0]}'")
    name = f"{prefix}{number}" if columns.id is None else values[columns.id]
    if name is None or name == "":
        raise damaged(table.path, number, f"its '{columns.id}' is empty")
    label = None if columns.label is None else values[columns.label]
    names = table.classes.get(columns.label or "")
    try:
        return Item(str(name), _value(table, columns, values), to_label(label, names))
    except InputError as error:
        raise damaged(table.path, number, str(error).removesuffix(".")) from error


def _value(table: TableFile, columns: ColumnRoles, values: Any) -> Any:
    texts = tuple(_text(name, values[name]) for name in columns.text)
    text = texts[0] if len(texts) == 1 else texts
    if columns.image is None:
        return text
    picture = _picture(table.path, columns.image, values[columns.image])
    return {"image": picture, "text": text} if columns.text else picture


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"'{name}' is no text but {type(value).__name__}.")
    return value


def _picture(path: Path, name: str, value: Any) -> Any:
    """Return a path, relative to the table's directory; or the image of HuggingFace's bytes or path."""
    if isinstance(value, dict) and value.get("bytes") is None:
        value = value.get("path")
    if isinstance(value, str) and value:
        return value if "://" in value else str(path.parent / value)
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise InputError(f"'{name}' is neither a path nor the bytes of a picture but {type(content).__name__}.")
    image = need("PIL.Image", "pictures", "vision")
    try:
        return open_image(io.BytesIO(content))
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise InputError(f"'{name}' is not a picture that can be read: {error}.") from error


def to_label(value: Any, names: Sequence[str] | None = None) -> str | int | None:
    """Return the label of an item: a class name if ``names`` are given, otherwise an integer or a string.

    Example:
        >>> to_label("1"), to_label("1", ["negative", "positive"]), to_label("joy")
        (1, 'positive', 'joy')
    """
    if value is None or value == "" or value != value:  # NaN is a missing label, too
        return None
    number = _whole(value)
    if number is None and not isinstance(value, str | float):
        raise InputError(f"the label is a {type(value).__name__}; Whence takes one class a sample, or none (label='').")
    if number is None or names is None:
        return str(value) if number is None else number
    if number == -1:  # a hidden label in HuggingFace's datasets
        return None
    if not 0 <= number < len(names):
        raise InputError(f"the label is {number}, and there are {len(names)} classes.")
    return names[number]


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*-?\d+\s*", value) else None
    return int(value) if isinstance(value, int) or (isinstance(value, float) and value.is_integer()) else None
