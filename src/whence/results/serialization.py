"""Explanations on disk: JSON and safetensors. The schema is documented in ``docs/files.md``.

A record is a tree of plain values, tensors, arrays and origins. In JSON a tensor is a list of numbers; in safetensors
it is a tensor of the file, and the rest of the tree is in the file's metadata. Nothing is pickled.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._utils.image_files import open_image
from .._utils.optional_imports import need
from ..errors import FileError
from .input_origin import AudioOrigin, ImageOrigin, SeriesOrigin, Span, TextOrigin

FORMAT = "whence-explanations"
VERSION = 1
ORIGINS = {"text": TextOrigin, "image": ImageOrigin, "sound": AudioOrigin, "series": SeriesOrigin}
#: fields that every explanation has
REQUIRED = ("scores", "special", "method", "logits", "value", "streams", "coverage")

Record = dict[str, Any]
Put = Callable[[Tensor], Any]
Get = Callable[[Mapping[str, Any]], Tensor]


# -- a tree to plain values and back ---------------------------------------------------------------------------------


def encode(value: Any, put: Put) -> Any:
    """Encode a tree of values for JSON; ``put`` encodes a tensor."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"number": str(value)}
    if isinstance(value, Tensor):
        return put(value.detach().cpu())
    if isinstance(value, np.ndarray):
        return _picture(value) if _is_picture(value) else {"array": put(torch.from_numpy(value.copy()))}
    if isinstance(value, Mapping):
        return {"map": [[encode(k, put), encode(v, put)] for k, v in value.items()]}
    if isinstance(value, Span):
        return {"span": list(value)}
    if isinstance(value, tuple | list):
        return [encode(v, put) for v in value]
    for kind, cls in ORIGINS.items():
        if isinstance(value, cls):
            return {"origin": kind, **{f.name: encode(getattr(value, f.name), put) for f in fields(cls)}}
    return str(value)


def decode(value: Any, get: Get) -> Any:
    """Invert :func:`encode`; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(decode(v, get) for v in value)
    if not isinstance(value, dict):
        return value
    if "number" in value:
        return float(value["number"])
    if "map" in value:
        return {decode(k, get): decode(v, get) for k, v in value["map"]}
    if "span" in value:
        return Span(*value["span"])
    if "png" in value:
        return _pixels(value["png"])
    if "array" in value:
        return get(value["array"]).numpy()
    if "origin" in value:
        cls = ORIGINS[value["origin"]]
        return cls(**{k: decode(v, get) for k, v in value.items() if k != "origin"})
    return get(value)


def _is_picture(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3


def _picture(array: np.ndarray[Any, Any]) -> Record:
    image = need("PIL.Image", "pictures", "vision")
    out = io.BytesIO()
    image.fromarray(array).save(out, "PNG")
    return {"png": base64.b64encode(out.getvalue()).decode()}


def _pixels(encoded: str) -> np.ndarray[Any, Any]:
    with open_image(io.BytesIO(base64.b64decode(encoded, validate=True)), ("PNG",)) as opened:
        return np.asarray(opened.convert("RGB"))


# -- JSON ------------------------------------------------------------------------------------------------------------


def _inline(tensor: Tensor) -> Record:
    """Encode a tensor for JSON: its dtype, its shape and its numbers, row by row."""
    data = [encode(x, _inline) for x in tensor.flatten().tolist()]
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "data": data}


def _from_inline(value: Mapping[str, Any]) -> Tensor:
    data = [decode(x, _from_inline) for x in value["data"]]
    dtype = getattr(torch, value["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{value['dtype']!r} is no type of numbers")
    return torch.tensor(data, dtype=dtype).reshape(value["shape"])


def _head(records: list[Record], put: Put) -> Record:
    return {"format": FORMAT, "version": VERSION, "explanations": [
        {k: encode(v, put) for k, v in record.items()} for record in records
    ]}  # fmt: skip


def to_json(records: list[Record]) -> bytes:
    """Encode records as a JSON document."""
    return json.dumps(_head(records, _inline), ensure_ascii=False, allow_nan=False).encode()


def from_json(content: bytes) -> list[Record]:
    """Decode the records of a JSON document."""
    return _records(json.loads(content), _from_inline)


# -- safetensors -----------------------------------------------------------------------------------------------------


def to_safetensors(records: list[Record]) -> bytes:
    """Encode records as a safetensors file."""
    save = need("safetensors.torch", "safetensors files", "hf").save
    tensors: dict[str, Tensor] = {}

    def put(tensor: Tensor) -> Record:
        name = f"tensor{len(tensors)}"
        tensors[name] = tensor.contiguous().clone()
        return {"tensor": name}

    head = _head(records, put)
    content: bytes = save(tensors, metadata={FORMAT: json.dumps(head, allow_nan=False)})
    return content


def from_safetensors(content: bytes) -> list[Record]:
    """Decode the records of a safetensors file."""
    tensors = need("safetensors.torch", "safetensors files", "hf").load(content)
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return _records(json.loads(metadata.get(FORMAT, "{}")), lambda value: tensors[value["tensor"]])


# -- files -----------------------------------------------------------------------------------------------------------

WRITERS = {".json": to_json, ".safetensors": to_safetensors}
READERS = {".json": from_json, ".safetensors": from_safetensors}


def read(path: str | Path) -> list[Record]:
    """Read the records of a file; raise an error that says why it cannot be read."""
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise FileError(
            f"'{path.name}' cannot be loaded: only {' and '.join(READERS)} files hold all of an explanation."
        )
    try:
        return reader(path.read_bytes())
    except FileNotFoundError as error:
        raise FileError(f"There is no file '{path}'.") from error
    except OSError as error:
        raise FileError(f"'{path}' could not be read: {error.strerror or error}.") from error
    except FileError as error:
        raise FileError(f"'{path}' {error}") from error
    except Exception as error:  # parsers have exceptions of their own for damaged files
        raise FileError(
            f"'{path}' is damaged, or no file of explanations ({type(error).__name__}: {str(error)[:200]})."
        ) from error


def _records(document: Any, get: Get) -> list[Record]:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileError("is no file of explanations: it does not name their format.")
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise FileError(f"has no valid schema version ({version!r}); it is damaged. Save the explanation anew.")
    if version != VERSION:
        made = "newer" if version > VERSION else "older"
        raise FileError(
            f"is written in schema version {version} by a{'n' * (made == 'older')} {made} Whence; this one reads "
            f"version {VERSION}. {'Upgrade Whence' if made == 'newer' else 'Explain the input again'}."
        )
    records = [{k: decode(v, get) for k, v in record.items()} for record in document["explanations"]]
    for record in records:
        missing = [name for name in REQUIRED if name not in record]
        if missing:
            raise FileError(f"is damaged: an explanation in it has no '{missing[0]}'.")
    return records
