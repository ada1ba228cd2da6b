"""The command line: ``whence explain``, ``compare``, ``check``, ``evaluate``, ``run`` and others.

Results go to stdout or the named file, progress and messages to stderr. Exit codes: 0 success, 1 failure,
2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from .counterfactual import counterfactual
from .evaluate import evaluate, measures
from .explain import compare, explain
from .generate import generate
from .inspect import check, demo, methods
from .locate import locate
from .probe import probe
from .run import run, summarize
from .serve import serve

app = typer.Typer(
    name="whence",
    help="From where did this prediction come? Explain what any PyTorch Transformer said.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    explain,
    compare,
    counterfactual,
    generate,
    locate,
    check,
    evaluate,
    run,
    summarize,
    probe,
    serve,
    methods,
    measures,
    demo,
):
    app.command()(command)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"whence {metadata.version('whence')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """From where did this prediction come?"""
