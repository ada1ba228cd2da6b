"""LibraGrad (Mehri, Baghshah, Pilehvar, CVPR 2025): a balanced gradient, and gradient methods based on it.

A function is FullGrad-complete if ``f(x) = x df/dx + sum_b b df/db`` over all biases ``b``. Transformers are not; with
some paths of the backward pass cut or scaled they are (sec. 3.4 and 3.5):

- attention: ``sg(softmax(Q K^T)) V``;
- LayerNorm: ``(x - E[x]) / sg(sqrt(Var[x] + eps))``; so too RMSNorm, and any division;
- activations ``x g(x)`` (GELU, SiLU): ``x sg(g(x))``; other elementwise functions (the tanh of a pooler), which the
  paper does not cover: ``x sg(f(x) / x)``;
- a product of two branches that are complete (SwiGLU): half to each. If one of them is not (a sigmoid gate, the softmax
  of a router), it is a constant for the other.

With ``x_l`` the tokens that enter block ``l`` and sums over features, the read-outs are

- ``"full-grad-plus"``, the paper's own: ``sum_l x_l df/dx_l + sum_b b df/db``;
- ``"full-grad"``: ``x_0 df/dx_0 + sum_b b df/db``, which sums to the target exactly;
- ``"input-x-gradient"``: ``x_0 df/dx_0``, the only one that can be read at pixels;
- ``"hires-cam"``: ``x_l df/dx_l`` of the last block;
- ``"att-cat"``: ``sum_l a_l x_{l+1} df/dx_{l+1}``, ``a_l`` the mean of layer ``l``'s attention over heads and rows.

Each bias counts once, at the tokens at which it is added, if that is after ``x_0``. A bias after the pooling belongs to
no token: the published code assigns it to [CLS], here the tokens that the target reads share it evenly, which is the
same for a classifier on [CLS] and also applies to a mean over tokens. Scores are signed and not normalised.

The published code explains the probability of a class (``probability=True``; its completeness tables: the logit). The
logit is the default here, as for all methods: it is what the scores sum to, and probabilities that are nearly 1 have
hardly any gradient. At pixels, convolutions have its "dissent suppression": for each output only contributions of its
own sign (without the bias), scaled to sum to the output. Its default for CLIP differentiates the final division by the
length of a feature vector; here it is a division like any other.

``rules`` also has the paper's baselines, in the same code: ``"gradient"`` (plain gradients), ``"attn-lrp"`` (AttnLRP:
attention's products give half to each factor), ``"ali-lrp"`` (LibraGrad without the rules for activations and gates).

Cost: one forward pass, one backward pass; fused attention stays fused, except for ``"att-cat"``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import MethodError, ModelError, TargetError
from ..propagation.relevance_function import LinearParts, linear_parts
from ..propagation.rule import conserving
from ..propagation.rulebook import Rulebook
from ..propagation.rules import gradient as rules
from ..propagation.rules.linear import absolute, pull
from ..readout.bias_relevance import BiasRecorder
from ..readout.rollup import require_local, require_maps
from ..runs.run import Run
from ..runs.token_streams import entries
from ..tracing.node import Node, walk
from ..tracing.op_call import Call, Rule
from ..tracing.reductions import precise
from ..tracing.tensor_info import node_of
from .base import Reading
from .gradient_x_input import InputLevel
from .registry import method

READOUTS = ("full-grad-plus", "full-grad", "input-x-gradient", "hires-cam", "att-cat")
PASSING = {"structural", "selecting", "extreme", "identity", "scale", "shift", "normalise", "reduce"}


@conserving
def share_gate(call: Call) -> Any:
    """Give each branch of a product half; an incomplete one is a constant for the other (theorems 4 and 5)."""
    incomplete = [t for t in call.traced if _is_incomplete(node_of(t))]
    if len(incomplete) == 1 and len(call.traced) == 2:
        return call.run_with(*(t.detach() if t is incomplete[0] else t for t in call.traced))
    return rules.share_product.apply(call)


def _is_incomplete(node: Node) -> bool:
    """Return whether a branch ends in a function that is not of the form ``x g(x)``: a sigmoid, a softmax."""

    def passed(current: Node) -> list[Node]:
        return list(current.live) if current.kind in PASSING else []

    return any(current.kind in ("activation", "softmax") for current in walk([node], passed))


@conserving
def suppress_dissent(call: Call) -> Any:
    """Propagate through a convolution only contributions of each output's own sign, scaled to sum to it."""
    parts = linear_parts(call)
    return call.run() if parts[0] is None else _DissentSuppression.apply(call, parts, call.traced[0])


