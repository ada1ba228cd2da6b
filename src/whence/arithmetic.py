"""Scores as numbers: other scales, sums and differences, agreement."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from .errors import InputError


class Arithmetic:
    """What can be done with the scores of an explanation: it needs ``scores``, ``streams`` and what they are of."""

    scores: Tensor
    special: Tensor
    streams: Mapping[str, Tensor]
    method: str
    target: Tensor | None
    target_names: tuple[str, ...]
    origins: tuple[Any, ...]

    def normalised(self, by: str = "max") -> Self:
        """The same explanation on another scale, sample by sample.

        Args:
            by: ``"max"`` (the strongest is 1 or -1), ``"sum"`` (magnitudes sum to 1), ``"l2"`` (unit length),
                ``"minmax"`` (lowest 0, highest 1, as Chefer et al. 2021 do for pictures).
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
        return self._mapped(lambda s: s / scale)

    def _minmax(self) -> Self:
        """The user's own positions from 0 to 1; what the model added of itself is 0."""
        own = ~self.special
        low = self.scores.masked_fill(~own, torch.inf).amin(1, keepdim=True)
        high = self.scores.masked_fill(~own, -torch.inf).amax(1, keepdim=True)
        scale = torch.where(high > low, high - low, 1.0)

        def scaled(s: Tensor) -> Tensor:
            mapped = (s - low) / scale
            return mapped.masked_fill(self.special, 0.0) if s.shape == self.special.shape else mapped

        return self._mapped(scaled)

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Other scores of the same input. What accounted for the old ones (ledger, layers, heads) is left behind."""
        streams = {name: function(s) for name, s in self.streams.items()}
        changes: dict[str, Any] = {
            "scores": function(self.scores),
            "streams": streams,
            "ledger": None,
            "layers": None,
            "heads": None,
        }
        return replace(self, **changes)  # type: ignore[type-var]  # what this is mixed into is a dataclass

    def _combined(self, other: Self | float, how: Callable[..., Tensor], sign: str) -> Self:
        if not isinstance(other, Arithmetic):
            return self._mapped(lambda s: how(s, other))
        if self.scores.shape != other.scores.shape or list(self.streams) != list(other.streams):
            raise InputError(
                f"The explanations have different positions ({list(self.scores.shape)} and "
                f"{list(other.scores.shape)}): only explanations of the same input can be combined."
            )
        if self.origins != other.origins:
            raise InputError("The explanations are of different inputs; only those of the same input can be combined.")
        same_target = self.target_names == other.target_names
        return replace(  # type: ignore[type-var]  # as above
            self._mapped(lambda s: s),
            scores=how(self.scores, other.scores),
            streams={name: how(s, other.streams[name]) for name, s in self.streams.items()},
            method=self.method if self.method == other.method else f"{self.method} {sign} {other.method}",
            target=self.target if same_target else None,
            target_names=self.target_names
            if same_target
            else tuple(f"{a} {sign} {b}" for a, b in zip(self.target_names, other.target_names, strict=True)),
        )

    def __add__(self, other: Self) -> Self:
        return self._combined(other, operator.add, "+")

    def __sub__(self, other: Self) -> Self:
        """What speaks for this rather than for the other."""
        return self._combined(other, operator.sub, "-")

    def __mul__(self, factor: float) -> Self:
        return self._combined(factor, operator.mul, "*")

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Self:
        return self._combined(divisor, operator.truediv, "/")

    def __neg__(self) -> Self:
        return self._mapped(operator.neg)

    def agreement(self, other: Self, k: int = 5) -> dict[str, Tensor]:
        """How alike two explanations of the same input are, per sample.

        Returns:
            ``[B]`` each: ``pearson`` and ``spearman`` correlation of the scores, ``cosine``, and ``top``: the share of
            the ``k`` strongest positions that they have in common. Padding does not count.
        """
        _ = self - other  # an error if they are of different inputs
        out: dict[str, list[float]] = {"pearson": [], "spearman": [], "cosine": [], "top": []}
        for i in range(len(self.scores)):
            real = ~(self.special[i] & (self.scores[i] == 0) & (other.scores[i] == 0))
            a, b = self.scores[i][real].double(), other.scores[i][real].double()
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
    """Ranks, equal values sharing their mean rank."""
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    mean: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return mean.to(x.dtype)[inverse]
