"""The command line: ``whence explain``, ``compare``, ``check``, ``methods``, ``demo``.

Results go to stdout or the named file, progress and messages to stderr. Exit codes: 0 done, 1 the work failed,
2 the call was wrong.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from .check import check as look
from .errors import InputError, ModelError, NumericalError, WhenceError, WhenceWarning, WriteError
from .explainer import Explainer
from .explanation import Explanations
from .files import is_file
from .methods import methods as all_methods

FAILED, WRONG, INTERRUPTED = 1, 2, 130
GLOB = "*?["

app = typer.Typer(
    name="whence",
    help="From where did this prediction come? Explain what any PyTorch Transformer said.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Texts, or files: pictures, recordings, texts. `-` reads one input a line from stdin; patterns like "
        "'*.jpg' are expanded.",
    ),
]
Model = Annotated[str, typer.Option("--model", "-m", help="A directory, or an id on the HuggingFace hub.")]
Text = Annotated[str | None, typer.Option(help="The text that goes with each picture, or the second of a pair.")]
Target = Annotated[
    str | None, typer.Option("--target", "-t", help="Class name or number (or token). Default: what is predicted.")
]
Option = Annotated[list[str] | None, typer.Option("--option", "-o", help="An option of the method, as name=value.")]
Out = Annotated[
    Path | None, typer.Option(help="File to write: .html .png .svg .pdf .tex .json .safetensors. Default: print.")
]
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

    precision: Any = dtype if dtype == "auto" else getattr(torch, dtype, None)
    if dtype != "auto" and not (isinstance(precision, torch.dtype) and precision.is_floating_point):
        raise InputError(f"'{dtype}' is no precision: float32, float64, bfloat16, float16 or auto.")
    _quiet_transformers()
    try:
        where = None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InputError(f"'{device}' is no device: cpu, cuda, mps, ... ({str(error).splitlines()[0]})") from error
    return Explainer.from_pretrained(
        model, device=where, dtype=precision, trust_remote_code=remote, allow_pickle=pickle, truncate=truncate
    )


def _quiet_transformers() -> None:
    try:
        from transformers.utils import logging
    except ImportError:  # from_pretrained says how to get it
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def read(words: list[str], explainer: Explainer, text: str | None = None) -> list[Any]:
    """Inputs from the command line's words: stdin, patterns and files resolved."""
    out: list[Any] = []
    for word in words:
        if word == "-":
            out += _lines()
            continue
        found = sorted(glob.glob(word)) if any(c in word for c in GLOB) and not is_file(word) else []
        if explainer.modality == "text":
            out += [_text(name) for name in found or [word]]
        elif found or not any(c in word for c in GLOB) or is_file(word):
            out += found or [word]
        else:
            raise InputError(f"No file fits the pattern '{word}'.")
    if not out:
        raise InputError("There is no input: give texts or files, or pipe them in with `-`.")
    if text is not None:
        out = [(item, text) for item in out]
    if explainer.modality == "series":
        return [_table(item) for item in out]
    return out


def _lines() -> list[str]:
    try:
        return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"What came through stdin is no text: {error}.") from error


def _text(word: str) -> str:
    """A text, or the text in the file of that name."""
    if not is_file(word):
        return word
    typer.echo(f"whence: reading the file {word}.", err=True)
    try:
        return Path(word).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{word}' is no text that can be read: {error}.") from error


def _table(path: str) -> Any:
    import numpy as np

    try:
        return np.genfromtxt(path, delimiter=",", skip_header=_has_header(path))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is no table of numbers: {error}.") from error


def _has_header(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return int(any(c.isalpha() and c not in "eEnaNif" for c in file.readline()))


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


def deliver(explanations: Explanations, out: Path | None, as_json: bool) -> None:
    """To the file, or to stdout."""
    if out is not None:
        explanations.save(out)
        typer.echo(f"whence: wrote {out}", err=True)
    elif as_json:
        from .store import to_json

        typer.echo(to_json([e.record() for e in explanations]).decode())
    else:
        explanations.show()


@app.command()
def explain(
    inputs: Inputs,
    model: Model,
    method: Annotated[str, typer.Option(help="A name from `whence methods`.")] = "conservative-lrp",
    target: Target = None,
    text: Text = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    option: Option = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs explained together.")] = 8,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
    truncate: Truncate = False,
) -> None:
    """Explain what a model says about each input.

    **Examples**

    `whence explain "a gripping film" --model my-model`

    `whence explain 'photos/*.jpg' --model google/vit-base-patch16-224 --target "tabby cat" --out why.html`

    `cat reviews.txt | whence explain - --model my-model --out reviews.json`
    """
    with guarded():
        _check_out(out)
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        items = read(inputs, explainer, text)
        found = explainer(items, method, target_of(target), batch_size=batch_size, **options_of(option))
        deliver(found, out, as_json)


@app.command()
def compare(
    inputs: Inputs,
    model: Model,
    methods: Annotated[str | None, typer.Option(help="Names with commas between. Default: all that apply.")] = None,
    targets: Annotated[str | None, typer.Option(help="Classes with commas between. Default: the prediction.")] = None,
    text: Text = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
    truncate: Truncate = False,
) -> None:
    """Show several methods, or several targets, side by side.

    **Example**

    `whence compare cat-and-dog.jpg --model my-vit --targets "tabby cat,beagle" --out report.html`
    """
    with guarded():
        _check_out(out)
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        names = None if methods is None else [m.strip() for m in methods.split(",")]
        found = Explanations()
        for item in read(inputs, explainer, text):
            found += explainer.compare(item, names, targets_of(targets))
        deliver(found, out, as_json)


@app.command()
def check(
    model: Model,
    input: Annotated[str | None, typer.Option(help="An input to look at the model with.")] = None,
    text: Text = None,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
) -> None:
    """Say what Whence sees in a model: streams, attention, coverage, conservation, and which methods apply."""
    with guarded():
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, True)
        given = None if input is None else read([input], explainer, text)[0]
        typer.echo(str(look(explainer, given)))


@app.command()
def methods(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the methods: what each is, costs and needs, and its paper; with --json its options too."""
    if as_json:
        typer.echo(json.dumps(all_methods().rows(), indent=2, default=str))
        return
    typer.echo(all_methods().table(shutil.get_terminal_size().columns if sys.stdout.isatty() else None))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the report is written.")] = Path("whence-report.html"),
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = True,
) -> None:
    """Explain real sentences and pictures with the models that come with Whence, and write a report."""
    from .demo import report

    with guarded():
        _check_out(out)
        path = report(out)
        typer.echo(str(path))
        if open_it and sys.stdout.isatty():
            typer.launch(str(path))


def _check_out(out: Path | None) -> None:
    """Say before the work is done that its result could not be written."""
    from .explanation import DRAWN
    from .store import WRITERS

    if out is None:
        return
    known = [*DRAWN, *WRITERS]
    if out.suffix.lower() not in known:
        raise InputError(f"'{out.name}' has none of the known endings: {', '.join(known)}.")
    folder = next(p for p in [out.parent, *out.parent.parents] if p.exists())
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise WriteError(f"'{out}' cannot be written: '{folder}' is no directory that can be written to.")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"whence {metadata.version('whence')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """From where did this prediction come?"""
