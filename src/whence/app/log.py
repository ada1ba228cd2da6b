"""The server's log: one line of JSON per event, without visitors' texts unless they are enabled."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from typing import Any, TextIO


class Log:
    """A structured log.

    Args:
        stream: where it is written; stderr by default.
        inputs: whether texts are logged, too.
    """

    def __init__(self, stream: TextIO | None = None, inputs: bool = False) -> None:
        self._stream = stream
        self.inputs = inputs
        self._lock = threading.Lock()

    def __call__(self, event: str, text: str = "", **fields: Any) -> None:
        """Write one line: ``{"time": ..., "event": ..., ...}``.

        Args:
            event: what happened.
            text: the visitor's text: its length is logged, its content only with ``inputs``.
            fields: further fields.
        """
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        if text:
            entry["characters"] = len(text)
            if self.inputs:
                entry["text"] = text
        line = json.dumps(entry, ensure_ascii=True, default=str)
        with self._lock:
            print(line, file=self._stream or sys.stderr, flush=True)
