"""ResLRP (Berend, Achtibat, et al., 2026): AttnLRP with the gamma rule at residual additions.

Residual stream and residual branch often cancel: ``y = a + b`` is small where ``a`` and ``b`` are large and of
opposite signs, and relevance in proportion to ``a`` and ``b`` explodes. The gamma rule (eq. 3 and 4) favours the
summand that has the sum's sign: ``R_a = w(a) a / (w(a) a + w(b) b) R_y`` with ``w(z) = 1 + gamma [z y > 0]``. Relevance
is conserved at every addition, and its magnitude grows by at most ``1 + 2 / gamma``. All other operations are as in
`attn-lrp`; ``gamma=0`` is `attn-lrp`, except for the stabiliser of its activations.

The rule applies where a branch is added to the residual stream that it reads, twice in each block, and not where
position embeddings are added. The paper uses ``gamma=1`` everywhere and reads pixels (``at="pixel"``); for vision and
language models it uses the rule in the vision tower only, which is not done here. Where the paper leaves a choice: a
sum that is exactly 0 passes on its gradient unchanged; the printed eq. 3 has a wrong index and the appendix's code
lacks the factor ``y``: eq. 4 is followed. Linear layers and convolutions keep their derivative, as the paper's own
numbers for AttnLRP suggest. No code was published, so the numbers are checked against a re-implementation.

Cost: one forward pass, one backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..propagation.rules import gradient as rules
from .attn_lrp import AttnLRP
from .gradient_x_input import InputLevel
from .registry import method


@method("res-lrp")
@dataclass
class ResLRP(InputLevel):
    """AttnLRP with residual additions that favour the summand of the sum's own sign.

    Attributes:
        gamma: the extra weight of that summand; 0: none.
        attention: ``"split"`` (queries and keys get relevance) or ``"constant"`` (only values do; this conserves).
    """

    paper: ClassVar[str] = "Berend et al., 2026"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = "The answer's score handed back layer by layer, with care for what goes past each block."
    beware: ClassVar[str] = "Be careful where the ledger does not balance."

    gamma: float = 1.0
    attention: str = "split"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma < 0:
            raise MethodError(f"`gamma` must be at least 0, not {self.gamma}.")

    def rulebook(self) -> Rulebook:
        """Return the rules of `attn-lrp`, and one for sums."""
        book = AttnLRP(attention=self.attention).rulebook()
        activations = dict.fromkeys(("gated", "activation"), rules.activation_ratio)
        return replace(book, rules={**book.rules, **activations, "add": rules.residual_gamma(self.gamma)})
