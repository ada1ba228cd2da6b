"""``whence explain`` and ``whence compare``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..explainer.long_text import windows as explain_in_windows
from ..explanations.explanation import Explanations
from .inputs import Inputs, read_inputs
from .options import (
    DEFAULT_METHOD,
    AllowPickle,
    AsJson,
    Device,
    Dtype,
    Method,
    MethodOptions,
    Model,
    Target,
    Text,
    Truncate,
    TrustRemoteCode,
    load_explainer,
    parse_options,
    parse_target,
    parse_targets,
    report_errors,
)
from .output import Out, check_output_path, write_explanations


def explain(
    inputs: Inputs,
    model: Model,
    method: Method = DEFAULT_METHOD,
    target: Target = None,
    text: Text = None,
    out: Out = None,
    as_json: AsJson = False,
    option: MethodOptions = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs explained together.")] = 8,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    truncate: Truncate = False,
    windows: Annotated[bool, typer.Option("--windows", help="Read texts that are too long in windows.")] = False,
) -> None:
    """Explain what a model says about each input.

    **Examples**

    `whence explain "a gripping film" --model my-model`

    `whence explain 'photos/*.jpg' --model google/vit-base-patch16-224 --target "tabby cat" --out why.html`

    `cat reviews.txt | whence explain - --model my-model --out reviews.json`
    """
    with report_errors():
        check_output_path(out)
        explainer = load_explainer(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        items = read_inputs(inputs, explainer, text)
        options: dict[str, Any] = {"target": parse_target(target), "batch_size": batch_size, **parse_options(option)}
        if windows:
            explanations = Explanations(explain_in_windows(explainer, item, method, **options) for item in items)
        else:
            explanations = explainer(items, method, **options)
        write_explanations(explanations, out, as_json)


def compare(
    inputs: Inputs,
    model: Model,
    methods: Annotated[str | None, typer.Option(help="Names with commas between. Default: all that apply.")] = None,
    targets: Annotated[str | None, typer.Option(help="Classes with commas between. Default: the prediction.")] = None,
    text: Text = None,
    out: Out = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    truncate: Truncate = False,
) -> None:
    """Show several methods, or several targets, side by side.

    **Example**

    `whence compare cat-and-dog.jpg --model my-vit --targets "tabby cat,beagle" --out report.html`
    """
    with report_errors():
        check_output_path(out)
        explainer = load_explainer(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        names = None if methods is None else [m.strip() for m in methods.split(",")]
        explanations = Explanations()
        for item in read_inputs(inputs, explainer, text):
            explanations += explainer.compare(item, names, parse_targets(targets))
        write_explanations(explanations, out, as_json)
