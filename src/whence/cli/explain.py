"""``whence explain`` and ``whence compare``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..explainer.long_text import windows as explain_in_windows
from ..explanations.explanation import Explanations
from . import options
from .exit_codes import report_errors
from .inputs import Inputs, read_inputs
from .output import Out, check_output_path, write_explanations
from .parsing import parse_options, parse_target, parse_targets


def explain(
    inputs: Inputs,
    model: options.Model,
    method: options.Method = options.DEFAULT_METHOD,
    target: options.Target = None,
    text: options.Text = None,
    out: Out = None,
    as_json: options.AsJson = False,
    option: options.MethodOptions = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs explained together.")] = 8,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    truncate: options.Truncate = False,
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
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        items = read_inputs(inputs, explainer, text)
        method_options: dict[str, Any] = {
            "target": parse_target(target),
            "batch_size": batch_size,
            **parse_options(option),
        }
        if windows:
            explanations = Explanations(explain_in_windows(explainer, item, method, **method_options) for item in items)
        else:
            explanations = explainer(items, method, **method_options)
        write_explanations(explanations, out, as_json)


def compare(
    inputs: Inputs,
    model: options.Model,
    methods: Annotated[str | None, typer.Option(help="Names with commas between. Default: all that apply.")] = None,
    targets: Annotated[str | None, typer.Option(help="Classes with commas between. Default: the prediction.")] = None,
    text: options.Text = None,
    out: Out = None,
    as_json: options.AsJson = False,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    truncate: options.Truncate = False,
) -> None:
    """Show several methods, or several targets, side by side.

    **Example**

    `whence compare cat-and-dog.jpg --model my-vit --targets "tabby cat,beagle" --out report.html`
    """
    with report_errors():
        check_output_path(out)
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        names = None if methods is None else [m.strip() for m in methods.split(",")]
        explanations = Explanations()
        for item in read_inputs(inputs, explainer, text):
            explanations += explainer.compare(item, names, parse_targets(targets))
        write_explanations(explanations, out, as_json)
