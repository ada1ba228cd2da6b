"""Relevance inside each block: of its residual branches, and from token to token.

In gradient form the relevance of a tensor is its value times its gradient. What an attention wrote is a sum over heads
``h`` and over the tokens ``j`` that it read, ``o_i = sum_h sum_j A_hij v_hj``, so the relevance that it carried from
token ``i`` is a sum of the same terms,

    ``T_ij = sum_h A_hij (v_hj . dy/do_hi)``,

and what is not of the attention stays with its token: ``T_ii`` besides holds the relevance of the trunk and, in a
parallel block, of what the MLP adds to the same sum. So a row sums to the relevance of token ``i`` in the sum that the
attention is added to, but for what the bias of the output projection absorbs.
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
from ..tracing.node import node_of, on_gradient
from ..tracing.reductions import precise
from ..tracing.residuals import Residual


@dataclass
class PairRelevance:
    """What the tokens of an attention drew on.

    Attributes:
        record: the attention, written out.
        relevance: ``[batch, queries, keys]``; ``None`` until something has passed.
    """

    record: AttentionRecord
    relevance: Tensor | None = None

    def watch(self, way: BackwardContext) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""
        assert self.record.output is not None

        def hook(gradient: Tensor) -> None:
            self.relevance = (self.record.map() * self.record.gradient(gradient)).sum(1)

        return on_gradient(self.record.output, hook)


@dataclass
class BranchRelevance:
    """A residual addition along the tokens, and the relevance found at what it adds.

    Attributes:
        attentions: those (by index) among what is added.
        attended: what they wrote; without any, the branch.
        branch: what is added.
        beside: what is added to the same trunk next to it (a parallel block).
        output: the sum.
    """

    attentions: list[int]
    attended: Boundary
    branch: Boundary
    beside: list[Boundary]
    output: Boundary

    @staticmethod
    def of(residual: Residual) -> BranchRelevance:
        """Of a residual addition, before anything has passed."""
        branch = _boundary(residual.branch)
        attended = branch if residual.attended is None else _boundary(residual.attended)
        beside = [_boundary(t) for t in residual.beside]
        return BranchRelevance(residual.attentions, attended, branch, beside, _boundary(residual.output))

    def passages(self) -> list[Boundary]:
        """Where what passes is written down, each place once."""
        own = [] if self.attended is self.branch else [self.attended]
        return [*own, self.branch, *self.beside, self.output]


@dataclass
class BlockRelevance:
    """What a backward is watched for, beyond the boundaries of blocks.

    Attributes:
        run: whose.
        drawn: for each attention.
        joints: for each residual addition along the tokens.
    """

    run: Run
    drawn: list[PairRelevance] = field(init=False)
    joints: list[BranchRelevance] = field(init=False)

    def __post_init__(self) -> None:
        run, tokens = self.run, self.run.tokens()
        if any(record.axes[i] != tokens for record in run.trace.attentions for i in (record.query, record.key)):
            raise ModelError(
                "The model has several streams of tokens, or windows of them: what its blocks did cannot be laid out "
                "as one table of tokens. Explain it without `inside`."
            )
        self.drawn = [PairRelevance(record) for record in run.trace.attentions]
        self.joints = [BranchRelevance.of(r) for r in run.trace.residuals if _along(r, tokens)]
        if not any(joint.attentions for joint in self.joints):
            raise ModelError(
                "The model has no attention whose output is added to the tokens that it reads (a residual connection): "
                "it is not made of blocks, whose parts could be told apart. Explain it without `inside`."
            )
        run.watch(*self.drawn, *(boundary for joint in self.joints for boundary in joint.passages()))

    def pairs(self) -> Tensor:
        """``[batch, blocks, tokens, tokens]``: from each token, behind a block's attention, to those it drew on.

        What is not of the attention stays with its token: the trunk, and in a parallel block what its MLP wrote.
        """
        out = []
        for i, drawn in enumerate(self.drawn):
            moved = drawn.record.zeros(*drawn.record.shape[1:]) if drawn.relevance is None else drawn.relevance
            joint = next((joint for joint in self.joints if i in joint.attentions), None)
            out.append(moved if joint is None else moved + torch.diag_embed(self._stayed(joint)))
        return torch.stack(out, 1)

    def _stayed(self, joint: BranchRelevance) -> Tensor:
        """``[batch, tokens]``: of a sum, what is not of its attention."""
        return self._relevance(joint.output) - self._relevance(joint.attended)

    def branches(self) -> Tensor:
        """``[batch, blocks, 2, tokens]``: what the attention, and all else until the next attention, wrote."""
        blocks: list[list[Tensor]] = []
        done: set[int] = set()
        for joint in self.joints:
            attended, branch = self._relevance(joint.attended), self._relevance(joint.branch)
            beside = torch.stack([torch.zeros_like(branch), *map(self._relevance, joint.beside)]).sum(0)
            if set(joint.attentions) - done:
                blocks.append([attended, branch - attended + beside])
            elif blocks and not joint.attentions:
                blocks[-1][1] = blocks[-1][1] + branch + beside
            done |= set(joint.attentions)
        return torch.stack([torch.stack(block, 1) for block in blocks], 1)

    def _relevance(self, boundary: Boundary) -> Tensor:
        """``[batch, tokens]``."""
        batch, tokens = self.run.trace.batch.size, size_of(self.run.tokens())
        nothing = precise(self.run.seed.logits).new_zeros(batch, tokens)
        return nothing if boundary.relevance is None else boundary.relevance


def _boundary(tensor: Tensor) -> Boundary:
    return Boundary(tensor, node_of(tensor))


def _along(residual: Residual, tokens: Dim) -> bool:
    """Whether a residual addition is one of tokens."""
    return tokens in node_of(residual.output).axes and tokens in node_of(residual.branch).axes
