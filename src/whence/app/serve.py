"""The server of the page and of the JSON API, reached from this machine only unless configured otherwise."""

from __future__ import annotations

import hmac
import os
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from .._utils.optional_imports import need
from ..errors import InputError
from .request_filter import RequestFilter
from .service import ExplanationService

PORT = 7860
SHUTDOWN_SECONDS = 2  # for open pages, each of which holds a connection


def application(service: ExplanationService, folder: str | Path, auth: tuple[str, str] | None = None) -> Any:
    """Return the ASGI application with the routes ``/`` (the page), ``/health`` and ``/api/explain``.

    Args:
        service: runs the queries.
        folder: the only folder from which files are served; uploads are stored there.
        auth: user and password, if the page asks for them.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    gradio = need("gradio", "the web page", "app")
    fastapi = need("fastapi", "the web page", "app")
    from .layout import TITLE, build, head

    app = fastapi.FastAPI(title=TITLE, docs_url=None, redoc_url=None, openapi_url=None)

    def health() -> dict[str, Any]:
        """Return the state of the server and its load."""
        return {
            "status": "ok",
            "version": metadata.version("whence"),
            "models": list(service.models),
            "serving": service.queue.serving,
            "waiting": service.queue.waiting,
            "kept_bytes": service.cache.bytes,
        }

    app.add_api_route("/health", health)
    theme = gradio.themes.Base(
        font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"], primary_hue="neutral",
        radius_size="md",
    )  # fmt: skip
    gradio.mount_gradio_app(
        app, build(service, Path(folder)), "", theme=theme, head=head(service.limits),
        auth=auth and _password_check(auth), max_file_size=service.limits.upload, show_error=False,
        footer_links=["api"], run_history=False, ssr_mode=False, mcp_server=False, enable_monitoring=False, pwa=False,
    )  # fmt: skip
    return RequestFilter(app, Path(folder), service.limits)


def _password_check(auth: tuple[str, str]) -> Callable[[str, str], bool]:
    """Return a function that compares a user and a password in constant time."""
    expected = "\0".join(auth).encode()

    def matches(user: str, password: str) -> bool:
        return hmac.compare_digest(f"{user}\0{password}".encode(), expected)

    return matches


def credentials(given: str) -> tuple[str, str]:
    """Read user and password from ``user:password-file``."""
    user, colon, path = given.partition(":")
    if not user or not colon:
        raise InputError("--auth is given as user:password-file, the file holding the password.")
    try:
        password = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The password file '{path}' cannot be read: {error}.") from error
    if not password:
        raise InputError(f"The password file '{path}' is empty.")
    return user, password


def serve(
    service: ExplanationService, host: str = "127.0.0.1", port: int = PORT, auth: tuple[str, str] | None = None
) -> None:
    """Serve until interrupted."""
    uvicorn = need("uvicorn", "the web page", "app")
    with tempfile.TemporaryDirectory(prefix="whence-", ignore_cleanup_errors=True) as folder:
        app = application(service, folder, auth)
        service.log("start", address=f"http://{host}:{port}", models=list(service.models))
        try:
            uvicorn.run(
                app,
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        finally:
            service.close()
            service.log("stop")
