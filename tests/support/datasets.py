"""Files of datasets, and what is read from them."""

from __future__ import annotations

import gzip


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def triples(items):
    return [(item.id, item.input, item.label) for item in items]
