"""``whence serve``."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from .._utils.optional_imports import need
from ..errors import InputError
from ..inputs.pretrained import quiet
from . import options
from .exit_codes import report_errors
from .parsing import parse_dtype

ServedModels = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="A directory or hub id; several may be given. Default: the shipped models."),
]


def serve(
    model: ServedModels = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than 127.0.0.1 are seen by others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 7860,
    auth: Annotated[str | None, typer.Option(help="user:password-file, asked for before the page is shown.")] = None,
    places: Annotated[int, typer.Option(min=1, help="Explanations at once, each with a copy of the model.")] = 1,
    max_characters: Annotated[int, typer.Option(min=1, help="Of a text.")] = 10_000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Of a picture.")] = 20_000_000,
    max_upload: Annotated[int, typer.Option(min=1, help="Bytes of an uploaded file.")] = 10 * 2**20,
    max_tokens: Annotated[int, typer.Option(min=1, help="That a language model writes.")] = 64,
    log_inputs: Annotated[bool, typer.Option("--log-inputs", help="Write visitors' texts to the log, too.")] = False,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
) -> None:
    """Open a page on which anyone can ask a model why.

    **Examples**

    `whence serve`

    `whence serve --model my-classifier --model google/vit-base-patch16-224 --port 8000`
    """
    with report_errors():
        need("gradio", "the web page", "app")
        need("cachetools", "the web page", "app")
        from ..app.limits import Limits
        from ..app.log import Log
        from ..app.model_registry import ModelRegistry
        from ..app.request_filter import is_loopback
        from ..app.serve import credentials
        from ..app.serve import serve as run_server
        from ..app.service import ExplanationService

        user_and_password = None if auth is None else credentials(auth)
        if not is_loopback(host):
            advice = "" if user_and_password else " Anyone who reaches it can use it: --auth asks for a password."
            typer.echo(f"whence: the page can be reached from other machines at {host}.{advice}", err=True)
        port = _check_port(host, port)
        quiet()
        if model:
            models = ModelRegistry.load(
                model,
                device=device,
                dtype=parse_dtype(dtype),
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )
        else:
            models = ModelRegistry.shipped()
        limits = Limits(max_characters, max_pixels, max_upload, tokens=max_tokens)
        typer.echo(
            f"whence: open http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port} (Ctrl-C ends it)", err=True
        )
        service = ExplanationService(models, limits, Log(inputs=log_inputs), slots=places)
        run_server(service, host, port, user_and_password)


def _check_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0; raise if the server cannot listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise InputError(f"The page cannot be served at {host}:{port}: {error}. Choose another --port.") from error
        return int(probe.getsockname()[1])
