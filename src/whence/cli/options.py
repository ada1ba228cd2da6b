"""Options that several commands share, the parsing of their values, and exit codes."""

from __future__ import annotations

import csv
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError, ModelError, NumericalError, WhenceError, WhenceWarning, WriteError
from ..explainer.explainer import Explainer
from ..inputs.pretrained import quiet

DEFAULT_METHOD = "conservative-lrp"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

Model = Annotated[str, typer.Option("--model", "-m", help="A directory, or an id on the HuggingFace hub.")]
Method = Annotated[str, typer.Option(help="A name from `whence methods`.")]
Text = Annotated[str | None, typer.Option(help="The text that goes with each picture, or the second of a pair.")]
Target = Annotated[
    str | None, typer.Option("--target", "-t", help="Class name or number (or token). Default: what is predicted.")
]
MethodOptions = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="An option of the method, as name=value.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ResultsDirectory = Annotated[Path | None, typer.Option(help="Directory of the results. Default: print the table only.")]

# of a dataset
DataRoot = Annotated[Path | None, typer.Option(help="Directory of the named datasets. Default: $WHENCE_DATA.")]
Split = Annotated[str | None, typer.Option(help="Which part of the dataset.")]
Columns = Annotated[
    list[str] | None, typer.Option("--column", help="Of a file: text=..., label=..., id=..., if not found by name.")
]

# of loading a model
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps, ...")]
Dtype = Annotated[str, typer.Option(help="float32, float64, bfloat16, float16, or auto for that of the file.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Open pickled weights, which can run any code.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Read only the beginning of texts that are too long.")]


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
        failed = isinstance(error, ModelError | NumericalError | WriteError)
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


def load_explainer(
    model: str, device: str | None, dtype: str, trust_remote_code: bool, allow_pickle: bool, truncate: bool
) -> Explainer:
    """Load a model as the options of the command line say."""
    import torch

    precision = parse_dtype(dtype)
    quiet()
    try:
        torch_device = None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InputError(f"'{device}' is no device: cpu, cuda, mps, ... ({str(error).splitlines()[0]})") from error
    return Explainer.from_pretrained(
        model, device=torch_device, dtype=precision, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
        truncate=truncate,
    )  # fmt: skip


def parse_dtype(dtype: str) -> Any:
    """Return a precision by its name."""
    import torch

    precision: Any = dtype if dtype == "auto" else getattr(torch, dtype, None)
    if dtype != "auto" and not (isinstance(precision, torch.dtype) and precision.is_floating_point):
        raise InputError(f"'{dtype}' is no precision: float32, float64, bfloat16, float16 or auto.")
    return precision


def parse_target(word: str | None) -> Any:
    """Return a target as a class index or a label."""
    return int(word) if word is not None and word.strip().lstrip("-").isdecimal() else word


def parse_targets(words: str | None) -> list[Any]:
    """Return targets that are separated by commas; a label that contains a comma is quoted."""
    if words is None:
        return [None]
    return [parse_target(word.strip()) for word in next(csv.reader([words], skipinitialspace=True))]


def parse_names(words: list[str] | None) -> list[str] | None:
    """Return names that are separated by commas; a name with options is not split, as options contain commas."""
    if words is None:
        return None
    return [name.strip() for word in words for name in ([word] if ":" in word else word.split(",")) if name.strip()]


def parse_pairs(words: list[str] | None) -> dict[str, str]:
    """Return ``name=value`` pairs as strings."""
    for word in words or []:
        if "=" not in word:
            raise InputError(f"'{word}' is no pair: write name=value.")
    return {name: value for name, _, value in (word.partition("=") for word in words or [])}


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """Return ``name=value`` pairs as Python values."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"An option is given as name=value, not as '{pair}'.")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = {"True": True, "False": False, "None": None}.get(value, value)
        options[name.replace("-", "_")] = parsed
    return options
