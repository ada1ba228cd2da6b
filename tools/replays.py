"""Tell explanations that are replayed from those that are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from whence.explainer.request import Request


@contextmanager
def computations() -> Iterator[list[Request]]:
    """Collect the requests that are computed; those that are replayed are not among them.

    Example:
        >>> with computations() as computed:
        ...     explain(inputs)
        >>> replayed = not computed
    """
    computed: list[Request] = []
    usual = Request.compute

    def counted(self: Request, *arguments: Any) -> Any:
        computed.append(self)
        return usual(self, *arguments)

    with mock.patch.object(Request, "compute", counted):
        yield computed
