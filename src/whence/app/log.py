"""What the server did, a line of JSON for each thing; what visitors wrote is left out unless it is asked for."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from typing import Any, TextIO


class Log:
    """A structured log.

    Args:
        stream: where it goes; stderr by default.
        inputs: whether texts are logged, too.
    """

    def __init__(self, stream: TextIO | None = None, inputs: bool = False) -> None:
        self._stream = stream
        self.inputs = inputs
        self._lock = threading.Lock()

    def __call__(self, event: str, text: str = "", **fields: Any) -> None:
        """One line: ``{"time": ..., "event": ..., ...}``.

        Args:
            event: what happened.
            text: what the visitor wrote: its length is logged, itself only if that was asked for.
            fields: what else there is to say.
        """
        said = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        if text:
            said |= {"characters": len(text)} | ({"text": text} if self.inputs else {})
        line = json.dumps(said, ensure_ascii=True, default=str)
        with self._lock:
            print(line, file=self._stream or sys.stderr, flush=True)
