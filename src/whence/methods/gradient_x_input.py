"""Gradient x input: ``R_i = x_i df/dx_i``, summed over the features of each token.

Shrikumar et al. 2017 ("not just a black box"); "GI" in Ali et al. 2022. Exact to first order, conservative only
where the model is homogeneous. Cost: one forward pass, one backward pass.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import MethodError, ModelError, WhenceWarning
from ..propagation.rulebook import Rulebook
from ..runs.batched_targets import read_at_once
from ..runs.run import Carry, Run
from ..runs.token_streams import entries, tiles_of
from ..tracing.reductions import per_token, precise
from ..tracing.tensor_info import node_of
from .base import Method, Reading
from .registry import method


@dataclass
class InputLevel(Method):
    """Methods whose relevance is read at the input.

    It is gradient x input after a substitution, or, where the rulebook has a phase, the propagated relevance.

    Attributes:
        at: where to read: ``"position"`` (the input of the first block at a position), ``"token"`` (the token's own
            embedding) or ``"pixel"`` (the raw floating-point input).
    """

    at: str = "position"

    def __post_init__(self) -> None:
        if self.at not in ("position", "token", "pixel"):
            raise MethodError(f"`at` must be 'position', 'token' or 'pixel', not {self.at!r}.")

    def read(self, run: Run) -> Reading:
        """Return relevance at the chosen place, ``[batch, tokens]``, and that entering each block."""
        places = self.places(run)
        streams = [t for t, _ in entries(run)]
        carried = run.rulebook.phase is not None
        run.watch_heads()
        ends = [*places, *(t for t in streams if not any(t is place for place in places))]
        carry = Carry.RELEVANCE if carried else Carry.GRADIENT
        arrived = read_at_once(run, lambda weights: run.backward(ends, carry=carry, weights=weights))
        found = [precise(t) for t in arrived[: len(places)]]
        layers = run.settle(gradient=not carried, end=places[0], entries=streams)
        if not carried:
            found = [g * precise(t.detach()) for g, t in zip(found, places, strict=True)]
        return self.reading(run, places, found, layers)

    def places(self, run: Run) -> list[Tensor]:
        """Return where scores are read: in the main stream of tokens, then in each further one."""
        main = run.position(self.at)
        if self.at != "position":
            return [main]
        if run.around:
            _warn_of_another_place(run, main)
        places = [main, *(t for t, _ in entries(run) if t is not main)]
        _refuse_parts(run, places)
        return places

    def reading(
        self, run: Run, places: list[Tensor], relevances: list[Tensor], layers: Tensor | None = None
    ) -> Reading:
        """Return the relevance at each place, per token."""
        main = places[0]
        grid = None
        dims = {id(t): dim for t, dim in entries(run)}
        own = (*tiles_of(main, run.tokens, run), *run.tokens)
        if any(main is source.tensor and not source.embedded for source in run.trace.sources):
            scores, grid = _raw(relevances[0])
        else:
            scores = per_token(relevances[0], node_of(main).axes, run.trace.batch, own)
        others = [
            (dims[id(t)], per_token(r, node_of(t).axes, run.trace.batch, dims[id(t)]))
            for t, r in zip(places[1:], relevances[1:], strict=True)
        ]
        tokens = node_of(main).token_axes[1] if self.at == "token" else None  # the text alone, of a text and an image
        if own != run.tokens and self.at == "position":
            tokens, layers = own, None  # inside the blocks, tiles are not told apart
        return Reading(scores, layers, run.heads(), grid=grid, others=others, tokens=tokens)


def _warn_of_another_place(run: Run, main: Tensor) -> None:
    """Warn that scores are read at the input itself: not all of it passes what enters the first block."""
    source = next((s for s in run.trace.sources if s.tensor is main), None)
    name = "the input" if source is None else f"'{source.name}'"
    at = "token" if source is not None and source.embedded else "pixel"
    warnings.warn(
        f"Part of {name} bypasses the blocks with attention, or their residual connections were not recognised: scores "
        f"are read at {name} itself, as with at='{at}', not where tokens enter the first block (at='position').",
        WhenceWarning,
        stacklevel=4,
    )


def _refuse_parts(run: Run, places: list[Tensor]) -> None:
    """Refuse a model whose blocks one input enters in several parts: their scores have no common order."""
    dims = [dim for _, dim in entries(run)]
    pairs = [(r.axes[r.query], r.axes[r.key]) for r in run.trace.attentions]
    if any(query and query != key and query in dims and key in dims for query, key in pairs):
        return  # an encoder and a decoder
    names = {node_of(source.tensor).seq: source.name for source in run.trace.sources if source.name}
    entering = [t for t in places if not any(t is b.tensor for b in run.aside)]  # not what joins a stream on its way
    read = Counter(name for t in entering for name in {names[seq] for seq in node_of(t).ancestors() & set(names)})
    parts = {name: count for name, count in read.items() if count > 1}
    for name, count in parts.items():
        raise ModelError(
            f"The model reads '{name}' in {count} parts that enter its blocks apart (tokens step by step, or a class "
            "token beside patches), so there is no place at which all its tokens are read together. Run it on the "
            "whole input at once, without a cache; images can be read at the input itself (at='pixel')."
        )


def _raw(relevance: Tensor) -> tuple[Tensor, tuple[int, int] | None]:
    """Return the relevance of a raw input, per position: an image summed over channels, a sequence over features."""
    if relevance.dim() == 4:
        pixels = relevance.sum(1)
        return pixels.flatten(1), (pixels.shape[1], pixels.shape[2])
    return (relevance.flatten(2).sum(-1) if relevance.dim() > 2 else relevance), None


@method("gradient-x-input")
@dataclass
class GradientXInput(InputLevel):
    """Gradient x input."""

    paper: ClassVar[str] = "Shrikumar et al., 2017"
    shows: ClassVar[str] = "Which tokens would change the answer most if they were scaled a little."
    beware: ClassVar[str] = "It is noisy in deep models, and misses what has already reached its full effect."

    def rulebook(self) -> Rulebook:
        """Return a rulebook without rules: every operation keeps its derivative."""
        return Rulebook()
