"""Inside a network: what each residual branch wrote, and what each token drew on, block by block.

In gradient form the relevance of a tensor is its value times its gradient. What an attention wrote is a sum over heads
``h`` and over the tokens ``j`` that it read, ``o_i = sum_h sum_j A_hij v_hj``, so the relevance that it carried from
token ``i`` is a sum of the same terms,

    ``T_ij = sum_h A_hij (v_hj . dy/do_hi)``,

and what went past the attention stays with its token: ``T_ii`` besides holds the relevance of the trunk. A row sums to
the relevance of token ``i`` behind the attention, but for what the bias of the output projection absorbs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .attention import AttentionRecord
from .axes import Dim, size_of
from .boundary import Boundary, Way
from .errors import ModelError
from .layout import precise
from .node import node_of, on_gradient
from .residuals import Residual
from .run import Run


@dataclass
class Drawn:
    """What the tokens of an attention drew on.

    Attributes:
        record: the attention, written out.
        relevance: ``[batch, queries, keys]``; ``None`` until something has passed.
    """

    record: AttentionRecord
    relevance: Tensor | None = None

    def watch(self, way: Way) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""
        assert self.record.output is not None

        def hook(gradient: Tensor) -> None:
            self.relevance = (self.record.map() * self.record.gradient(gradient)).sum(1)

        return on_gradient(self.record.output, hook)


@dataclass
class Inside:
    """What a backward is watched for, beyond the boundaries of blocks.

    Attributes:
        run: whose.
        drawn: for each attention.
        joints: for each residual addition along the tokens: its branch, and the sum.
    """

    run: Run
    drawn: list[Drawn] = field(init=False)
    joints: list[tuple[Residual, Boundary, Boundary]] = field(init=False)

    def __post_init__(self) -> None:
        run, tokens = self.run, self.run.tokens()
        if any(record.axes[i] != tokens for record in run.trace.attentions for i in (record.query, record.key)):
            raise ModelError(
                "The model has several streams of tokens, or windows of them: what its blocks did cannot be laid out "
                "as one table of tokens. Explain it without `inside`."
            )
        self.drawn = [Drawn(record) for record in run.trace.attentions]
        self.joints = [
            (r, Boundary(r.branch, node_of(r.branch)), Boundary(r.output, node_of(r.output)))
            for r in run.trace.residuals
            if _along(r, tokens)
        ]
        run.watched += [*self.drawn, *(boundary for joint in self.joints for boundary in joint[1:])]

    def pairs(self) -> Tensor:
        """``[batch, blocks, tokens, tokens]``: from each token, behind a block's attention, to those it drew on."""
        out = []
        for i, drawn in enumerate(self.drawn):
            moved = drawn.record.zeros(*drawn.record.shape[1:]) if drawn.relevance is None else drawn.relevance
            own = [self._trunk(*joint) for joint in self.joints if i in joint[0].attentions]
            out.append(moved + torch.diag_embed(own[0]) if own else moved)
        return torch.stack(out, 1)

    def branches(self) -> Tensor:
        """``[batch, blocks, 2, tokens]``: what the attention and the rest (the MLP) of each block wrote.

        Where both are one branch (a parallel block) all of it stands with the attention.
        """
        blocks: list[list[Tensor]] = []
        for residual, branch, _ in self.joints:
            found = self._relevance(branch)
            if residual.attentions:
                blocks.append([found, torch.zeros_like(found)])
            elif blocks:
                blocks[-1][1] = blocks[-1][1] + found
        return torch.stack([torch.stack(block, 1) for block in blocks], 1)

    def _trunk(self, residual: Residual, branch: Boundary, output: Boundary) -> Tensor:
        return self._relevance(output) - self._relevance(branch)

    def _relevance(self, boundary: Boundary) -> Tensor:
        """``[batch, tokens]``."""
        batch, tokens = self.run.trace.batch.size, size_of(self.run.tokens())
        nothing = precise(self.run.seed.logits).new_zeros(batch, tokens)
        return nothing if boundary.relevance is None else boundary.relevance


def _along(residual: Residual, tokens: Dim) -> bool:
    """Whether a residual addition is one of tokens."""
    return tokens in node_of(residual.output).axes and tokens in node_of(residual.branch).axes
