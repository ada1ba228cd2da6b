"""LeGrad (Bousselham, Boggust, Chaybouti, Strobelt, Kuehne, ICCV 2025).

How sensitive is the answer, layer by layer, to where each token looks? The output of block ``l``, averaged over all
tokens, is put through the model's own head, as if it were the last, and the answer ``s_l`` differentiated with respect
to that block's attention alone:

``E_l = mean over heads and queries of (ds_l / dA_l)^+``,  scores ``= sum_l E_l``.

The gradient itself is the explanation; the attention is not multiplied. The head is whatever follows the last block:
for CLIP norm, projection, normalisation and the similarity to a text, for a classifier its norm and its classes. It is
found by running the model again with the mean in place of the last block's output at every position, so it does not
matter which position the model reads.

The paper averages over layers, more of them for larger models; how many could not be found. The published code sums
the last two (``layers=2``, the default here: others compare with it, and first blocks are far from what the head was
trained on; ``None``: all). Its scaling to 0..1 and its upsampling are left to ``normalised()`` and ``heatmap()``; it
leaves out the column of [CLS]. It is for CLIP on one picture without padding: padding takes no part in the means here,
nor does what a causal mask hides. Where a model pools by an attention of its own (SigLIP, CoCa) the published code
reads that attention instead, which is not done here: such a model is refused.

Cost: one forward, and for each layer the head once more and the backward of it and of one block, attention maps written
out. Where the head is not all that follows the blocks in time (a second tower), the whole model runs again instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import MethodError, ModelError
from ..propagation.rulebook import Rulebook
from ..readout.residual_blocks import blocks, from_token_vectors, padding, token_vectors
from ..readout.rollup import attended_pairs, require_local, require_maps, stack_layers
from ..runs.run import Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.node import edge_of
from .base import Method, Reading
from .registry import method


@method("legrad")
@dataclass
class LeGrad(Method):
    """The positive gradient of each layer's attention, for an answer read from that layer.

    Attributes:
        layers: how many layers, counted from the last; ``None``: all.
    """

    paper: ClassVar[str] = "Bousselham et al., ICCV 2025"
    shows: ClassVar[str] = (
        "Which tokens the attention of every layer would have to look at more, for the answer to grow."
    )
    beware: ClassVar[str] = "It shows only what speaks for the answer, and was made for vision models."
    needs: ClassVar[str] = "attention inside residual blocks"
    quick: ClassVar[Mapping[str, Any]] = {"layers": 1}

    layers: int | None = 2

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 1:
            raise MethodError(f"`layers` must be at least 1, or None for all, not {self.layers}.")

    def rulebook(self) -> Rulebook:
        """Plain gradients, attention maps written out."""
        return Rulebook(maps=True, head=True)

    def read(self, run: Run) -> Reading:
        """``[batch, tokens]``: the sum over layers; what each layer gave, and each head of it, besides."""
        require_maps(run, self.name)
        require_local(run, self.name)
        stream = blocks(run, self.name)
        first = 0 if self.layers is None else max(0, len(stream) - self.layers)
        used = list(zip(run.trace.attentions, stream, strict=True))[first:]
        found = [self.sensitivity(run, record, block.after) for record, block in used]
        found = [torch.zeros_like(found[0])] * first + found  # a place for every block
        layers = torch.stack([by_head.mean(1) for by_head in found], 1)
        return Reading(layers.sum(1), layers, stack_layers([by_head.sum(-1) for by_head in found]))

    def sensitivity(self, run: Run, record: AttentionRecord, after: Tensor) -> Tensor:
        """``[batch, heads, keys]``: the mean over queries of ``(ds/dA)^+``, the answer read from the block's output."""
        p = record.probabilities
        assert p is not None
        share = token_shares(run, after)
        (gradient,) = torch.autograd.grad(after, p, self.pull(run, after, share), retain_graph=True)
        positive = (record.arrange(gradient) * attended_pairs(record.arrange(p.detach()))).clamp(min=0)
        return (positive * share[:, None, :, None]).sum(-2)

    def pull(self, run: Run, after: Tensor, share: Tensor) -> Tensor:
        """The gradient with respect to a block's output of the answer that the head gives to its mean over tokens."""
        last, x = run.boundaries[-1], token_vectors(run, after)
        mean = from_token_vectors(run, last.tensor, (x * share[..., None]).sum(1, keepdim=True).expand_as(x))
        gradient, past = self._of_the_head(run, mean) or self._of_the_model(run, mean)
        if past is not None and bool(past.any()):
            raise ModelError(
                f"The model's answer does not depend on its last block's output alone, so that '{self.name}' cannot "
                "read it from another block. Use generic-attention, or an input-level method (conservative-lrp)."
            )
        return from_token_vectors(
            run, after, token_vectors(run, last.tensor, gradient).sum(1, keepdim=True) * share[..., None]
        )

    def _of_the_head(self, run: Run, value: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Gradients with respect to a value at the end of the last block, and past it; the head alone is run again."""
        assert run.trace.head is not None
        leaf = value.detach().requires_grad_()
        answer = run.trace.head.again(run.boundaries[-1].tensor, leaf.view_as(leaf), run.seed.output)
        if answer is None:
            return None
        ends: Any = [leaf, edge_of(run.boundaries[0].tensor)]
        weights = run.seed.weights.to(answer.dtype)
        gradient, past = torch.autograd.grad(answer, ends, weights, retain_graph=True, allow_unused=True)
        return (torch.zeros_like(leaf) if gradient is None else gradient), past

    def _of_the_model(self, run: Run, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same where the tape of the head does not tell: the whole model is run again."""
        last = run.boundaries[-1]
        there = run.retrace({last.node.seq: value})
        end, first = there.boundaries[-1].tensor, there.boundaries[0].tensor
        gradient, past = there.backward([end, first])
        return from_token_vectors(run, last.tensor, token_vectors(there, end, gradient)), past


def token_shares(run: Run, like: Tensor) -> Tensor:
    """``[batch, tokens]``: what each token counts in a mean over tokens; padding counts 0."""
    x = token_vectors(run, like)
    real = (~padding(run, x)).to(x.dtype)
    return real / real.sum(-1, keepdim=True).clamp(min=1)
