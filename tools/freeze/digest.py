"""A hash of all numbers in an explanation."""

from __future__ import annotations

import hashlib

from torch import Tensor

import whence

TENSORS = ("scores", "special", "logits", "value", "prediction", "target", "layers", "heads", "branches", "pairs")


def digest(explanation: whence.Explanation) -> str:
    """Return the first 16 hex digits of a hash over scores, streams, layers, heads, ledger and coverage."""
    sha = hashlib.sha256()
    for name in TENSORS:
        _add(sha, name, getattr(explanation, name))
    for name, scores in explanation.streams.items():
        _add(sha, f"stream {name}", scores)
    ledger = explanation.ledger
    if ledger is not None:
        _add(sha, "total", ledger.total)
        _add(sha, "sums", ledger.sums)
        for entry in ledger.entries:
            _add(sha, f"{entry.kind} {entry.name}", _rounded(entry.amount, ledger.total))
    coverage = explanation.coverage
    sha.update(repr((sorted(coverage.seen.items()), sorted(coverage.plain.items()))).encode())
    return sha.hexdigest()[:16]


def _rounded(amount: Tensor, total: Tensor) -> Tensor:
    """Round to 1e-9 of the total: an entry may be nothing but rounding, and that depends on where memory begins."""
    unit = 1e-9 * total.abs().max().double().clamp(min=1e-30)
    return (amount.double() / unit).round() + 0.0  # no negative zero


def _add(sha: hashlib._Hash, name: str, tensor: Tensor | None) -> None:
    if tensor is None:
        sha.update(f"{name}: none".encode())
        return
    array = tensor.detach().cpu().contiguous()
    sha.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
    sha.update(array.numpy().tobytes())
