"""Options that several commands share, and the loading of a model with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from ..explainer.explainer import Explainer
from ..inputs.pretrained import quiet
from .parsing import parse_dtype

DEFAULT_METHOD = "conservative-lrp"

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


def load_explainer(
    model: str, device: str | None, dtype: str, trust_remote_code: bool, allow_pickle: bool, truncate: bool
) -> Explainer:
    """Load a model with the options of the command line."""
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
