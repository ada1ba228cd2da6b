"""What the words of the command line mean: options that several commands share, models, targets, exit codes."""

from __future__ import annotations

import csv
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from ..errors import InputError, ModelError, NumericalError, WhenceError, WhenceWarning, WriteError
from ..explainer.explainer import Explainer
from ..inputs.pretrained import quiet

FAILED, WRONG, INTERRUPTED = 1, 2, 130

Model = Annotated[str, typer.Option("--model", "-m", help="A directory, or an id on the HuggingFace hub.")]
Text = Annotated[str | None, typer.Option(help="The text that goes with each picture, or the second of a pair.")]
Target = Annotated[
    str | None, typer.Option("--target", "-t", help="Class name or number (or token). Default: what is predicted.")
]
Option = Annotated[list[str] | None, typer.Option("--option", "-o", help="An option of the method, as name=value.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps, ...")]
Dtype = Annotated[str, typer.Option(help="float32, float64, bfloat16, float16, or auto for that of the file.")]
Remote = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")]
Pickle = Annotated[bool, typer.Option("--allow-pickle", help="Open pickled weights, which can run any code.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Read only the beginning of texts that are too long.")]


@contextmanager
def guarded() -> Iterator[None]:
    """Errors as a sentence on stderr and an exit code; warnings likewise."""

    def say(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"whence: {message}", err=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", WhenceWarning)
            warnings.showwarning = say
            yield
    except WhenceError as error:
        typer.echo(f"whence: {error}", err=True)
        failed = isinstance(error, ModelError | NumericalError | WriteError)
        raise typer.Exit(FAILED if failed else WRONG) from error
    except KeyboardInterrupt:
        typer.echo("whence: interrupted.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def load(model: str, device: str | None, dtype: str, remote: bool, pickle: bool, truncate: bool) -> Explainer:
    """A model from the command line's words."""
    import torch

    precision = precision_of(dtype)
    quiet()
    try:
        where = None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InputError(f"'{device}' is no device: cpu, cuda, mps, ... ({str(error).splitlines()[0]})") from error
    return Explainer.from_pretrained(
        model, device=where, dtype=precision, trust_remote_code=remote, allow_pickle=pickle, truncate=truncate
    )


def precision_of(dtype: str) -> Any:
    """A precision by its name."""
    import torch

    precision: Any = dtype if dtype == "auto" else getattr(torch, dtype, None)
    if dtype != "auto" and not (isinstance(precision, torch.dtype) and precision.is_floating_point):
        raise InputError(f"'{dtype}' is no precision: float32, float64, bfloat16, float16 or auto.")
    return precision


def target_of(word: str | None) -> Any:
    """A target as a number or a label."""
    return int(word) if word is not None and word.strip().lstrip("-").isdecimal() else word


def targets_of(words: str | None) -> list[Any]:
    """Several, with commas between; a label that has a comma stands in quotation marks."""
    if words is None:
        return [None]
    return [target_of(word.strip()) for word in next(csv.reader([words], skipinitialspace=True))]


def options_of(pairs: list[str] | None) -> dict[str, Any]:
    """``name=value`` as Python values."""
    out: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"An option is given as name=value, not as '{pair}'.")
        try:
            out[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            out[name.replace("-", "_")] = {"True": True, "False": False, "None": None}.get(value, value)
    return out
