"""Exit codes, and the messages that a command prints when it fails or is interrupted."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from ..errors import EngineError, ModelError, NumericalError, WhenceError, WhenceWarning, WriteError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@contextmanager
def report_errors() -> Iterator[None]:
    """Print errors and warnings as sentences on stderr, and exit with the error's code."""

    def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"whence: {message}", err=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", WhenceWarning)
            warnings.showwarning = print_warning
            yield
    except WhenceError as error:
        typer.echo(f"whence: {error}", err=True)
        failed = isinstance(error, EngineError | ModelError | NumericalError | WriteError)
        raise typer.Exit(EXIT_FAILED if failed else EXIT_USAGE) from error
    except KeyboardInterrupt:
        typer.echo("whence: interrupted.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


@contextmanager
def announce_resumable(out: Path | None, command: str) -> Iterator[None]:
    """Print, when the work is interrupted, where its partial results are and which command continues it."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            typer.echo(f"whence: what is done is in {out}; {command} goes on from there.", err=True)
        raise
