"""The filter in front of the web server: which paths it serves, how much it reads, which headers it sends.

Gradio serves more routes than the page needs: some forward requests to other hosts, some read files by URL or path.
Only the routes of the page and of the JSON API are served here, and no request makes the server fetch a URL or read a
file that was not uploaded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .limits import Limits
from .upload_cleanup import remove_oldest

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Reply = tuple[int, str]  # a status and a sentence

EXAMPLES = "examples"  # subfolder of the served folder: the models' example images
API = "/gradio_api"
EXPLAIN = "/api/explain"  # short path of the JSON API
UPLOAD = f"{API}/upload"
FILE = f"{API}/file="
PATHS = {
    "/", "/health", "/login", "/logout", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json",
    UPLOAD,
    *(f"{API}/{name}" for name in (
        "info", "openapi.json", "app_id", "login_check", "token", "user", "startup-events", "queue/join", "queue/data",
        "run/predict", "cancel", "reset", "upload_progress", "theme.css", "api/explain", "run/explain", "call/explain",
    )),
}  # fmt: skip
PREFIXES = ("/assets/", "/static/", "/svelte/", f"{API}/heartbeat/", f"{API}/call/explain/")
JSON_BYTES = 64 * 2**10  # of a request, beside its text and its image
#: makes the browser itself refuse any connection to another host
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws: wss:; worker-src 'self' blob:; "
    "frame-ancestors 'self'; base-uri 'self'; form-action 'self'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
NOT_FOUND: Reply = (404, "There is nothing here.")
WRONG_HOST: Reply = (421, "This page is for this machine alone: open it at 127.0.0.1 or localhost.")
FOREIGN_FILE: Reply = (400, "Files are uploaded: neither an address nor a path is taken.")


class BodyTooLargeError(Exception):
    """A request has more bytes than the server reads."""


class RequestFilter:
    """ASGI middleware that passes on only the requests that the page and the JSON API need.

    Args:
        app: the application.
        folder: the only folder from which files are served.
        limits: how much may be sent.
    """

    def __init__(self, app: Any, folder: Path, limits: Limits) -> None:
        self.app = app
        self.folder = folder.resolve()
        self.limits = limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection; websockets are not served."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, _with_headers(send))

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        if path == EXPLAIN:
            path = API + EXPLAIN
            scope = {**scope, "path": path, "raw_path": path.encode()}
        if not _names_this_machine(scope):
            await _reply(WRONG_HOST, send)
        elif not self._is_served(path):
            await _reply(NOT_FOUND, send)
        else:
            await self._forward(scope, path, receive, send)

    async def _forward(self, scope: Message, path: str, receive: Receive, send: Send) -> None:
        """Pass a request to the application, unless it is too large or refers to a file that was not uploaded."""
        limit = BodyLimit(receive, send, self._max_bytes(path))
        try:
            limit.expect(int(dict(scope["headers"]).get(b"content-length") or 0))
            receive = limit.receive
            if scope["method"] == "POST" and path != UPLOAD:
                body = await _read_body(receive)
                if not all(map(self._is_in_folder, _file_paths(body))):
                    await _reply(FOREIGN_FILE, send)
                    return
                receive = _replay(body, receive)
            await self.app(scope, receive, limit.send)
        except Exception:
            if not limit.exceeded:
                raise
        if limit.exceeded:
            await _reply((413, f"Too large: {self.limits.upload_size} at most."), send)
        elif path == UPLOAD:
            await asyncio.to_thread(remove_oldest, self.folder, exclude=self.folder / EXAMPLES)

    def _is_served(self, path: str) -> bool:
        if path.startswith(FILE):
            return self._is_in_folder(path.removeprefix(FILE))
        return path in PATHS or (path.startswith(PREFIXES) and ".." not in path)

    def _is_in_folder(self, path: str) -> bool:
        """Return whether an absolute path leads into the served folder."""
        try:
            return Path(path).is_absolute() and Path(path).resolve().is_relative_to(self.folder)
        except (OSError, ValueError, RuntimeError):  # not a path, or a loop of links
            return False

    def _max_bytes(self, path: str) -> int:
        """Return the size of the largest request: a file, or an image as base64 with two texts as JSON escapes."""
        if path == UPLOAD:
            return self.limits.upload + JSON_BYTES
        return self.limits.upload * 4 // 3 + 2 * 12 * self.limits.characters + JSON_BYTES


class BodyLimit:
    """A connection whose request may have a limited number of bytes; once exceeded, no response is sent through it.

    Args:
        receive: the connection's channel for the request.
        send: its channel for the response.
        max_bytes: of the request's body.
    """

    def __init__(self, receive: Receive, send: Send, max_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._remaining = max_bytes

    @property
    def exceeded(self) -> bool:
        """Whether the request has, or announces, too many bytes."""
        return self._remaining < 0

    def expect(self, size: int) -> None:
        """Raise if the announced size is too large."""
        if size > self._remaining:
            self._remaining = -1
            raise BodyTooLargeError

    async def receive(self) -> Message:
        """Return the next chunk of the request; raise if there are too many bytes."""
        message = await self._receive()
        self._remaining -= len(message.get("body", b""))
        if self.exceeded:
            raise BodyTooLargeError
        return message

    async def send(self, message: Message) -> None:
        """Send a chunk of the response."""
        if not self.exceeded:
            await self._send(message)


def is_loopback(host: str) -> bool:
    """Return whether a server that listens at this host is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names_this_machine(scope: Message) -> bool:
    """Return whether the Host header of a request over loopback names this machine.

    A foreign page can let its own name resolve to the loopback address (DNS rebinding).
    """
    if not is_loopback(str((scope.get("server") or ("",))[0])):
        return True
    try:
        name = urlsplit("//" + dict(scope["headers"]).get(b"host", b"").decode("latin-1")).hostname
    except ValueError:  # not a host name
        return False
    return is_loopback(name or "")


async def _read_body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives a body that was read already, then what follows it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _file_paths(body: bytes) -> Iterator[str]:
    """Yield the value of every ``path`` in a JSON body: Gradio opens the files that they name."""
    try:
        pending = [json.loads(body)]
    except (ValueError, RecursionError):  # reported by the application
        return
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if isinstance(value.get("path"), str):
                yield value["path"]
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _with_headers(send: Send) -> Send:
    """Return a channel that adds the security headers to each response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            replaced = {name for name, _ in HEADERS}
            others = [header for header in message.get("headers", ()) if header[0].lower() not in replaced]
            message = {**message, "headers": others + HEADERS}
        await send(message)

    return send_with_headers


async def _reply(reply: Reply, send: Send) -> None:
    status, sentence = reply
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
