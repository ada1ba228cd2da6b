"""One explanation put on trial: does the order that it gives bring the answer back sooner than random orders do?

Of an input without any feature, the features are put in again, the most relevant first (the activation curve of Ali et
al., ICML 2022); the same is done in random orders. One sample proves little of a method, but it says how far this one
explanation is borne out by the model itself.
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
    """An activation curve beside those of random orders.

    Attributes:
        shares: ``[steps]``, of the features that are there, from 0 to 1.
        curve: ``[steps]``, the class's probability when the most relevant features are put in first.
        random: ``[orders, steps]``, the same for random orders.
        noun: what the features are: tokens or patches.
    """

    shares: Floats
    curve: Floats
    random: Floats
    noun: str

    @property
    def area(self) -> float:
        """Under the curve: the larger, the sooner the answer is back."""
        return float(np.trapezoid(self.curve, self.shares))

    @property
    def beaten(self) -> int:
        """How many random orders bring the answer back later."""
        return int((np.trapezoid(self.random, self.shares, axis=-1) < self.area).sum())

    def __str__(self) -> str:
        count, beaten = len(self.random), self.beaten
        said = f"Put in first, the {self.noun} that it ranks highest bring the answer back sooner than {beaten} of "
        if beaten >= 0.95 * count:
            return f"{said}{count} random orders: the model bears this explanation out."
        if beaten > 0.5 * count:
            return f"{said}{count} random orders: better than chance, but not by much."
        return f"{said}{count} random orders: no better than chance, so do not trust its order."


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
    """Put one explanation on trial.

    Args:
        explainer: the model.
        input: what was explained: one text, pair of texts or picture.
        explanation: of a class.
        orders: how many random orders there are.
        steps: how many times something is put in.
        baseline: what stands in for a feature that is not there (:mod:`whence.evaluation.feature_removal`).
        seed: of the random orders.
        batch_size: how many variants are run together.

    Example:
        >>> e = explainer("a gripping film")
        >>> print(whence.trial(explainer, "a gripping film", e))
    """
    if explanation.target is None:
        raise InputError("The explanation is not of a class, so there is no probability that could come back.")
    if orders < 1 or steps < 1:
        raise InputError(f"orders and steps must be at least 1, not {orders} and {steps}.")
    sample = explainer.read(input)
    how = removal_for(explainer, sample, explanation, baseline, "patch", special=False)
    inference = MaskedInference(explainer, sample, how, batch_size)
    activation = Activation(steps)
    scores, draw = how.scores(explanation), np.random.default_rng(seed)
    each = [scores, *(draw.permutation(len(scores)).astype(np.float64) for _ in range(orders))]
    cases = [Case(Item("", input), explanation, own, int(explanation.target[0])) for own in each]
    plans = [activation.plan(case) for case in cases]
    for plan in plans:
        inference.enqueue(plan)  # all together, those that several have in common once
    curves = [activation.sample(case, inference.logits(plan)) for case, plan in zip(cases, plans, strict=True)]
    noun = "tokens" if "input_ids" in sample.tensors else "patches"
    return Trial(activation.axis(), curves[0], np.stack(curves[1:]), noun)
