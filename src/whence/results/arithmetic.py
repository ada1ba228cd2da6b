"""Arithmetic on scores: normalisation, sums and differences, agreement."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from ..errors import InputError


class Arithmetic:
    """A mixin of arithmetic on the scores of an explanation."""

    scores: Tensor
    special: Tensor
    streams: Mapping[str, Tensor]
    value: Tensor
    method: str
    target: Tensor | None
    target_names: tuple[str, ...]
    origins: tuple[Any, ...]

    def normalised(self, by: str = "max") -> Self:
        """Return the explanation with normalised scores, sample by sample.

        Args:
            by: ``"max"`` (the strongest is 1 or -1), ``"sum"`` (magnitudes sum to 1), ``"l2"`` (unit length),
                ``"minmax"`` (lowest 0, highest 1, as Chefer et al. 2021 do for images).
        """
        scales: dict[str, Callable[[Tensor], Tensor]] = {
            "max": lambda s: s.abs().amax(1), "sum": lambda s: s.abs().sum(1), "l2": lambda s: s.norm(dim=1),
        }  # fmt: skip
        if by == "minmax":
            return self._minmax()
        if by not in scales:
            raise InputError(f"Scores can be normalised by {', '.join(scales)} or minmax, not by {by!r}.")
        scale = scales[by](torch.cat(list(self.streams.values()), 1))
        scale = torch.where(scale > 0, scale, 1.0)[:, None]
        return self._with(self.scores / scale, {name: s / scale for name, s in self.streams.items()})

    def _minmax(self) -> Self:
        """Scale the positions of the user's input to 0 to 1; special positions are 0."""
        low = self.scores.masked_fill(self.special, torch.inf).amin(1, keepdim=True)
        high = self.scores.masked_fill(self.special, -torch.inf).amax(1, keepdim=True)
        scale = torch.where(high > low, high - low, 1.0)
        return self._with(
            ((self.scores - low) / scale).masked_fill(self.special, 0.0),
            {n: ((s - low) / scale).masked_fill(self.special_of(n), 0.0) for n, s in self.streams.items()},
        )

    def special_of(self, stream: str) -> Tensor:
        """Return ``[B, S]``: positions of a stream that are no part of the user's input."""
        at = 0
        for name, scores in self.streams.items():
            end = at + scores.shape[1]
            if name == stream and end <= self.special.shape[1]:  # a slice of the main stream
                return self.special[:, at:end]
            at = end
        return torch.zeros_like(self.streams[stream], dtype=torch.bool)

    def _with(self, scores: Tensor, streams: Mapping[str, Tensor], **changes: Any) -> Self:
        """Return the explanation with other scores, without what described the old ones (ledger, layers, heads)."""
        changes |= {"scores": scores, "streams": streams, "ledger": None}
        changes |= dict.fromkeys(("layers", "heads", "branches", "pairs"))
        return replace(self, **changes)  # type: ignore[type-var]  # what this is mixed into is a dataclass

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        streams = {name: function(s) for name, s in self.streams.items()}
        return self._with(function(self.scores), streams, value=function(self.value))

    def _combined(self, other: Self, how: Callable[[Tensor, Tensor], Tensor], sign: str) -> Self:
        if not isinstance(other, Arithmetic):
            raise InputError(
                f"Explanations are added to and subtracted from each other, not {type(other).__name__}: what the model "
                "did not read must stay 0."
            )
        if self.scores.shape != other.scores.shape or list(self.streams) != list(other.streams):
            raise InputError(
                f"The explanations have different positions ({list(self.scores.shape)} and "
                f"{list(other.scores.shape)}): only explanations of the same input can be combined."
            )
        if self.origins != other.origins:
            raise InputError("The explanations are of different inputs; only those of the same input can be combined.")
        changes: dict[str, Any] = {"value": how(self.value, other.value)}
        if self.method != other.method:
            changes["method"] = f"{self.method} {sign} {other.method}"
        if self.target_names != other.target_names:
            names = zip(self.target_names, other.target_names, strict=True)
            changes |= {"target": None, "target_names": tuple(f"{a} {sign} {b}" for a, b in names)}
        streams = {name: how(s, other.streams[name]) for name, s in self.streams.items()}
        return self._with(how(self.scores, other.scores), streams, **changes)

    def __add__(self, other: Self) -> Self:
        return self._combined(other, operator.add, "+")

    def __sub__(self, other: Self) -> Self:
        """Return the difference: what is for this target rather than for the other."""
        return self._combined(other, operator.sub, "-")

    def __mul__(self, factor: float) -> Self:
        return self._mapped(lambda s: s * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Self:
        return self._mapped(lambda s: s / divisor)

    def __neg__(self) -> Self:
        return self._mapped(operator.neg)

    def agreement(self, other: Self, k: int = 5) -> dict[str, Tensor]:
        """Return the agreement of two explanations of the same input, per sample.

        Returns:
            ``[B]`` each: ``pearson`` and ``spearman`` correlation of the scores, ``cosine``, and ``top``: the share of
            the ``k`` strongest positions that they have in common. Special positions are left out.
        """
        _ = self - other  # an error if they are of different inputs
        out: dict[str, list[float]] = {"pearson": [], "spearman": [], "cosine": [], "top": []}
        for i in range(len(self.scores)):
            real = ~self.special[i]
            a = self.scores[i][real].double()
            b = other.scores[i][real].double()
            tops = [set(s.abs().argsort(descending=True, stable=True)[:k].tolist()) for s in (a, b)]
            out["pearson"].append(_cosine(a - a.mean(), b - b.mean()))
            ra, rb = _ranks(a), _ranks(b)
            out["spearman"].append(_cosine(ra - ra.mean(), rb - rb.mean()))
            out["cosine"].append(_cosine(a, b))
            out["top"].append(len(tops[0] & tops[1]) / max(min(k, len(a)), 1))
        return {name: torch.tensor(values) for name, values in out.items()}


def _cosine(a: Tensor, b: Tensor) -> float:
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length > 0 else 0.0


def _ranks(x: Tensor) -> Tensor:
    """Return ranks; equal values have their mean rank."""
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    mean: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return mean.to(x.dtype)[inverse]
