"""Relevance inside each block: of its residual branches, and token-to-token relevance.

In gradient form the relevance of a tensor is its value times its gradient. The output of an attention is a sum over
heads ``h`` and over the tokens ``j`` that it attended to, ``o_i = sum_h sum_j A_hij v_hj``, so the relevance that it
carries from token ``i`` is a sum of the same terms,

    ``T_ij = sum_h A_hij (v_hj . dy/do_hi)``,

and the rest stays with its token: ``T_ii`` also holds the relevance of the residual stream and, in a parallel block, of
the MLP branch added to the same sum. So a row sums to the relevance of token ``i`` in the sum that the attention is
added to, except for what the bias of the output projection absorbs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..errors import ModelError
from ..runs.boundaries import BackwardContext, Boundary
from ..runs.run import Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.axes import Dim, size_of
from ..tracing.reductions import precise
from ..tracing.residuals import Residual
from ..tracing.tensor_info import node_of, on_gradient


@dataclass
class PairRelevance:
    """The token-to-token relevance of an attention.

    Attributes:
        record: the attention, decomposed into primitive operations.
        relevance: ``[batch, queries, keys]``; ``None`` before a backward pass.
    """

    record: AttentionRecord
    relevance: Tensor | None = None

    def set(self, relevance: Tensor | None) -> None:
        """Set what was recorded in a backward pass for several targets, or forget it."""
        self.relevance = relevance

    def watch(self, way: BackwardContext) -> RemovableHandle:
        """Record the relevance of backward passes, until the handle is removed."""
        assert self.record.output is not None

        def hook(gradient: Tensor) -> None:
            self.relevance = (self.record.map() * self.record.gradient(gradient)).sum(1)

        return on_gradient(self.record.output, hook)


@dataclass
class BranchRelevance:
    """A residual addition along the tokens, and the relevance of its summands.

    Attributes:
        attentions: the attentions (by index) in its branch.
        attended: their output; without any, the branch.
        branch: the residual branch.
        output: the sum.
    """

    attentions: list[int]
    attended: Boundary
    branch: Boundary
    output: Boundary

    @staticmethod
    def of(residual: Residual) -> BranchRelevance:
        """Return the boundaries of a residual addition, before a backward pass."""
        branch = _boundary(residual.branch)
        attended = branch if residual.attended is None else _boundary(residual.attended)
        return BranchRelevance(residual.attentions, attended, branch, _boundary(residual.output))

    def boundaries(self) -> list[Boundary]:
        """Return the tensors at which relevance is recorded, each once."""
        own = [] if self.attended is self.branch else [self.attended]
        return [*own, self.branch, self.output]


@dataclass
class BlockRelevance:
    """What is recorded in a backward pass beyond the boundaries of blocks.

    Attributes:
        run: the run.
        attentions: for each attention, its token-to-token relevance.
        residuals: for each residual addition along the tokens, that of its summands.
    """

    run: Run
    attentions: list[PairRelevance] = field(init=False)
    residuals: list[BranchRelevance] = field(init=False)

    def __post_init__(self) -> None:
        run = self.run
        tokens = run.tokens
        if any(record.axes[i] != tokens for record in run.trace.attentions for i in (record.query, record.key)):
            raise ModelError(
                "The model has several streams of tokens, or windows of them: what its blocks did cannot be laid out "
                "as one table of tokens. Explain it without `inside`."
            )
        self.attentions = [PairRelevance(record) for record in run.trace.attentions]
        self.residuals = [BranchRelevance.of(r) for r in run.trace.residuals if _is_along(r, tokens)]
        if not any(residual.attentions for residual in self.residuals):
            raise ModelError(
                "The model has no attention whose output is added to the tokens that it reads (a residual connection): "
                "it is not made of blocks, whose parts could be told apart. Explain it without `inside`."
            )
        run.watch(*self.attentions, *(b for residual in self.residuals for b in residual.boundaries()))

    def pairs(self) -> Tensor:
        """Return ``[batch, blocks, tokens, tokens]``: from each token after an attention to those it attended to.

        Relevance outside the attention stays with its token: that of the residual stream, and in a parallel block that
        of the MLP branch.
        """
        out = []
        for i, pair in enumerate(self.attentions):
            moved = pair.record.zeros(*pair.record.shape[1:]) if pair.relevance is None else pair.relevance
            residual = next((r for r in self.residuals if i in r.attentions), None)
            out.append(moved if residual is None else moved + torch.diag_embed(self._outside_attention(residual)))
        return torch.stack(out, 1)

    def _outside_attention(self, residual: BranchRelevance) -> Tensor:
        """Return ``[batch, tokens]``: the relevance of a sum without that of its attention."""
        return self._relevance(residual.output) - self._relevance(residual.attended)

    def branches(self) -> Tensor:
        """Return ``[batch, blocks, 2, tokens]``: of the attention, and of all branches between it and the next one."""
        blocks: list[list[Tensor]] = []
        done: set[int] = set()
        for residual in self.residuals:
            attended = self._relevance(residual.attended)
            branch = self._relevance(residual.branch)
            if set(residual.attentions) - done:
                blocks.append([attended, branch - attended])
            elif blocks and not residual.attentions:
                blocks[-1][1] = blocks[-1][1] + branch
            done |= set(residual.attentions)
        return torch.stack([torch.stack(block, 1) for block in blocks], 1)

    def _relevance(self, boundary: Boundary) -> Tensor:
        """Return the relevance at a boundary, ``[batch, tokens]``."""
        if boundary.relevance is not None:
            return boundary.relevance
        return precise(self.run.seed.logits).new_zeros(self.run.trace.batch.size, size_of(self.run.tokens))


def _boundary(tensor: Tensor) -> Boundary:
    return Boundary(tensor, node_of(tensor))


def _is_along(residual: Residual, tokens: Dim) -> bool:
    """Return whether a residual addition is along the tokens."""
    return tokens in node_of(residual.output).token_axes and tokens in node_of(residual.branch).token_axes
