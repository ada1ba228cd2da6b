"""An explanation from what a method read in a run: scores spread over the user's inputs, and what goes with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..explanations.explanation import Explanation
from ..methods import Method, Reading
from ..runs.run import Run
from ..runs.token_streams import in_order, split
from ..targets.seed import Seed, labels_of
from ..tracing.axes import Dim, size_of


def assemble(run: Run, reading: Reading, scores: Tensor, method: Method, options: dict[str, Any]) -> Explanation:
    """The explanation of a run, from its scores ``[batch, tokens]`` and what else was read."""
    layout = _layout(run, reading, scores)
    scores = layout.scores
    image = next((s.tensor.shape[-2:] for s in run.trace.sources if s.tensor.dim() == 4), None)
    labels = labels_of(run.model)
    names = labels if len(labels) == run.seed.logits.shape[-1] else {}
    task = _task(run.model, run.seed)
    return Explanation(
        scores=scores,
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
        ledger=run.ledger,
        layers=_inside(run, reading.layers, layout.order),
        heads=None if reading.heads is None else reading.heads.detach(),
        branches=_inside(run, reading.branches, layout.order),
        pairs=_inside(run, reading.pairs, layout.order, dims=(-1, -2)),
        target_names=tuple(run.seed.names(names)),
        prediction_names=tuple(run.seed.said(names, task)),
    )


def _task(model: nn.Module, start: Seed) -> str:
    """Whether one class is true, several can be, or the output is a value."""
    problem = getattr(getattr(model, "config", None), "problem_type", None)
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


@dataclass
class _Layout:
    """How scores are spread over the user's inputs: fields as in :class:`Explanation`."""

    scores: Tensor
    special: Tensor
    streams: dict[str, Tensor]
    grid: tuple[int, int] | None = None
    patch_start: int = 0
    order: Tensor | None = None


def _layout(run: Run, reading: Reading, scores: Tensor) -> _Layout:
    special = torch.zeros_like(scores, dtype=torch.bool)
    padding = run.absent(scores, run.tokens())
    if padding is not None:
        special |= padding
    if reading.grid is not None:  # of pixels
        return _Layout(scores, special, {"image": scores}, reading.grid)
    layout = _Layout(scores, special, {})
    axes: dict[str, Dim] = {}  # of each stream
    main = run.tokens() if reading.tokens is None or len(scores[0]) == size_of(run.tokens()) else reading.tokens
    for n, (tokens, found) in enumerate([(main, scores), *reading.others]):
        streams = split(tokens, found.shape[1], run)
        order = in_order(run, streams, found.shape[1]) if n == 0 and tokens == run.tokens() else None
        if order is not None:
            layout.scores = found = found.gather(1, order)
            layout.order = order
        for stream in streams:
            if n == 0:
                special[:, stream.start : stream.start + stream.length] |= stream.special.to(special.device)
            name = stream.name
            if name in axes and (_reads(run, tokens, axes[name]) or _reads(run, axes[name], tokens)):
                other, name = ("encoder", "decoder") if _reads(run, tokens, axes[name]) else ("decoder", "encoder")
                layout.streams = {other if k == stream.name else k: v for k, v in layout.streams.items()}
                axes[other] = axes.pop(stream.name)
            elif name in axes:
                name = f"{name} {len(layout.streams) + 1}"
            axes[name] = tokens
            layout.streams[name] = found[:, stream.start : stream.start + stream.length].detach()
            if stream.grid is not None and layout.grid is None:
                layout.grid, layout.patch_start = stream.grid, stream.patch_start
    return layout


def _reads(run: Run, one: Dim, other: Dim) -> bool:
    """Whether some attention looks from one stream at the other."""
    return any(r.axes[r.query] == one and r.axes[r.key] == other for r in run.trace.attentions)
