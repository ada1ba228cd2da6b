"""The server: the page and its interface for programs, on this machine unless told otherwise."""

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
from .request_filter import Doors
from .service import Desk

PORT = 7860
PATIENCE = 2  # seconds that open pages have when it ends: each holds a connection


def application(desk: Desk, folder: str | Path, auth: tuple[str, str] | None = None) -> Any:
    """The whole as an ASGI application: ``/`` the page, ``/health``, ``/api/explain``.

    Args:
        desk: where questions are answered.
        folder: the only one from which files are served; what is uploaded goes there.
        auth: user and password, if the page is not for all.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    gradio, fastapi = need("gradio", "the web page", "app"), need("fastapi", "the web page", "app")
    from .layout import TITLE, build, head

    app = fastapi.FastAPI(title=TITLE, docs_url=None, redoc_url=None, openapi_url=None)

    def health() -> dict[str, Any]:
        """Whether it is up, and how much it has to do."""
        turns = desk.turns
        return {
            "status": "ok", "version": metadata.version("whence"), "models": list(desk.shelf),
            "serving": turns.serving, "waiting": turns.waiting, "kept_bytes": desk.kept.bytes,
        }  # fmt: skip

    app.add_api_route("/health", health)
    theme = gradio.themes.Base(
        font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"], primary_hue="neutral",
        radius_size="md",
    )  # fmt: skip
    gradio.mount_gradio_app(
        app, build(desk, Path(folder)), "", theme=theme, head=head(desk.limits), auth=auth and _same(auth),
        max_file_size=desk.limits.upload, show_error=False, footer_links=["api"], run_history=False, ssr_mode=False,
        mcp_server=False, enable_monitoring=False, pwa=False,
    )  # fmt: skip
    return Doors(app, Path(folder), desk.limits)


def _same(auth: tuple[str, str]) -> Callable[[str, str], bool]:
    def same(user: str, password: str) -> bool:
        given, known = f"{user}\0{password}".encode(), "\0".join(auth).encode()
        return hmac.compare_digest(given, known)

    return same


def credentials(given: str) -> tuple[str, str]:
    """User and password from ``user:password-file``."""
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


def serve(desk: Desk, host: str = "127.0.0.1", port: int = PORT, auth: tuple[str, str] | None = None) -> None:
    """Serve until it is interrupted."""
    uvicorn = need("uvicorn", "the web page", "app")
    with tempfile.TemporaryDirectory(prefix="whence-", ignore_cleanup_errors=True) as folder:
        app = application(desk, folder, auth)
        desk.log("start", address=f"http://{host}:{port}", models=list(desk.shelf))
        try:
            uvicorn.run(
                app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=PATIENCE
            )
        finally:
            desk.close()
            desk.log("stop")
