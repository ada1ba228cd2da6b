"""Output of explanations, to a file or to stdout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError, WriteError
from ..explainer.generation import Generation
from ..explanations.explanation import RENDERERS, Explanations
from ..results.serialization import WRITERS, to_json

Out = Annotated[
    Path | None, typer.Option(help="File to write: .html .png .svg .pdf .tex .json .safetensors. Default: print.")
]


def write_explanations(explanations: Explanations | Generation, out: Path | None, as_json: bool) -> None:
    """Write explanations to a file, or print them."""
    if out is not None:
        explanations.save(out)
        typer.echo(f"whence: wrote {out}", err=True)
    elif as_json:
        typer.echo(to_json([e.record() for e in explanations]).decode())
    else:
        explanations.show()


def check_output_path(out: Path | None, known: Sequence[str] = (*RENDERERS, *WRITERS)) -> None:
    """Raise, before the work begins, if its result could not be written or its file type is not known."""
    if out is None:
        return
    if out.suffix.lower() not in known:
        raise InputError(f"'{out.name}' has none of the known endings: {', '.join(known)}.")
    folder = next(p for p in [out.parent, *out.parent.parents] if p.exists())
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise WriteError(f"'{out}' cannot be written: '{folder}' is no directory that can be written to.")
