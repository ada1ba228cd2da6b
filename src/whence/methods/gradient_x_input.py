"""Gradient x input: ``R_i = x_i df/dx_i``, summed over the features of each token.

Shrikumar et al. 2017 ("not just a black box"); "GI" in Ali et al. 2022. Exact to first order, conservative only
where the model is homogeneous. Cost: one forward, one backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..errors import MethodError
from ..node import node_of
from ..run import Rulebook, Run
from . import Method, Reading, method


@dataclass
class InputLevel(Method):
    """Methods whose relevance is gradient x input after a substitution.

    Attributes:
        at: where to read: ``"position"`` (all that enters the first block at a position), ``"token"`` (the token's own
            embedding) or ``"pixel"`` (the raw floating-point input).
    """

    at: str = "position"

    def __post_init__(self) -> None:
        if self.at not in ("position", "token", "pixel"):
            raise MethodError(f"`at` must be 'position', 'token' or 'pixel', not {self.at!r}.")

    def read(self, run: Run) -> Reading:
        """``[batch, tokens]``: gradient x input at the chosen place; relevance entering each block besides."""
        tensor = run.position(self.at)
        (gradient,) = run.backward([tensor])
        met = run.settle(gradient=True)
        relevance = gradient.to(torch.promote_types(gradient.dtype, torch.float32)) * tensor.detach()
        scores = run.per_token(relevance, node_of(tensor).axes)
        layers = [run.per_token(b.relevance, b.node.axes) for b in met[:-1] if b.relevance is not None]
        return Reading(scores, torch.stack(layers, 1) if layers else None)


@method("gradient-x-input")
@dataclass
class GradientXInput(InputLevel):
    """Gradient x input."""

    paper: ClassVar[str] = "Shrikumar et al., 2017"

    def rulebook(self) -> Rulebook:
        """No rules: every operation keeps its derivative."""
        return Rulebook()
