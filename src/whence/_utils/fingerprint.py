"""Fingerprints: hashes of sixteen characters that depend only on weights or values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


def of_model(model: nn.Module) -> str:
    """Return a hash of a model's parameters and buffers.

    Example:
        >>> of_model(model)
        '3f1c0a5be8d2974c'
    """
    out = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        out.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        out.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return out.hexdigest()[:16]


def of_values(values: Iterable[Any]) -> str:
    """Return a hash of texts, numbers, arrays and files (by name and size), in order."""
    out = hashlib.sha256()
    for value in values:
        out.update(_bytes(value))
        out.update(b"\0")
    return out.hexdigest()[:16]


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Path):
        return f"{value.name} {value.stat().st_size if value.exists() else -1}".encode(errors="surrogatepass")
    if isinstance(value, dict):
        return b"".join(_bytes(k) + _bytes(v) for k, v in value.items())
    if isinstance(value, tuple | list):
        return b"".join(_bytes(v) + b"\1" for v in value)
    if hasattr(value, "__array__") and not isinstance(value, str):  # an array or an image
        array = np.asarray(value)
        return f"{array.shape}{array.dtype}".encode() + array.tobytes()
    return f"{type(value).__name__} {value}".encode(errors="surrogatepass")
