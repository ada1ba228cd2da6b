"""What results on disk depend on: settings that are compared, so that results of different ones are never mixed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FileError


def require_same(directory: Path, what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a directory of other results, with what changed.

    Args:
        directory: where they are.
        what: what they are: an evaluation, a run.
        before: the settings they were made with.
        now: those of the work that would go on there.
    """
    then, wanted = _flat(before), _flat(now)
    changed = [k for k in {**then, **wanted} if wanted.get(k) != then.get(k)]
    if changed:
        told = "; ".join(f"{k}: {_short(then.get(k))} then, {_short(wanted.get(k))} now" for k in changed)
        raise FileError(f"'{directory}' holds another {what} ({told}). Choose another directory, or remove it.")


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings one by one, by their names."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        out |= {f"{name} {key}".strip(): each for key, each in inner.items()}
    return out


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."
