"""The random-ranking test: does the order of one explanation restore the prediction faster than random orders?

Starting from an input without features, the features are inserted, the most relevant first (the activation curve of Ali
et al., ICML 2022); the same is done in random orders. One sample proves little about a method, but it shows how
faithful this explanation is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..datasets.item import Item
from ..errors import InputError
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from .case import Case, Floats
from .feature_removal import removal_for
from .masked_inference import MaskedInference
from .measures.activation import Activation

ORDERS = 20


@dataclass(frozen=True, eq=False)
class Trial:
    """The result of a random-ranking test: an activation curve beside those of random orders.

    Attributes:
        shares: ``[steps]``, of the inserted features, from 0 to 1.
        curve: ``[steps]``, the class's probability when the most relevant features are inserted first.
        random: ``[orders, steps]``, the same for random orders.
        noun: the features: tokens or patches.
    """

    shares: Floats
    curve: Floats
    random: Floats
    noun: str

    @property
    def area(self) -> float:
        """The area under the curve: the larger, the faster the prediction is restored."""
        return float(np.trapezoid(self.curve, self.shares))

    @property
    def beaten(self) -> int:
        """The number of random orders with a smaller area."""
        return int((np.trapezoid(self.random, self.shares, axis=-1) < self.area).sum())

    def __str__(self) -> str:
        count = len(self.random)
        beaten = self.beaten
        p_value = (count - beaten + 1) / (count + 1)  # this order is one of those that chance may draw
        text = (
            f"Faithfulness: inserting {self.noun} in this order restores the prediction faster than {beaten} of "
            f"{count} random orders (p = {p_value:.2g})"
        )
        if beaten >= 0.95 * count:
            return f"{text}."
        if beaten > 0.5 * count:
            return f"{text}: better than chance, but not by much."
        return f"{text}: no better than chance, so do not trust this order."


def trial(
    explainer: Explainer,
    input: Any,
    explanation: Explanation,
    *,
    orders: int = ORDERS,
    steps: int = 10,
    baseline: str | None = None,
    seed: int = 0,
    batch_size: int = 16,
) -> Trial:
    """Run the random-ranking test on one explanation.

    Args:
        explainer: the model.
        input: the explained input: one text, pair of texts or image.
        explanation: of a class.
        orders: the number of random orders.
        steps: the number of insertions.
        baseline: what removed features are replaced with (:mod:`whence.evaluation.feature_removal`).
        seed: of the random orders.
        batch_size: how many variants are run together.

    Example:
        >>> e = explainer("a gripping film")
        >>> print(whence.trial(explainer, "a gripping film", e))
    """
    if explanation.target is None:
        raise InputError("The explanation is not of a class, so there is no probability to restore.")
    if orders < 1 or steps < 1:
        raise InputError(f"orders and steps must be at least 1, not {orders} and {steps}.")
    sample = explainer.read(input)
    removal = removal_for(explainer, sample, explanation, baseline, "patch", special=False)
    inference = MaskedInference(explainer, sample, removal, batch_size)
    activation = Activation(steps)
    scores = removal.scores(explanation)
    draw = np.random.default_rng(seed)
    rankings = [scores, *(draw.permutation(len(scores)).astype(np.float64) for _ in range(orders))]
    cases = [Case(Item("", input), explanation, ranking, int(explanation.target[0])) for ranking in rankings]
    plans = [activation.plan(case) for case in cases]
    for plan in plans:
        inference.enqueue(plan)  # variants that several orders share are run once
    curves = [activation.sample(case, inference.logits(plan)) for case, plan in zip(cases, plans, strict=True)]
    noun = "tokens" if "input_ids" in sample.tensors else "patches"
    return Trial(activation.axis(), curves[0], np.stack(curves[1:]), noun)
