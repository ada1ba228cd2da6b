"""Tables of relevance inside the model: heads, layers, residual branches, token pairs."""

from __future__ import annotations

from torch import Tensor

from ..errors import InputError, WhenceError
from ..render.view_model import Floats
from ..results.input_origin import TextOrigin
from ..results.result import Result
from .score_table import Table

ABSENT = {
    "heads": "'{method}' does not say what each head carried",
    "layers": "'{method}' does not say what entered each block",
    "branches": "it was explained without inside=True, which says what each branch wrote",
    "pairs": "it was explained without inside=True, which says what each token drew on",
}


def table(one: Result, what: str, layer: int | None = None) -> Table:
    """Return relevance inside the model, of a batch of one."""
    if what not in ABSENT:
        raise InputError(f"There is no table of '{what}': choose one of {', '.join(ABSENT)}.")
    found: Tensor | None = getattr(one, what)
    if found is None:
        raise WhenceError(f"This explanation has no {what}: {ABSENT[what].format(method=one.method)}.")
    values = _numbers(found[0])
    named = f"{one.method}: {one.target_names[0] if one.target_names else 'the target'}"
    if what == "heads":
        layers, heads = values.shape
        return Table(f"What each head carried, {named}", values, _layers(layers), _numbered(heads), "layer", "head")
    names = token_names(one, values.shape[-1])
    if what == "layers":
        return Table(f"Relevance entering each block, {named}", values, _layers(len(values)), names, "layer", "token")
    if what == "branches":
        rows = tuple(f"{i} {kind}" for i in range(len(values)) for kind in ("attention", "rest"))
        return Table(f"What each branch wrote, {named}", values.reshape(len(rows), -1), rows, names, "branch", "token")
    if layer is None or layer not in range(-len(values), len(values)):
        raise InputError(f"Give the layer of the pairs, 0 to {len(values) - 1}: layer {layer!r} is none of them.")
    at = int(layer) % len(values)
    title = f"From each token to those it drew on in layer {at}, {named}"
    return Table(title, values[at], names, names, "from", "to")


def token_names(one: Result, count: int, stream: str | None = None) -> tuple[str, ...]:
    """Return names of the positions of a stream: tokens of a text, rows and columns of patches, or indices."""
    stream = stream or next(iter(one.streams), "")
    origin = one.origins[0].get(stream) if one.origins else None
    if isinstance(origin, TextOrigin) and len(origin.tokens) == count:
        each = zip(origin.tokens, origin.spans, strict=True)
        return tuple(token if s is None else origin.texts[s.part][s.start : s.end] for token, s in each)
    start = one.patch_start
    if one.grid is not None and count >= start + one.grid[0] * one.grid[1]:
        h, w = one.grid
        patches = [f"{i // w},{i % w}" for i in range(h * w)]
        return (*(f"[{i}]" for i in range(start)), *patches, *(f"[{i}]" for i in range(start + h * w, count)))
    return _numbered(count)


def _numbers(tensor: Tensor) -> Floats:
    found: Floats = tensor.detach().double().cpu().numpy()
    return found


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _layers(count: int) -> tuple[str, ...]:
    return tuple(f"layer {i}" for i in range(count))
