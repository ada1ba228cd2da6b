"""``whence explain`` and ``whence compare``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..explainer.long_text import windows as in_windows
from ..explanations.explanation import Explanations
from .inputs import Inputs, read
from .options import (  # fmt: skip
    Device,
    Dtype,
    Model,
    Option,
    Pickle,
    Remote,
    Target,
    Text,
    Truncate,
    guarded,
    load,
    options_of,
    target_of,
    targets_of,
)
from .output import Out, check_out, deliver


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
    windows: Annotated[bool, typer.Option("--windows", help="Read texts that are too long in windows.")] = False,
) -> None:
    """Explain what a model says about each input.

    **Examples**

    `whence explain "a gripping film" --model my-model`

    `whence explain 'photos/*.jpg' --model google/vit-base-patch16-224 --target "tabby cat" --out why.html`

    `cat reviews.txt | whence explain - --model my-model --out reviews.json`
    """
    with guarded():
        check_out(out)
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        items = read(inputs, explainer, text)
        asked: dict[str, Any] = {"target": target_of(target), "batch_size": batch_size, **options_of(option)}
        if windows:
            found = Explanations(in_windows(explainer, item, method, **asked) for item in items)
        else:
            found = explainer(items, method, **asked)
        deliver(found, out, as_json)


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
        check_out(out)
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        names = None if methods is None else [m.strip() for m in methods.split(",")]
        found = Explanations()
        for item in read(inputs, explainer, text):
            found += explainer.compare(item, names, targets_of(targets))
        deliver(found, out, as_json)
