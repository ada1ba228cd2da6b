"""Conservative propagation (Ali, Schnake, Eberle, Montavon, Mueller, Wolf, ICML 2022).

LRP through a Transformer in one backward pass, by two detached factors:

- AH, attention heads (sec. 3.1): ``y_j = sum_i x_i sg(p_ij)``: relevance flows to the values only;
- LN, LayerNorm (sec. 3.2): ``y = (x - E[x]) / sg(sqrt(eps + Var[x]))``, the mean attached.

Relevance is then gradient x input at the embeddings, position and type embeddings included. The ledger records what
biases absorb. ``heads=True, norms=False`` is the paper's LRP (AH), the reverse LRP (LN), both LRP (AH+LN).

The paper's model has no MLP blocks, so it has no rule for GELU; the plain derivative of GELU does not conserve
relevance. By default activations of the form ``x g(x)`` (GELU, SiLU, ReLU) pass relevance through unchanged,
``x sg(g(x))``, as later implementations of the method do (LXT's CP-LRP), and a gate ``act(g) * u`` is a constant for
``u``; ``activations="gradient"`` differentiates them as the paper's text would. Tanh (a pooler) is differentiated, as
in the paper's code; ``activations="ratio"`` gives it ``tanh(x) / x`` too.

The published code also has a default in which the mean is detached (``detach_mean=True``), which does not conserve
relevance.

Cost: one forward pass, one backward pass; fused attention stays fused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..propagation.rules import gradient as rules
from ..tracing.op_call import Rule
from .gradient_x_input import InputLevel
from .registry import method


@method("conservative-lrp")
@dataclass
class ConservativeLRP(InputLevel):
    """LRP (AH), (LN) or (AH+LN).

    Attributes:
        heads: the attention-head rule (AH).
        norms: the LayerNorm rule (LN).
        activations: ``"gate"`` (GELU and similar activations conserve), ``"ratio"`` (all do) or ``"gradient"``.
        detach_mean: also detach the mean of a LayerNorm.
    """

    paper: ClassVar[str] = "Ali et al., ICML 2022"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = (
        "The answer's score handed back layer by layer so that little is lost: each word or patch gets its share."
    )
    beware: ClassVar[str] = (
        "Be careful where the ledger says that constants inside the model took much of the score: that share is "
        "nobody's."
    )
    conservative: ClassVar[bool] = True

    heads: bool = True
    norms: bool = True
    activations: str = "gate"
    detach_mean: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activations not in ("gate", "ratio", "gradient"):
            raise MethodError(f"`activations` must be 'gate', 'ratio' or 'gradient', not {self.activations!r}.")

    def rulebook(self) -> Rulebook:
        """Return the chosen rules: AH, LN and those of activations."""
        book: dict[str, Rule] = {}
        if self.heads:
            book |= {"attention": rules.detach_heads, "mix": rules.detach_heads}
        if self.norms:
            norm = rules.detach_mean_and_deviation if self.detach_mean else rules.detach_deviation
            book |= {"norm": norm, "normalise": norm}
        if self.norms and self.detach_mean:
            book["center"] = rules.detach_mean
        if self.activations != "gradient":
            book |= {"gated": rules.activation_ratio, "gate": rules.detach_gate}
        if self.activations == "ratio":
            book["activation"] = rules.activation_ratio
        return Rulebook(book)
