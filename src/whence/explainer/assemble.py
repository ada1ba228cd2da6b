"""Build an explanation from what a method read in a run: scores spread over the user's inputs, with all metadata."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._utils.unwrapped import unwrapped
from ..errors import ModelError
from ..explanations.explanation import Explanation
from ..methods.base import Method, Reading
from ..runs.run import Run
from ..runs.token_streams import Stream, entries, in_order, split, tile_atoms
from ..targets.seed import Seed, labels_of, prediction_names, target_names
from ..tracing.axes import Dim, size_of


@dataclass(frozen=True)
class Unnamed:
    """An explanation whose classes have no names yet: finding them reads values into Python.

    Attributes:
        explanation: the explanation.
        other: ``[batch]``, the class that its target is contrasted with, if any.
        function: the name of the target, where it is a function.
        length: the number of positions that the model answers at; ``None`` if it gives one answer.
        first: how many of these, at the start, are of tokens of the model's own (a tuned prompt).
    """

    explanation: Explanation
    other: Tensor | None
    function: str
    length: int | None
    first: int = 0

    def named(self) -> Explanation:
        """Return the explanation with the names of its target and of its prediction."""
        e = self.explanation
        of_target = [self.function] * len(e) if e.target is None else target_names(e.target, self.other, e.labels)
        predicted = prediction_names(e.prediction, e.logits, e.labels, e.task)
        return replace(e, target_names=tuple(of_target), prediction_names=predicted)


def assemble(run: Run, reading: Reading, method: Method, options: dict[str, Any]) -> Unnamed:
    """Return the explanation of a run, from what a method read."""
    layout = _Layout(run, reading, method.name)
    image = next((s.tensor.shape[-2:] for s in run.trace.sources if s.tensor.dim() == 4), None)
    labels = labels_of(run.model)
    names = labels if len(labels) == run.seed.logits.shape[-1] else {}
    task = _task(run.model, run.seed)
    explanation = Explanation(
        scores=layout.scores,
        special=layout.special,
        method=method.name,
        options=options,
        logits=run.seed.logits.detach(),
        value=run.seed.value,
        prediction=run.seed.prediction,
        target=run.seed.index,
        coverage=run.trace.coverage,
        labels=names,
        task=task,
        streams=layout.streams,
        grid=layout.grid,
        patch_start=layout.patch_start,
        image_size=(int(image[0]), int(image[1])) if image is not None and layout.grid is not None else None,
        ledger=copy.copy(run.ledger),
        layers=_inside(run, reading.layers, layout.order),
        heads=None if reading.heads is None else reading.heads.detach(),
        branches=_inside(run, reading.branches, layout.order),
        pairs=_inside(run, reading.pairs, layout.order, dims=(-1, -2)),
    )
    return Unnamed(explanation, run.seed.other, run.seed.function, run.seed.length, run.seed.first)


def _task(model: nn.Module, start: Seed) -> str:
    """Whether one class is true, several can be, or the output is a value."""
    problem = getattr(getattr(unwrapped(model), "config", None), "problem_type", None)
    if start.prediction is None:
        return ""
    if problem == "multi_label_classification":
        return "multi-label"
    return "regression" if problem == "regression" or start.logits.shape[-1] == 1 else "single-label"


def _inside(run: Run, found: Tensor | None, order: Tensor | None, dims: tuple[int, ...] = (-1,)) -> Tensor | None:
    """What was found for each block, its tokens in the user's order, padding exactly 0.

    Args:
        run: the run.
        found: ``[batch, blocks, ..., tokens]``.
        order: ``[batch, tokens]``, where each token of the user's is.
        dims: the dimensions that are of tokens: of pairs, two.
    """
    if found is None:
        return None
    tokens = found.shape[-1]
    for dim in dims:
        shape = [1] * found.dim()
        shape[0], shape[dim] = len(found), tokens
        if order is not None and order.shape[1] == tokens:
            found = found.gather(dim, order.reshape(shape).expand_as(found))
        if run.mask is not None and run.mask.shape == (len(found), tokens):
            found = found.masked_fill(run.mask.reshape(shape), 0.0)
    return found.detach()


class _Layout:
    """How scores are spread over the user's inputs: attributes as in :class:`Explanation`.

    Args:
        run: the run.
        reading: its scores, and those of other token streams.
        method: the name of the method that read them.
    """

    def __init__(self, run: Run, reading: Reading, method: str) -> None:
        self.run = run
        self.scores = reading.scores
        self.special = torch.zeros_like(self.scores, dtype=torch.bool)
        self.streams: dict[str, Tensor] = {}
        self.grid: tuple[int, int] | None = None
        self.patch_start = 0
        self.order: Tensor | None = None
        self._axes: dict[str, Dim] = {}  # of each stream
        padding = run.absent(self.scores, run.tokens)
        if padding is not None:
            self.special |= padding
        if reading.grid is not None:  # of pixels
            self.streams["image"] = self.scores
            self.grid = reading.grid
            return
        known = reading.tokens is None or self.scores.shape[1] == size_of(run.tokens)
        main = run.tokens if known or reading.tokens is None else reading.tokens
        _refuse_added_tiles(run, method, [main, *(tokens for tokens, _ in reading.others)])
        self._add_main(main)
        for tokens, scores in reading.others:
            for stream in split(tokens, scores.shape[1], run):
                self._add(stream, tokens, scores)

    def _add_main(self, tokens: Dim) -> None:
        """Add the streams of the main token axis, image patches row by row."""
        length = self.scores.shape[1]
        streams = split(tokens, length, self.run)
        tiles = len(streams) == 1 and streams[0].order is not None
        self.order = in_order(self.run, streams, length) if tokens == self.run.tokens else None
        if tiles:
            self.scores = self.scores[:, streams[0].order]
            streams = [replace(streams[0], order=None)]
        if self.order is not None:
            self.scores = self.scores.gather(1, self.order)
        for stream in streams:
            self.special[:, stream.start : stream.start + stream.length] |= stream.special.to(self.special.device)
            self._add(stream, tokens, self.scores)

    def _add(self, stream: Stream, tokens: Dim, scores: Tensor) -> None:
        """Add a stream under its name; two of one name are encoder and decoder if one reads the other."""
        name = stream.name
        if name in self._axes and (self._reads(tokens, self._axes[name]) or self._reads(self._axes[name], tokens)):
            decodes = self._reads(tokens, self._axes[name])
            other, name = ("encoder", "decoder") if decodes else ("decoder", "encoder")
            self.streams = {other if k == stream.name else k: v for k, v in self.streams.items()}
            self._axes[other] = self._axes.pop(stream.name)
        elif name in self._axes:
            name = f"{name} {len(self.streams) + 1}"
        self._axes[name] = tokens
        own = scores[:, stream.start : stream.start + stream.length].detach()
        own = self.streams[name] = own if stream.order is None else own[:, stream.order]
        whole = stream.grid is not None and own.shape[1] >= stream.patch_start + math.prod(stream.grid)
        if whole and self.grid is None and name in (stream.name, "encoder", "decoder"):
            self.grid = stream.grid
            self.patch_start = stream.patch_start

    def _reads(self, one: Dim, other: Dim) -> bool:
        """Return whether some attention has queries in one stream and keys in the other."""
        return any(r.axes[r.query] == one and r.axes[r.key] == other for r in self.run.trace.attentions)


def _refuse_added_tiles(run: Run, method: str, read: list[Dim]) -> None:
    """Refuse scores in which the tiles of an image, or the frames of a video, were added up."""
    given = tile_atoms(run)
    for _, dim in entries(run):
        plain = tuple(atom for atom in dim if atom not in given)
        if plain and plain != dim and plain in read:
            count = size_of(dim) // size_of(plain)
            raise ModelError(
                f"The model reads the image in {count} tiles (or a video in {count} frames), each apart, and "
                f"'{method}' adds their scores up. Input-level methods (conservative-lrp, "
                "attn-lrp, gradient-x-input, ...) tell them apart."
            )
