"""AttnLRP (Achtibat, Hatefi, Dreyer, Jain, Wiegand, Lapuschkin, Samek, ICML 2024).

LRP that also propagates through the softmax, to queries and keys. In gradient form, one backward pass:

- a product of two tensors that depend on the input (queries and keys, probabilities and values, a gate and what it
  gates) gives each the same share (eq. 15): its gradient is halved, so that values get a half of the plain gradient and
  queries and keys a quarter;
- softmax keeps its derivative, which is the rule of eq. 13: its implicit bias absorbs relevance, which is therefore not
  conserved;
- norms have a constant deviation (sec. 3.3.3, as in `conservative-lrp`);
- an activation passes on all its relevance (eq. 9): ``f(x) = x sg(f(x) / x)``; so do tanh and sigmoid;
- linear layers keep their derivative (the epsilon rule with epsilon 0).

The published code reads relevance at the token's own embedding: ``at="token"``.

**Vision Transformers** (sec. B.4): the gamma rule in linear layers outside of attention (``gamma=0.05``) and in the
patch convolution (``conv_gamma=0.25``), read at the pixels (``at="pixel"``), in the form for inputs of either sign. The
published code for ViT treats attention probabilities as constants (CP-LRP: ``attention="constant"``) and has no version
of the paper's rule; the default here is the paper.

The published stabilisers are kept: 1e-10 in the denominator of an activation's factor and where relevance is turned
back into a gradient, 1e-6 in the gamma rule (``gamma=0`` has it too, unlike ``gamma=None``). An activation that a model
computes by primitive operations (GPT-2's GELU) has none here, a difference of some 1e-9.

Cost: one forward pass, one backward pass; fused attention stays fused. The gamma rule costs about four more products
per layer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..propagation.rules import gradient as rules
from ..propagation.rules.linear import gamma as gamma_rule
from ..tracing.op_call import Rule
from .gradient_x_input import InputLevel
from .registry import method


@method("attn-lrp")
@dataclass
class AttnLRP(InputLevel):
    """LRP through attention, softmax included.

    Attributes:
        attention: ``"split"`` (queries and keys get relevance) or ``"constant"`` (only values do, and gates are
            constants: CP-LRP, which is `conservative-lrp` except for tanh and similar activations).
        gamma: the gamma rule's constant in linear layers outside of attention; ``None``: their derivative.
        conv_gamma: the same, in convolutions.
    """

    paper: ClassVar[str] = "Achtibat et al., ICML 2024"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = (
        "The answer's score handed back layer by layer, shared out at every step, attention's own weights included."
    )
    beware: ClassVar[str] = (
        "Be careful where the books (the ledger) do not balance, and where few of the answer's points reach the input."
    )

    attention: str = "split"
    gamma: float | None = None
    conv_gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention not in ("split", "constant"):
            raise MethodError(f"`attention` must be 'split' or 'constant', not {self.attention!r}.")
        for name in ("gamma", "conv_gamma"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise MethodError(f"`{name}` must be a number of at least 0, or None, not {value}.")

    def rulebook(self) -> Rulebook:
        """Return the rules, per kind of operation."""
        book: dict[str, Rule] = {
            "attention": rules.share_attention,
            **dict.fromkeys(("matmul", "mix", "gate"), rules.share_product),
            **dict.fromkeys(("norm", "normalise"), rules.detach_deviation),
            **dict.fromkeys(("gated", "activation"), rules.stabilised_ratio),
        }
        if self.attention == "constant":
            book |= {"attention": rules.detach_heads, "mix": rules.detach_heads, "gate": rules.detach_gate}
        if self.gamma is not None:
            book["linear"] = rules.substitute(functools.partial(gamma_rule, gamma=self.gamma))
        if self.conv_gamma is not None:
            book["convolution"] = rules.substitute(functools.partial(gamma_rule, gamma=self.conv_gamma))
        return Rulebook(book)
