"""Comparison of settings, so that results of different settings are never mixed in one directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FileError


def require_same(directory: Path, what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise :class:`FileError` with the differences if a directory holds results of other settings.

    Args:
        directory: of the results.
        what: the kind of results: an evaluation, a run.
        before: the settings of the results.
        now: the settings of the work that would continue there.
    """
    old = _flat(before)
    new = _flat(now)
    changed = [k for k in {**old, **new} if new.get(k) != old.get(k)]
    if changed:
        differences = "; ".join(f"{k}: {_short(old.get(k))} then, {_short(new.get(k))} now" for k in changed)
        raise FileError(f"'{directory}' holds another {what} ({differences}). Choose another directory, or remove it.")


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings as one flat mapping."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        out |= {f"{name} {key}".strip(): each for key, each in inner.items()}
    return out


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."
