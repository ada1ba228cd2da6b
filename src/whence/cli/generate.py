"""``whence generate``."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Device, Dtype, Model, Option, Pickle, Remote, guarded, load, options_of
from .output import Out, check_out, deliver


def generate(
    prompt: Annotated[str, typer.Argument(help="What the model is given.")],
    model: Model,
    continuation: Annotated[str | None, typer.Option(help="What it is to have written. Default: it writes.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens it writes, at most.")] = 32,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a message: use the chat template.")] = False,
    method: Annotated[str, typer.Option(help="A name from `whence methods`.")] = "conservative-lrp",
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    option: Option = None,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
) -> None:
    """Let a language model write, and explain every token that it wrote.

    **Example**

    `whence generate "The capital of Italy is" --model my-model --tokens 8 --out why.html`
    """
    with guarded():
        check_out(out)
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, truncate=False)
        given = [{"role": "user", "content": prompt}] if chat else prompt
        found = explainer.generate(given, continuation, method=method, max_new_tokens=tokens, **options_of(option))
        if out is None and not as_json:
            typer.echo(found.text)
        deliver(found, out, as_json)
