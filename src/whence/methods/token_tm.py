"""TokenTM: token transformation matters (Wu, Duan, Kang, Tang, Yan, CVPR 2024).

A block does not only mix tokens, it also transforms them. How much of each is preserved is measured by the change of
its length and of its direction, compared to the other tokens:

``W(x -> y) = diag(|y_i| / (|x_i| + 1e-8) . softmax_i(cos(x_i, y_i)))``,

from the block's input to the stream after its attention, and from there to its output. With
``U_att = I + (E_h(A) W_att) * E_h((dy/dA)^+)`` and ``U_mlp = I + W_mlp``, contributions begin as the lengths of the
tokens, ``C = diag(|x_i|)``, and are updated by each block, ``C <- U_mlp U_att C``. The scores are the rows that the
target reads.

The authors' code was not found; this is the formula of the published code of LibraGrad (Mehri et al., CVPR 2025). It is
used there with other gradients too, by the rules of :mod:`whence.methods.libragrad` (``rules="libra"``). Under these
rules attention probabilities are constants, but the target still has a gradient with respect to them, which is read.

The formula is for pre-norm models. In a post-norm model (BERT) the stream after the attention is taken after the norm,
as a block's input and output are. A block that adds attention and MLP at once transforms tokens once, by ``U_att``.
Padding is left out of the softmax over tokens.

Cost: one forward pass, one backward pass, with unfused attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..propagation.rules.gradient import expose_heads
from ..readout.residual_blocks import Block, blocks, padding, token_vectors
from ..readout.rollup import positive_mean, require_local, require_maps, require_one_text, target_rows
from ..runs.run import Run
from .base import Method, Reading
from .libragrad import RULES
from .registry import method


@method("token-tm")
@dataclass
class TokenTM(Method):
    """Attention and its gradient, weighted by how tokens are transformed, rolled up.

    Attributes:
        rules: the rules of the gradients: ``"gradient"`` (none), ``"libra"`` or ``"ali-lrp"``.
    """

    paper: ClassVar[str] = "Wu et al., CVPR 2024"
    shows: ClassVar[str] = (
        "How tokens were transformed and mixed from layer to layer, weighted by the answer's gradient."
    )
    beware: ClassVar[str] = "It shows only what speaks for the answer, and was made for vision models."
    needs: ClassVar[str] = "attention inside residual blocks"

    rules: str = "gradient"

    def __post_init__(self) -> None:
        if self.rules not in ("gradient", "libra", "ali-lrp"):
            raise MethodError(f"`rules` must be 'gradient', 'libra' or 'ali-lrp', not {self.rules!r}.")

    def rulebook(self) -> Rulebook:
        """Return the chosen rules, with attention maps at which a gradient can be read."""
        book = dict(RULES[self.rules])
        if "mix" in book:
            book["mix"] = expose_heads
        return Rulebook(book, maps=True)

    def read(self, run: Run) -> Reading:
        """Return the explained rows of ``C``, computed from the last block to the first."""
        require_maps(run, self.name)
        require_local(run, self.name)
        require_one_text(run, self.name)
        stream = blocks(run, self.name)
        records = run.trace.attentions
        probabilities = [r.probabilities for r in records if r.probabilities is not None]
        found = run.backward(probabilities)
        maps = [r.arrange(p.detach()).mean(1) for r, p in zip(records, probabilities, strict=True)]
        gradients = [r.arrange(g) for r, g in zip(records, found, strict=True)]
        row = target_rows(gradients[-1])[:, 0]
        for A, gradient, block in zip(maps[::-1], gradients[::-1], stream[::-1], strict=True):
            W_att, W_mlp = weights(run, block)
            row = row + row * W_mlp
            row = row + (row[:, None] @ (A * positive_mean(gradient)))[:, 0] * W_att
        return Reading(row * token_vectors(run, stream[0].before).norm(dim=-1))


def weights(run: Run, block: Block) -> tuple[Tensor, Tensor]:
    """Return the diagonals ``[batch, tokens]`` of a block's ``W_att`` and ``W_mlp``; the latter is 0 without an MLP."""
    before, between, after = (token_vectors(run, t) for t in (block.before, block.between, block.after))
    none = torch.zeros_like(before[..., 0])
    return _weight(run, before, between), none if block.between is block.after else _weight(run, between, after)


def _weight(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Return ``|y_i| / |x_i| . softmax_i(cos(x_i, y_i))``, ``[batch, tokens]``."""
    cosine = torch.cosine_similarity(x, y, dim=-1)
    kept = cosine.masked_fill(padding(run, x), torch.finfo(x.dtype).min).softmax(-1)
    weight: Tensor = kept * y.norm(dim=-1) / (x.norm(dim=-1) + 1e-8)
    return weight
