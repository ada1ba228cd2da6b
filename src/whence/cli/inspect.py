"""``whence check``, ``whence methods`` and ``whence demo``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..evaluation.model_check import check as check_model
from ..methods.registry import list_methods
from . import options
from .demo import write_report
from .exit_codes import report_errors
from .inputs import read_inputs
from .output import check_output_path

PATENT = (
    "LRP: yes marks forms of layer-wise relevance propagation. Its inventors call LRP patented, free of charge for "
    "personal and scientific purposes: see docs/legal.md before commercial use."
)


def check(
    model: options.Model,
    input: Annotated[str | None, typer.Option(help="An input to look at the model with.")] = None,
    text: options.Text = None,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    as_json: options.AsJson = False,
) -> None:
    """Say whether explanations of a model can be trusted (yes, with care, no), and why not; with --input, on trial."""
    with report_errors():
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, True)
        sample = None if input is None else read_inputs([input], explainer, text)[0]
        verdict = check_model(explainer, sample)
        typer.echo(json.dumps(verdict.record(), indent=2) if as_json else str(verdict))


def methods(as_json: options.AsJson = False) -> None:
    """List the methods: what each is, costs and needs, and its paper; with --json its options too."""
    if as_json:
        typer.echo(json.dumps(list_methods().rows(), indent=2, default=str))
        return
    typer.echo(list_methods().table(shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    typer.echo(PATENT, err=True)


def demo(
    out: Annotated[Path, typer.Option(help="Where the report is written.")] = Path("whence-report.html"),
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = True,
) -> None:
    """Explain real sentences and pictures with the models that come with Whence, and write a report."""
    with report_errors():
        check_output_path(out)
        path = write_report(out)
        typer.echo(str(path))
        if open_it and sys.stdout.isatty():
            typer.launch(str(path))