class _DissentSuppression(torch.autograd.Function):
    """``z = sum_i c_i`` with gradient ``z / sum(c_i of z's sign)`` times that of each ``c_i`` of its sign."""

    @staticmethod
    def forward(ctx: Any, call: Call, parts: LinearParts, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.parts = parts
        output: Tensor = call.run(x)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        weight, _, apply = ctx.parts
        z, back = pull(apply, x, weight)
        sizes, back_sizes = pull(apply, x.abs(), absolute(weight))
        s = torch.where(sizes == 0, 0.0, grads[0] * z / (z.abs() + sizes))  # |z| + sum |c| is twice the sum of those
        return None, None, back(s * z.sign()) + x.sign() * back_sizes(s)


LIBRA: dict[str, Rule] = {
    **dict.fromkeys(("attention", "mix"), rules.detach_heads),
    **dict.fromkeys(("norm", "normalise"), rules.detach_deviation),
    **dict.fromkeys(("gated", "activation"), rules.activation_ratio),
    "gate": share_gate,
    "matmul": rules.share_product,
}
RULES: dict[str, dict[str, Rule]] = {
    "libra": LIBRA,
    "gradient": {},
    "attn-lrp": {
        **LIBRA,
        "attention": rules.share_attention,
        "mix": rules.share_product,
    },
    "ali-lrp": {kind: LIBRA[kind] for kind in ("attention", "mix", "norm", "normalise")},
}


@dataclass
class _BiasRulebook(Rulebook):
    biases: BiasRecorder | None = None


@method("libragrad")
@dataclass
class LibraGrad(InputLevel):
    """Gradients that account for all of the output.

    Attributes:
        readout: ``"full-grad-plus"``, ``"full-grad"``, ``"input-x-gradient"``, ``"hires-cam"`` or ``"att-cat"``.
        rules: ``"libra"``, or one of the paper's baselines: ``"gradient"``, ``"attn-lrp"``, ``"ali-lrp"``.
        probability: explain the probability of the class rather than its logit.
    """

    paper: ClassVar[str] = "Mehri, Baghshah, Pilehvar, CVPR 2025"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = "Gradients with the model's unbalanced steps corrected, so that shares add up better."
    beware: ClassVar[str] = "It needs blocks that it knows; where operations have no rule, the page says so."
    needs: ClassVar[str] = "blocks on the same tokens"

    readout: str = "full-grad-plus"
    rules: str = "libra"
    probability: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.readout not in READOUTS:
            raise MethodError(f"`readout` must be {_join_names(READOUTS)}, not {self.readout!r}.")
        if self.rules not in RULES:
            raise MethodError(f"`rules` must be {_join_names(RULES)}, not {self.rules!r}.")
        if self.at != "position" and self.readout != "input-x-gradient":
            raise MethodError(
                f"The read-out '{self.readout}' must be read at 'position', where the blocks begin, not at "
                f"{self.at!r}: only 'input-x-gradient' can be read elsewhere."
            )

    def rulebook(self) -> Rulebook:
        """Return the chosen rules; biases are recorded where the read-out needs them."""
        book = dict(RULES[self.rules])
        if self.at == "pixel" and self.rules == "libra":
            book["convolution"] = suppress_dissent
        biases = BiasRecorder() if self.readout.startswith("full-grad") else None
        maps = self.readout == "att-cat"
        return _BiasRulebook(
            biases.wrap_rules(book) if biases else book, maps=maps, heads=maps or biases is not None, biases=biases
        )

    def start(self, run: Run) -> Run:
        """Return the run to be read: of the class's logit, or of its probability."""
        return _explain_probability(run) if self.probability else run

    def read(self, run: Run) -> Reading:
        """Return the chosen read-out, ``[batch, tokens]``."""
        if self.readout.startswith("full-grad"):
            return self._full_grad(run)
        reading = super().read(run)
        if self.readout == "hires-cam":
            return replace(reading, scores=self._blocks(reading)[:, -1])
        if self.readout == "att-cat":
            return replace(reading, scores=self._att_cat(run, self._blocks(reading)))
        return reading

    def _full_grad(self, run: Run) -> Reading:
        """Return gradient x input and gradient x bias."""
        assert isinstance(run.rulebook, _BiasRulebook)
        assert run.rulebook.biases is not None
        places = self.places(run)
        run.watch_heads()
        tokens = {id(t): dim for t, dim in entries(run)} | {id(places[0]): run.tokens}
        gradients, biases = run.rulebook.biases.backward(run, [(t, tokens[id(t)]) for t in places])
        layers = run.settle(gradient=True, end=places[0], entries=[t for t, _ in entries(run)])
        relevances = [precise(g) * precise(t.detach()) for g, t in zip(gradients, places, strict=True)]
        reading = self.reading(run, places, relevances, layers)
        scores = self._blocks(reading).sum(1) if self.readout == "full-grad-plus" else reading.scores
        if scores.shape != biases[0].shape:
            raise ModelError(
                f"The scores are of {scores.shape[1]} positions that are no tokens, so biases cannot be added "
                "to them. The read-out without biases (readout='input-x-gradient') works."
            )
        others = [(dim, s + b) for (dim, s), b in zip(reading.others, biases[1:], strict=True)]
        return replace(reading, scores=scores + biases[0], others=others)

    def _blocks(self, reading: Reading) -> Tensor:
        """Return gradient x input at each block, ``[batch, blocks, tokens]``."""
        if reading.layers is None or reading.others:
            raise ModelError(
                f"The read-out '{self.readout}' needs blocks that all work on the same tokens, which this model does "
                "not have. readout='full-grad' and readout='input-x-gradient' do not need them."
            )
        return reading.layers

    def _att_cat(self, run: Run, blocks: Tensor) -> Tensor:
        """Return gradient x input of each block but the first, weighted by the attention of the block before."""
        require_maps(run, self.name)
        require_local(run, self.name)
        records = run.trace.attentions
        if len(records) != blocks.shape[1] or len(records) < 2:
            raise ModelError(
                f"The read-out 'att-cat' needs two blocks or more with one attention each; this model has "
                f"{blocks.shape[1]} blocks and {len(records)} attentions."
            )
        scores = torch.zeros_like(blocks[:, 0])
        for record, block in zip(records[:-1], blocks.unbind(1)[1:], strict=True):
            assert record.probabilities is not None
            rows = record.arrange(record.probabilities.detach()).mean(1)
            real = torch.ones_like(rows[:, 0]) if run.mask is None else (~run.mask).to(rows.dtype)
            scores += (real[:, None] @ rows)[:, 0] / real.sum(1, keepdim=True) * block
        return scores


def _explain_probability(run: Run) -> Run:
    """Return the same run, whose backward passes start at the probability of the class instead of its logit."""
    seed = run.seed
    if seed.index is None or seed.output.shape[-1] < 2:
        raise TargetError(
            "The probability of a class was asked for (probability=True), but the target is no class among others. "
            "Explain the value itself (probability=False)."
        )
    with run.trace:
        value = (torch.softmax(seed.output, -1) * seed.weights).reshape(len(seed.weights), -1).sum(1)
    run.trace.coverage.settle(node_of(value).reachable())
    return replace(run, seed=replace(seed, output=value, last=None))


def _join_names(names: Any) -> str:
    *most, last = (f"'{name}'" for name in names)
    return f"{', '.join(most)} or {last}"
