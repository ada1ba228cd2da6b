"""Beyond intuition: rethinking token attributions inside Transformers (Chen, Li, Yu, Dou, Xiong, TMLR 2023).

The effect of a token on the target is split in two. *Attention perception*, how tokens are mixed into the row that is
read, is a roll-up ``R <- R + P_l R`` from the identity, with ``P_l`` one of

- head-wise (``variant="head"``): ``sum_h I_h A_h``, with ``I_h`` the mean of ``|A_h^T dy/dA_h|``, divided by its sum
  over heads;
- token-wise (``variant="token"``): ``E_h(A) diag(|v_i W_O| / |x_i|)``, the values of all heads after the output
  projection without its bias, relative to the block's input.

*Reasoning feedback*, how the target depends on that row, is the gradient of the last attention along the line from zero
to the input: ``F = E_h((mean_a dy/dA_L (a x))^+)`` for ``steps`` values ``a`` from 0 to 1. The scores are the rows of
``F * R`` that the target reads: [CLS] for a classifier on [CLS], the mean of the patches' rows for a mean over patches.

``v_i W_O`` is what the attention would add if each token attended to itself alone, so it is the derivative of that
branch with respect to the probabilities along the identity, whatever the model's layout (where the branch ends in a
norm, as in Gemma 2, it is linear only to first order).

Where the published code differs:

- it counts ``start_layer`` from 1, here it is from 0. For ViT-B it starts at 4 (head) and 6 (token), the paper at 7
  (token): here 3, 5 and 6. For BERT it takes the last layer (head, ``start_layer=-1``) or the last four (token);
- it scales an image's pixels by ``a``, for BERT the input of the first block; here likewise, depending on whether
  tokens are computed from raw values or from embeddings;
- where the model reads both [CLS] and the mean of its patches (DINO), the two are summed; here all rows that are read
  have the same weight;
- it is for one sample without padding. Padding, and positions under a causal mask, are left out of ``I_h`` here.

Cost: ``steps`` forward and backward passes (the input itself is on the line), with unfused attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..readout.residual_blocks import Block, blocks, token_vectors
from ..readout.rollup import (
    all_rows,
    attended_pairs,
    positive_mean,
    require_local,
    require_maps,
    require_one_text,
    roll_up,
    stack_layers,
    target_rows,
)
from ..runs.run import Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.tensor_info import edge_of, node_of
from .base import Method, Reading
from .registry import method


@method("bi-attention")
@dataclass
class BiAttention(Method):
    """Attention perception times reasoning feedback.

    Attributes:
        variant: how a layer's attention is weighed: ``"head"`` by head, ``"token"`` by token.
        start_layer: the first layer taken into account.
        steps: points on the line from zero to the input, both ends included.
    """

    paper: ClassVar[str] = "Chen et al., TMLR 2023"
    shows: ClassVar[str] = (
        "How attention and the values that it moves carried the answer, with gradients averaged on the way from "
        "an empty input."
    )
    beware: ClassVar[str] = "It needs some twenty backward passes, and shows only what passed through attention."
    forwards: ClassVar[int] = 20
    backwards: ClassVar[int] = 20
    needs: ClassVar[str] = "attention"
    quick: ClassVar[Mapping[str, Any]] = {"steps": 2}

    variant: str = "head"
    start_layer: int = 0
    steps: int = 20

    def __post_init__(self) -> None:
        if self.variant not in ("head", "token"):
            raise MethodError(f"`variant` must be 'head' or 'token', not {self.variant!r}.")
        if self.steps < 2:
            raise MethodError(f"`steps` must be at least 2 (both ends of the line count), not {self.steps}.")

    def rulebook(self) -> Rulebook:
        """Return a rulebook without rules; attention is decomposed into primitive operations."""
        return Rulebook(maps=True)

    def read(self, run: Run) -> Reading:
        """Return the explained rows of ``F * R``."""
        require_maps(run, self.name, self.start_layer)
        require_local(run, self.name)
        require_one_text(run, self.name)
        records = run.trace.attentions
        probabilities = [r.probabilities for r in records if r.probabilities is not None]
        found = run.backward(probabilities, keep=True)
        attention = [r.arrange(p.detach()) for r, p in zip(records, probabilities, strict=True)]
        gradients = [r.arrange(g) for r, g in zip(records, found, strict=True)]
        heads = None
        if self.variant == "head":
            shares = [head_weights(A, g) for A, g in zip(attention, gradients, strict=True)]
            maps = [(A * share[..., None, None]).sum(1) for A, share in zip(attention, shares, strict=True)]
            heads = stack_layers(shares)
        else:
            stream = blocks(run, self.name)
            tokens = [token_weights(run, r, b) for r, b in zip(records, stream, strict=True)]
            maps = [A.mean(1) * weight[:, None] for A, weight in zip(attention, tokens, strict=True)]
        R = roll_up(maps[self.start_layer :], all_rows(maps[0]))
        rows = target_rows(gradients[-1])
        return Reading((rows.mT * self.feedback(run, gradients[-1]) * R).sum(1), heads=heads)

    def feedback(self, run: Run, gradient: Tensor) -> Tensor:
        """Return ``F``, ``[batch, queries, keys]``, from the gradient at the input (the end of the line) and others."""
        places = interpolated_tensors(run)
        total = gradient.clone()
        for a in np.linspace(0, 1, self.steps)[:-1]:
            rerun = run.retrace({node_of(t).seq: t.detach() * float(a) for t in places})
            last = rerun.trace.attentions[-1]
            assert last.probabilities is not None
            total += last.arrange(rerun.backward([last.probabilities])[0])
        return positive_mean(total / self.steps)


def head_weights(A: Tensor, gradient: Tensor) -> Tensor:
    """Return ``I_h``, ``[batch, heads]``: the mean of ``|A^T dy/dA|``, divided by its sum over heads."""
    importance = (A.mT @ (gradient * attended_pairs(A))).abs().mean((-2, -1))
    return importance / importance.sum(-1, keepdim=True).clamp(min=torch.finfo(A.dtype).tiny)


def token_weights(run: Run, record: AttentionRecord, block: Block) -> Tensor:
    """Return ``|v_i W_O| / |x_i|``, ``[batch, tokens]``; 0 where a token's vector is 0."""
    p = record.probabilities
    assert p is not None
    shape = [n if d in (record.query, record.key) else 1 for d, n in enumerate(p.shape)]
    alone = torch.eye(p.shape[record.key], dtype=p.dtype, device=p.device).reshape(shape).expand_as(p)
    written = token_vectors(run, block.branch, derivative(block.branch, p, alone)).norm(dim=-1)
    length = token_vectors(run, block.before).norm(dim=-1)
    return torch.where(length > 0, written / length, 0.0)


def derivative(y: Tensor, x: Tensor, direction: Tensor) -> Tensor:
    """Return the derivative of ``y`` along a direction of ``x``, as the derivative of the (linear) pullback."""
    dummy = torch.zeros_like(y, requires_grad=True)
    begin: Any = edge_of(y)
    (pulled,) = torch.autograd.grad(begin, x, dummy, create_graph=True)
    return torch.autograd.grad(pulled, dummy, direction)[0]


#: inputs that describe tokens but do not make them
AUXILIARY = ("position_ids", "token_type_ids")


def interpolated_tensors(run: Run) -> list[Tensor]:
    """Return the tensors along the line: the raw inputs, if tokens are computed from these alone; else the tokens."""
    entry = run.position("position")
    named = [s for s in run.trace.sources if s.name and s.name not in AUXILIARY]
    made_of = [s for s in named if node_of(entry).between(node_of(s.tensor)) is not None]
    return [entry] if not made_of or any(s.embedded for s in made_of) else [s.tensor for s in made_of]
