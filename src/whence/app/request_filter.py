"""Which addresses the server answers at, how much it lets itself be sent, and what it tells browsers not to do.

Gradio has more doors than the page needs: some hand on what stands at other addresses of the network, some take files
by their address or their path. Here only those are open that the page and the interface for programs use, and nothing
that is sent makes the server fetch a file, or read one that was not uploaded.
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
from .upload_cleanup import tidy

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Reply = tuple[int, str]  # a status and a sentence

EXAMPLES = "examples"  # in the folder: pictures of the models'
API = "/gradio_api"
SHORT = "/api/explain"  # of the interface for programs
UPLOAD = f"{API}/upload"
FILE = f"{API}/file="
WHOLE = {
    "/", "/health", "/login", "/logout", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json",
    UPLOAD,
    *(f"{API}/{name}" for name in (
        "info", "openapi.json", "app_id", "login_check", "token", "user", "startup-events", "queue/join", "queue/data",
        "run/predict", "cancel", "reset", "upload_progress", "theme.css", "api/explain", "run/explain", "call/explain",
    )),
}  # fmt: skip
BEGINNINGS = ("/assets/", "/static/", "/svelte/", f"{API}/heartbeat/", f"{API}/call/explain/")
JSON = 64 * 2**10  # bytes of a question beside its text and its picture
#: the browser itself forbids whatever would leave the machine
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
CLOSED: Reply = (404, "There is nothing here.")
ELSEWHERE: Reply = (421, "This page is for this machine alone: open it at 127.0.0.1 or localhost.")
FOREIGN: Reply = (400, "Files are uploaded: neither an address nor a path is taken.")


class TooMuchError(Exception):
    """More was sent than is taken."""


class Doors:
    """Stands before an ASGI application.

    Args:
        app: the application.
        folder: the only one from which files are served.
        limits: how much may be sent.
    """

    def __init__(self, app: Any, folder: Path, limits: Limits) -> None:
        self.app, self.folder, self.limits = app, folder.resolve(), limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        if path == SHORT:
            path = scope["path"] = API + SHORT
            scope["raw_path"] = path.encode()
        here = _is_meant_for_here(scope)
        if not here or not self._is_open(path):
            await _reply(CLOSED if here else ELSEWHERE, send)
            return
        measured = Measured(receive, send, self.limits.upload + JSON if path == UPLOAD else self._question())
        try:
            measured.expect(int(dict(scope["headers"]).get(b"content-length") or 0))
            receive = measured.receive
            if scope["method"] == "POST" and path != UPLOAD:
                body = await _body(receive)
                if not all(map(self._is_ours, _paths(body))):
                    await _reply(FOREIGN, send)
                    return
                receive = _again(body, receive)
            await self.app(scope, receive, measured.send)
        except Exception:
            if not measured.is_too_much:
                raise
        if measured.is_too_much:
            await _reply((413, f"Too large: {self.limits.upload_size} at most."), send)
        elif path == UPLOAD:
            await asyncio.to_thread(tidy, self.folder, keep=self.folder / EXAMPLES)

    def _is_open(self, path: str) -> bool:
        if path.startswith(FILE):
            return self._is_ours(path.removeprefix(FILE))
        return path in WHOLE or (path.startswith(BEGINNINGS) and ".." not in path)

    def _is_ours(self, path: str) -> bool:
        """Whether a path leads to something in the folder."""
        try:
            return Path(path).is_absolute() and Path(path).resolve().is_relative_to(self.folder)
        except (OSError, ValueError, RuntimeError):  # no path at all, or one that leads in circles
            return False

    def _question(self) -> int:
        """Bytes of the largest question: a picture as base64, and two texts whose characters are written as escapes."""
        return self.limits.upload * 4 // 3 + 2 * 12 * self.limits.characters + JSON


class Measured:
    """What is sent, until it is more than is taken; whatever is answered then is held back.

    Args:
        receive: where it comes from.
        send: where the answer goes.
        most: bytes.
    """

    def __init__(self, receive: Receive, send: Send, most: int) -> None:
        self._receive, self._send, self.left = receive, send, most

    @property
    def is_too_much(self) -> bool:
        """Whether more has come, or will."""
        return self.left < 0

    def expect(self, size: int) -> None:
        """So much is announced."""
        if size > self.left:
            self.left = -1
            raise TooMuchError

    async def receive(self) -> Message:
        """The next piece."""
        message = await self._receive()
        self.left -= len(message.get("body", b""))
        if self.is_too_much:
            raise TooMuchError
        return message

    async def send(self, message: Message) -> None:
        """A piece of the answer."""
        if not self.is_too_much:
            await self._send(message)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_meant_for_here(scope: Message) -> bool:
    """Whether a request over loopback names this machine: a foreign page may give its own name to this address."""
    if not is_loopback(str((scope.get("server") or ("",))[0])):
        return True
    try:
        name = urlsplit("//" + dict(scope["headers"]).get(b"host", b"").decode("latin-1")).hostname
    except ValueError:  # no name at all
        return False
    return is_loopback(name or "")


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read, once more; then what comes after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def _paths(body: bytes) -> Iterator[str]:
    """Where files that are named in a question are said to be."""
    try:
        left = [json.loads(body)]
    except (ValueError, RecursionError):  # whoever reads it next says so
        return
    while left:
        found = left.pop()
        if isinstance(found, dict):
            yield from (found[key] for key in found if key == "path" and isinstance(found[key], str))
        if isinstance(found, dict | list):
            left += found.values() if isinstance(found, dict) else found


def _with_headers(send: Send) -> Send:
    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            ours = {name for name, _ in HEADERS}
            message["headers"] = [h for h in message.get("headers", ()) if h[0].lower() not in ours] + HEADERS
        await send(message)

    return told


async def _reply(reply: Reply, send: Send) -> None:
    status, sentence = reply
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
