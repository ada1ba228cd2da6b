"""``whence generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from . import options
from .exit_codes import report_errors
from .output import Out, check_output_path, write_explanations
from .parsing import parse_options


def generate(
    model: options.Model,
    prompt: Annotated[str | None, typer.Argument(help="What the model is given; not for a transcript.")] = None,
    image: Annotated[Path | None, typer.Option(help="An image that the prompt is about.")] = None,
    audio: Annotated[Path | None, typer.Option(help="Audio that the model transcribes.")] = None,
    continuation: Annotated[str | None, typer.Option(help="What it is to have written. Default: it writes.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens it writes, at most.")] = 32,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a message: use the chat template.")] = False,
    method: options.Method = options.DEFAULT_METHOD,
    out: Out = None,
    as_json: options.AsJson = False,
    option: options.MethodOptions = None,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
) -> None:
    """Let a language model write, and explain every token that it wrote.

    **Examples**

    `whence generate "The capital of Italy is" --model my-model --tokens 8 --out why.html`

    `whence generate "What is in the image?" --image photo.jpg --model my-llava --out why.html`

    `whence generate --audio speech.flac --model my-whisper --out why.html`
    """
    with report_errors():
        check_output_path(out)
        if (prompt is None) == (audio is None):
            raise InputError("Give a prompt, with --image if it is about an image; or --audio for a transcript.")
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, truncate=False)
        messages = [{"role": "user", "content": prompt}] if chat and prompt is not None else prompt
        generation = explainer.generate(
            messages,
            continuation,
            image=image,
            audio=audio,
            method=method,
            max_new_tokens=tokens,
            **parse_options(option),
        )
        if out is None and not as_json:
            typer.echo(generation.text)
        write_explanations(generation, out, as_json)
