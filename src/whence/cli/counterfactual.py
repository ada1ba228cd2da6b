"""``whence counterfactual``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..counterfactuals import save
from ..counterfactuals.counterfactual import BUDGET
from ..counterfactuals.counterfactual import counterfactual as find_counterfactual
from ..counterfactuals.result import WRITERS, to_json
from . import options
from .exit_codes import report_errors
from .inputs import Inputs, read_inputs
from .output import check_output_path
from .parsing import parse_options, parse_target


def counterfactual(
    inputs: Inputs,
    model: options.Model,
    method: Annotated[str, typer.Option(help="A name from `whence methods`: its scores say where to begin.")] = (
        options.DEFAULT_METHOD
    ),
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Class that the model shall name instead. Default: any other.")
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option(
            help="How words are removed: delete (default) unk mask pad hide; patches: blur (default) mean zero."
        ),
    ] = None,
    replace_with: Annotated[
        str | None, typer.Option(help="A masked language model: words are exchanged for words that it proposes.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Changed inputs that are tried, at most.")] = BUDGET,
    text: options.Text = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write: .html .json .txt, .png for the picture. Default: print.")
    ] = None,
    as_json: options.AsJson = False,
    option: options.MethodOptions = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs run together.")] = 16,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    truncate: options.Truncate = False,
) -> None:
    """Find the smallest set of words, or patches, whose removal or replacement flips the prediction.

    **Examples**

    `whence counterfactual "a gripping film" --model my-model`

    `whence counterfactual "a gripping film" --model my-model --replace-with bert-base-uncased`

    `whence counterfactual cat.jpg --model my-vit --target "beagle" --remove mean --out otherwise.html`
    """
    with report_errors():
        check_output_path(out, list(WRITERS))
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        filler = None
        if replace_with is not None:
            filler = options.load_explainer(replace_with, device, dtype, trust_remote_code, allow_pickle, True)
        found = [
            find_counterfactual(
                explainer, item, method, parse_target(target), remove=remove, replace=filler, budget=budget,
                batch_size=batch_size, **parse_options(option),
            )
            for item in read_inputs(inputs, explainer, text)
        ]  # fmt: skip
        if out is not None:
            save(found, out)
            typer.echo(f"whence: wrote {out}", err=True)
        else:
            typer.echo(to_json(found).decode() if as_json else "\n\n".join(map(str, found)))
