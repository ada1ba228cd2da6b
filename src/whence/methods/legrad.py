"""LeGrad (Bousselham, Boggust, Chaybouti, Strobelt, Kuehne, ICCV 2025).

The sensitivity of the target, layer by layer, to the attention of each token. The output of block ``l``, averaged over
all tokens, is passed through the model's own head, as if it were the last, and the target ``s_l`` is differentiated
with respect to that block's attention alone:

``E_l = mean over heads and queries of (ds_l / dA_l)^+``,  scores ``= sum_l E_l``.

The gradient itself is the explanation; it is not multiplied by the attention. The head is whatever follows the last
block: for CLIP norm, projection, normalisation and the similarity to a text, for a classifier its norm and its linear
layer. It is run with the mean in place of the last block's output at every position, so it does not matter which
position the model reads.

The paper averages over layers, more of them for larger models; how many could not be found. The published code sums
the last two (``layers=2``, the default here: others compare with it, and the outputs of the first blocks are far from
the head's training distribution; ``None``: all). Its scaling to 0..1 and its upsampling are left to ``normalised()``
and ``heatmap()``; it leaves out the column of [CLS]. It is for CLIP on one image without padding: here padding, and
positions under a causal mask, are left out of the means.

Where a model pools by an attention of learned queries (SigLIP, CoCa), the published code reads that attention instead,
and no mean is taken: the output of block ``l`` goes directly into the pool,

``E_l = mean over heads of (ds_l / dA_pool)^+``, in the row of the latent query that is read.

For SigLIP it skips the norm between the last block and the pool, which is the encoder's; so does the default here
(``pool_norm=False``). For CoCa it applies the norm in that place, which is the pool's own: ``pool_norm=True``. As
operations the two are the same. For SigLIP the published code also sets scores to 0 where the map for the text "a photo
of a" is large (above 0.8 of its range): a second explanation, which is left to the user.

Cost: one forward pass, and for each layer another run of the head and a backward pass through it and one block, with
unfused attention. Where other operations than the head follow the blocks in time (a second tower), the whole model is
rerun instead. Of an attention pool, the head and its backward pass for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import MethodError, ModelError
from ..propagation.rulebook import Rulebook
from ..readout.attention_pool import AttentionPool, attention_pool
from ..readout.residual_blocks import blocks, from_token_vectors, padding, token_vectors
from ..readout.rollup import attended_pairs, require_attention, require_local, require_maps, stack_layers, target_rows
from ..runs.run import Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.tensor_info import edge_of, node_of
from .base import Method, Reading
from .registry import method


@method("legrad")
@dataclass
class LeGrad(Method):
    """The positive gradient of each layer's attention, for a target computed from that layer.

    Attributes:
        layers: the number of layers, counted from the last; ``None``: all.
        pool_norm: where the model pools by an attention, whether the norm before it is applied to each block's output.
    """

    paper: ClassVar[str] = "Bousselham et al., ICCV 2025"
    shows: ClassVar[str] = (
        "Which tokens the attention of every layer would have to look at more, for the answer to grow."
    )
    beware: ClassVar[str] = "It shows only what speaks for the answer, and was made for vision models."
    needs: ClassVar[str] = "attention inside residual blocks"
    quick: ClassVar[Mapping[str, Any]] = {"layers": 1}

    layers: int | None = 2
    pool_norm: bool = False

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 1:
            raise MethodError(f"`layers` must be at least 1, or None for all, not {self.layers}.")

    def rulebook(self) -> Rulebook:
        """Return a rulebook without rules; attention is decomposed into primitive operations, and the head recorded."""
        return Rulebook(maps=True, head=True)

    def read(self, run: Run) -> Reading:
        """Return the sum over layers, ``[batch, tokens]``, also for each layer and each of its heads."""
        require_attention(run, self.name)
        pool = attention_pool(run, self.name)
        if pool is None:
            require_maps(run, self.name)
        require_local(run, self.name)
        if pool is not None:
            ends = pool.ends[self._first(pool.ends) :]
            return self._reading([self.pool_sensitivity(run, pool, after) for after in ends], pool.ends)
        stream = blocks(run, self.name)
        used = list(zip(run.trace.attentions, stream, strict=True))[self._first(stream) :]
        return self._reading([self.sensitivity(run, record, block.after) for record, block in used], stream)

    def _first(self, stream: Sequence[Any]) -> int:
        """Return the first block that is read."""
        return 0 if self.layers is None else max(0, len(stream) - self.layers)

    def _reading(self, found: list[Tensor], stream: Sequence[Any]) -> Reading:
        """Return the sum over layers, from ``[batch, heads, keys]`` of each that was read."""
        found = [torch.zeros_like(found[0])] * self._first(stream) + found  # zeros for unused blocks
        layers = torch.stack([by_head.mean(1) for by_head in found], 1)
        return Reading(layers.sum(1), layers, stack_layers([by_head.sum(-1) for by_head in found]))

    def pool_sensitivity(self, run: Run, pool: AttentionPool, after: Tensor) -> Tensor:
        """Return ``(ds/dA)^+`` in the rows that are read, of the pool of a block's output: ``[batch, heads, keys]``."""
        last = run.boundaries[-1]
        value = from_token_vectors(run, last.tensor, token_vectors(run, after)).requires_grad_()
        assert run.trace.head is not None
        assert pool.record.probabilities is not None
        made = run.trace.head.replayed(last.node if self.pool_norm else pool.normed, value.view_as(value))
        A, output = made.get(node_of(pool.record.probabilities)), made.get(node_of(run.seed.output))
        if A is None or output is None:
            raise ModelError(
                f"What follows the model's blocks cannot be run again by itself, as '{self.name}' does for the output "
                "of each. Use generic-attention, or an input-level method (conservative-lrp)."
            )
        ends: Any = [A, edge_of(run.boundaries[0].tensor)]
        weights = run.seed.weights.to(output.dtype)
        gradient, past = torch.autograd.grad(output, ends, weights, retain_graph=True, allow_unused=True)
        self._refuse_past(past)
        found = pool.record.arrange(torch.zeros_like(A) if gradient is None else gradient)
        rows = target_rows(found)[:, None]  # [batch, 1, 1, queries]
        positive = (found * attended_pairs(pool.record.arrange(A.detach()))).clamp(min=0)
        return (rows @ positive)[:, :, 0]

    def _refuse_past(self, past: Tensor | None) -> None:
        """Raise an error if the target depends on anything but the last block's output."""
        if past is not None and bool(past.any()):
            raise ModelError(
                f"The model's answer does not depend on its last block's output alone, so that '{self.name}' cannot "
                "read it from another block. Use generic-attention, or an input-level method (conservative-lrp)."
            )

    def sensitivity(self, run: Run, record: AttentionRecord, after: Tensor) -> Tensor:
        """Return the mean over queries of ``(ds/dA)^+``, for the head on a block's output: ``[batch, heads, keys]``."""
        p = record.probabilities
        assert p is not None
        share = token_shares(run, after)
        (gradient,) = torch.autograd.grad(edge_of(after), p, self.block_gradient(run, after, share), retain_graph=True)
        positive = (record.arrange(gradient) * attended_pairs(record.arrange(p.detach()))).clamp(min=0)
        return (positive * share[:, None, :, None]).sum(-2)

    def block_gradient(self, run: Run, after: Tensor, share: Tensor) -> Tensor:
        """Return the gradient, with respect to a block's output, of the target for its mean over tokens."""
        last = run.boundaries[-1]
        x = token_vectors(run, after)
        mean = from_token_vectors(run, last.tensor, (x * share[..., None]).sum(1, keepdim=True).expand_as(x))
        gradient, past = self._head_gradient(run, mean) or self._model_gradient(run, mean)
        self._refuse_past(past)
        return from_token_vectors(
            run, after, token_vectors(run, last.tensor, gradient).sum(1, keepdim=True) * share[..., None]
        )

    def _head_gradient(self, run: Run, value: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Return the gradients of the head alone, at a value of the last block's output and at the first block's input.

        The latter shows whether the target depends on anything but the last block's output. ``None`` if the head cannot
        be run by itself.
        """
        assert run.trace.head is not None
        leaf = value.detach().requires_grad_()
        output = run.trace.head.again(run.boundaries[-1].tensor, leaf.view_as(leaf), run.seed.output)
        if output is None:
            return None
        ends: Any = [leaf, edge_of(run.boundaries[0].tensor)]
        weights = run.seed.weights.to(output.dtype)
        gradient, past = torch.autograd.grad(output, ends, weights, retain_graph=True, allow_unused=True)
        return (torch.zeros_like(leaf) if gradient is None else gradient), past

    def _model_gradient(self, run: Run, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the same gradients from a rerun of the whole model."""
        last = run.boundaries[-1]
        rerun = run.retrace({last.node.seq: value})
        end = rerun.boundaries[-1].tensor
        gradient, past = rerun.backward([end, rerun.boundaries[0].tensor])
        return from_token_vectors(run, last.tensor, token_vectors(rerun, end, gradient)), past


def token_shares(run: Run, like: Tensor) -> Tensor:
    """Return the weight of each token in a mean over tokens, ``[batch, tokens]``; 0 for padding."""
    x = token_vectors(run, like)
    real = (~padding(run, x)).to(x.dtype)
    return real / real.sum(-1, keepdim=True).clamp(min=1)
