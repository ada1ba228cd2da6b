"""Which addresses the server answers at, how much it lets itself be sent, and what it tells browsers not to do.

Gradio has more doors than the page needs: some hand on what stands at other addresses of the network, some take files
by their address. Here only those are open that the page and the interface for programs use, and nothing that is sent
can make the server fetch anything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from .limits import Limits
from .tidy import tidy

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
        "cancel", "reset", "upload_progress", "theme.css", "api/explain", "run/explain", "call/explain",
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
FOREIGN: Reply = (400, "Files are uploaded, not fetched: an address is not taken.")


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
        if not self._is_open(path):
            return await _reply(CLOSED, send)
        most = self.limits.upload + JSON if path == UPLOAD else self._question()
        started = False

        async def begun(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            receive = _counted(scope, receive, most)
            if scope["method"] == "POST" and path != UPLOAD:
                body = await _body(receive)
                if any(map(_is_foreign, _paths(body))):
                    return await _reply(FOREIGN, send)
                receive = _again(body, receive)
            await self.app(scope, receive, begun)
            if path == UPLOAD:
                await asyncio.to_thread(tidy, self.folder, keep=self.folder / EXAMPLES)
        except TooMuchError:
            if not started:
                await _reply((413, f"Too large: {_size(self.limits.upload)} at most."), send)

    def _is_open(self, path: str) -> bool:
        if path.startswith(FILE):
            return (self.folder / path.removeprefix(FILE)).resolve().is_relative_to(self.folder)
        return path in WHOLE or (path.startswith(BEGINNINGS) and ".." not in path)

    def _question(self) -> int:
        """Bytes of the largest question: a picture as base64, and two texts whose characters are written as escapes."""
        return self.limits.upload * 4 // 3 + 2 * 12 * self.limits.characters + JSON


def _counted(scope: Message, receive: Receive, most: int) -> Receive:
    """The same, until more has come than is taken."""
    told = dict(scope["headers"]).get(b"content-length", b"0")
    got = 0

    async def counted() -> Message:
        nonlocal got
        if int(told or 0) > most:
            raise TooMuchError
        message = await receive()
        got += len(message.get("body", b""))
        if got > most:
            raise TooMuchError
        return message

    return counted


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


def _is_foreign(path: str) -> bool:
    return "://" in path


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


def _size(count: int) -> str:
    return f"{count / 2**20:g} MiB" if count >= 2**20 else f"{count:,} bytes"
