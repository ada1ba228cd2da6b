"""Files damaged in the ways in which files are: cut off, bits turned, values of another type, sizes that are lies."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

DEEP = 3000  # more than Python's own limit of recursion

#: what may stand in the place of a value
VALUES: tuple[Callable[[Any], Any], ...] = (
    lambda _: None,
    lambda _: "",
    lambda _: "a\ud800b",
    lambda _: -1,
    lambda _: 0,
    lambda _: 10**40,
    lambda _: 1 << 40,
    lambda _: float("nan"),
    lambda _: True,
    lambda _: [],
    lambda _: {},
    lambda value: [value],
    lambda value: [value, value],
    lambda value: {"x": value},
    lambda value: str(value)[:50],
)


def bytes_damaged(content: bytes, rng: random.Random) -> bytes:
    """A file's content, damaged in one way."""
    at, length = rng.randrange(len(content) or 1), rng.choice((1, 4, 64))
    ways: list[Callable[[], bytes]] = [
        lambda: content[:at],
        lambda: content[at:],
        lambda: content[:at] + content[at + length :],
        lambda: content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
        lambda: content[:at] + b"\xff" * length + content[at + length :],
        lambda: content[:at] + b"\x00" * length + content[at + length :],
        lambda: content[:at] + rng.randbytes(length) + content[at + length :],
        lambda: content[:at] + content[at : at + length] * 9 + content[at:],
        lambda: content + rng.randbytes(length),
        lambda: (1 << 62).to_bytes(8, "little") + content[8:],
        lambda: rng.randbytes(length),
        lambda: b"",
    ]
    weights = [3, 1, 2, 8, 2, 2, 3, 2, 1, 1, 1, 1]
    return rng.choices(ways, weights)[0]() if content else rng.randbytes(length)


def json_damaged(content: bytes, rng: random.Random) -> bytes:
    """A JSON document in which one value is another, missing, or nested too deep; or bytes damaged."""
    if rng.random() < 0.3:
        return bytes_damaged(content, rng)
    document = copy.deepcopy(json.loads(content))
    places = list(_places(document))
    if rng.random() < 0.05 or not places:
        return b'{"a":' * DEEP + b"1" + b"}" * DEEP
    holder, key = rng.choice(places)
    if rng.random() < 0.2:
        del holder[key]
    elif rng.random() < 0.05:
        return json.dumps(document).encode().replace(b"[", b"[" * DEEP, 1)
    else:
        holder[key] = rng.choice(VALUES)(holder[key])
    return json.dumps(document).encode()


def _places(tree: Any, most: int = 4000) -> Iterator[tuple[Any, Any]]:
    """Where values stand in a tree: in what, and under which key; near its root as often as far from it."""
    waiting = [tree]
    while waiting and most > 0:
        here = waiting.pop(0)
        keys = list(here) if isinstance(here, dict) else range(min(len(here), 8))
        for key in keys:
            most -= 1
            yield here, key
            if isinstance(here[key], dict | list):
                waiting.append(here[key])
