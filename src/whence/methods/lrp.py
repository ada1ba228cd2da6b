"""LRP and partial LRP, the baselines of Chefer, Gur, Wolf (CVPR 2021).

`lrp`: relevance starts as 1 at the class and is propagated by the rules of `transformer-attribution`, but without its
normalisation of skip connections: linear layers by their positive contributions (alpha = 1), matrix products and
additions by eq. 1, norms and activations unchanged, the patch convolution of a vision model by z^B. Scores are the
relevance of the first block's input, or (``at="pixel"``, "full LRP" in the published code) of the pixels.

`partial-lrp` (Voita et al. 2019): the same, stopped at the last attention: the positive relevance of its map, heads
averaged, at the rows that the target reads.

The published code of both normalises the positive and the negative inputs of a linear layer separately, so that
relevance doubles at each such layer (``doubled=True``); the rule itself is the default here.

Cost: one forward pass, one backward pass of relevance (about two plain ones); fused attention stays fused, its maps are
recomputed as relevance passes. `partial-lrp` decomposes attention into primitive operations, and also runs a backward
pass of gradients, to find the rows that the target reads.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import WhenceWarning
from ..propagation.relevance_function import BackwardOp, Phase
from ..propagation.rulebook import Rulebook
from ..propagation.rules.linear import EPS, pull, safe_divide, z_box
from ..propagation.rules.relevance import PartialSum, RelevanceRules
from ..readout.rollup import positive_mean, require_maps, target_rows
from ..runs.run import Carry, Run
from ..tracing.reductions import precise
from .base import Method, Reading
from .gradient_x_input import InputLevel
from .registry import method
from .transformer_attribution import relevance_rulebook


class PlainLRPRules(RelevanceRules):
    """The rules without normalised skip connections; linear layers may double relevance."""

    def __init__(self, phase: Phase, eps: float, doubled: bool) -> None:
        super().__init__(phase, eps)
        self.doubled = doubled

    def linear(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Propagate by positive contributions; ``doubled``: all relevance to positive and again to negative inputs."""
        if not self.doubled or op.apply is None or op.weight is None:
            return super().linear(op, R)
        x = op.inputs[0].detach()
        w = op.weight
        halves = []
        for part, weight in ((x.clamp(min=0), w.clamp(min=0)), (x.clamp(max=0), w.clamp(max=0))):
            z, back = pull(op.apply, part, weight)
            halves.append(part * back(safe_divide(R, z, self.eps)))
        return (self.clone_shared_input(op, halves[0] + halves[1]),)

    def convolution(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Apply z^B to an image of three channels, the rule of linear layers otherwise."""
        x = op.inputs[0].detach()
        if op.apply is None or op.weight is None or x.dim() != 4 or x.shape[1] != 3:
            return self.linear(op, R)
        return (z_box(op.apply, x, op.weight, R, eps=self.eps),)

    def add_zero_mask(self, op: BackwardOp | PartialSum, R: Tensor) -> tuple[Tensor, ...]:
        """Apply :meth:`add_constant` with a constant of zeros."""
        return (self.clone(op.inputs[0].detach(), R),)

    def add(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Propagate to each summand in proportion (eq. 1)."""
        return self.deep_taylor(op, R)

    def add_constant(self, op: BackwardOp | PartialSum, R: Tensor) -> tuple[Tensor, ...]:
        """Propagate through the addition of a mask or a position, which absorbs its share; a bias absorbs none."""
        x = op.inputs[0].detach()
        if op.is_bias:
            return (R.sum_to_size(x.shape),)
        return ((x * safe_divide(R, op.output, self.eps)).sum_to_size(x.shape),)


def _warn_half_precision(run: Run) -> None:
    """Warn of half precision: additions without normalisation divide by sums that may be tiny."""
    if run.seed.output.dtype in (torch.float16, torch.bfloat16):
        warnings.warn(
            "Plain LRP divides by sums of signed terms, which half precision does not resolve: run the model in "
            "float32, better in float64.",
            WhenceWarning,
            stacklevel=2,
        )


@dataclass
class PlainLRP(Method):
    """Methods that read plain LRP.

    Attributes:
        doubled: double relevance at every linear layer, as the published code does.
        eps: the stabiliser of every denominator.
    """

    doubled: bool = False
    eps: float = EPS

    def rulebook(self) -> Rulebook:
        """Return the rules of plain LRP, per kind of operation."""
        rules = PlainLRPRules(Phase(), self.eps, self.doubled)
        book = relevance_rulebook(rules)
        return replace(book, rules={**book.rules, "convolution": rules(rules.convolution)})


@method("lrp")
@dataclass
class LRP(PlainLRP, InputLevel):
    """Relevance of the input by plain LRP."""

    paper: ClassVar[str] = "Bach et al., 2015; as in Chefer et al., CVPR 2021"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = "The answer's score handed back by the classic rules, made for networks without attention."
    beware: ClassVar[str] = (
        "In Transformers its shares can be blown up or lost in attention and normalisation: kept for comparison."
    )
    needs: ClassVar[str] = "operations with rules"

    def read(self, run: Run) -> Reading:
        """Return the relevance at the chosen place, ``[batch, tokens]``."""
        _warn_half_precision(run)
        return super().read(run)


@method("partial-lrp")
@dataclass
class PartialLRP(PlainLRP):
    """Relevance of the last attention by plain LRP."""

    paper: ClassVar[str] = "Voita et al., 2019; as in Chefer et al., CVPR 2021"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = "How much the heads that carried the answer attend to each token in the last layer."
    beware: ClassVar[str] = "It sees one layer only."
    backwards: ClassVar[int] = 2
    needs: ClassVar[str] = "attention"

    def rulebook(self) -> Rulebook:
        """Return plain LRP without a ledger, with unfused attention: it ends at the last map."""
        return replace(super().rulebook(), books=False, maps=True)

    def read(self, run: Run) -> Reading:
        """Return the explained rows of the last attention's relevance."""
        require_maps(run, self.name)
        _warn_half_precision(run)
        record = run.trace.attentions[-1]
        assert record.probabilities is not None
        (gradient,) = run.backward([record.probabilities], keep=True)
        (relevance,) = run.backward([record.probabilities], carry=Carry.RELEVANCE)
        rows = target_rows(record.arrange(gradient))
        return Reading((precise(rows) @ positive_mean(precise(record.arrange(relevance))))[:, 0])
