"""``whence.check``: diagnostics of a model: coverage, conservation, applicable methods, a random-ranking test."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._utils.unwrapped import unwrapped
from ..errors import InputError, WhenceError, WhenceWarning
from ..explainer.explain import explain
from ..explainer.explainer import Explainer
from ..explainer.failure_diagnosis import Attempt
from ..explanations.explanation import Explanation
from ..inputs.sample import collate
from ..methods.registry import create, list_methods
from ..runs.forward import forwarded
from ..runs.model_inputs import prepare
from ..targets.seed import find_logits
from ..tracing.coverage import Coverage
from .random_order_test import Trial, trial

SENTENCE = "The quick brown fox jumps over the lazy dog."
CARE = "with care"
NO = "no"
#: relative differences that are too large for rounding, in float32 and in half precision
TOLERANCE = 1e-3
TOLERANCE_IN_HALF = 0.2


class Reason(NamedTuple):
    """A reason against trusting explanations of a model.

    Attributes:
        verdict: ``"with care"`` or ``"no"``.
        said: what was found and what to do.
    """

    verdict: str
    said: str


@dataclass
class Check:
    """The result of :func:`check`; printed, it is a report that begins with the verdict.

    Attributes:
        model: its class.
        parameters: how many it has.
        reads: its modality.
        attentions: the shape of each attention map, ``(heads, queries, keys)``, in order.
        streams: positions of each token stream.
        difference: the largest difference between the traced and the plain forward pass, relative to the largest logit.
        coverage: operations with and without a rule.
        kept: the share of the target's value that reached the input with ``conservative-lrp``.
        unaccounted: the largest conservation error of any block, as a share of it.
        methods: per method, ``""`` if it is applicable, or why it is not.
        written_out: the largest difference to scores with unfused attention, relative to the largest score; ``None`` if
            that could not be computed.
        half: whether the model computes in half precision.
        warned: the warnings of the explanation.
        trial: the random-ranking test of the given input; ``None`` if none was given, or it is not possible.
        untried: why there was no test.
    """

    model: str
    parameters: int
    reads: str
    attentions: list[tuple[int, int, int]]
    streams: dict[str, int]
    difference: float
    coverage: Coverage
    kept: float
    unaccounted: float
    methods: dict[str, str] = field(default_factory=dict)
    written_out: float | None = None
    half: bool = False
    warned: list[str] = field(default_factory=list)
    trial: Trial | None = None
    untried: str = ""

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"with care"`` or ``"no"``: the worst verdict of all reasons."""
        found = {reason.verdict for reason in self.reasons}
        return NO if NO in found else CARE if CARE in found else "yes"

    @property
    def reasons(self) -> list[Reason]:
        """The reasons against trusting explanations of this model, the worst first."""
        found = [*self._run_reasons(), *self._rule_reasons(), *self._trial_reasons()]
        found += [Reason(CARE, said) for said in self.warned if "kernel of its own" not in said]
        return sorted(found, key=lambda reason: reason.verdict != NO)

    @property
    def warnings(self) -> list[str]:
        """The sentences of the reasons."""
        return [reason.said for reason in self.reasons]

    def _run_reasons(self) -> list[Reason]:
        reasons = []
        limit = TOLERANCE_IN_HALF if self.half else TOLERANCE
        if self.difference > limit:
            text = f"Traced, the model gives another answer (by {self.difference:.1e}): please report this model."
            reasons.append(Reason(NO, text))
        if self.written_out is not None and self.written_out > limit:
            reasons.append(
                Reason(
                    NO,
                    f"Fused attention and the same attention written out are explained differently (by "
                    f"{self.written_out:.1e}): please report this model, and load it with written-out attention "
                    '(HuggingFace: attn_implementation="eager").',
                )
            )
        if self.half:
            text = "The model computes in half precision, so small scores are rounding: load it in float32 to be sure."
            reasons.append(Reason(CARE, text))
        return reasons

    def _rule_reasons(self) -> list[Reason]:
        reasons = []
        if self.coverage.opaque:
            reasons.append(
                Reason(
                    NO,
                    f"Its attention may be inside '{self.coverage.opaque[0]}', a kernel of its own into which Whence "
                    "cannot see: relevance passes it by its plain gradient. Switch to attention in torch itself "
                    '(HuggingFace: attn_implementation="sdpa" when the model is loaded).',
                )
            )
        elif not self.attentions:
            text = "No attention was found: methods that read attention maps do not apply."
            reasons.append(Reason(CARE, text))
        if self.coverage.share < 0.95:
            some = ", ".join(name for name, _ in self.coverage.plain.most_common(3))
            reasons.append(
                Reason(
                    NO if self.coverage.share < 0.8 else CARE,
                    f"{1 - self.coverage.share:.0%} of the operations have no rule ({some}) and use their plain "
                    "gradient. A rule can be added (docs/adding-a-rule.md).",
                )
            )
        if self.unaccounted > 0.05:
            reasons.append(
                Reason(NO, f"{self.unaccounted:.0%} of the relevance is lost or made where the ledger cannot say.")
            )
        if not 0.5 <= self.kept <= 1.5:
            reasons.append(
                Reason(
                    CARE,
                    f"{self.kept:.0%} of the target's value reached the input: constants inside the model (biases) "
                    "took or made much of it, so read scores as an order, not as shares.",
                )
            )
        return reasons

    def _trial_reasons(self) -> list[Reason]:
        if self.trial is None or self.trial.beaten >= 0.95 * len(self.trial.random):
            return []
        return [Reason(CARE if self.trial.beaten > 0.5 * len(self.trial.random) else NO, str(self.trial))]

    def __str__(self) -> str:
        heads = sorted({h for h, _, _ in self.attentions})
        lines = [
            f"trust        {self.verdict}" + ("" if self.reasons else ": nothing was found that speaks against it")
        ]
        lines += [f"beware       {said}" for said in self.warnings]
        lines += [
            f"model        {self.model}, {self.parameters:,} parameters, reads {self.reads}",
            f"attention    {len(self.attentions)} layers, {' or '.join(map(str, heads)) or 'no'} heads",
            "streams      " + ", ".join(f"{name} ({n} positions)" for name, n in self.streams.items()),
            f"forward      traced = plain to {self.difference:.1e}",
        ]
        lines += [] if self.written_out is None else [f"fused        = written out to {self.written_out:.1e}"]
        lines += [
            f"coverage     {self.coverage.share:.1%} of {sum(self.coverage.seen.values())} operations have a rule",
            f"conserved    {self.kept:.0%} of the target's value reached the input (conservative-lrp)",
            f"books        balance to {self.unaccounted:.1e} of it",
            f"trial        {self.trial or self.untried}",
            "methods      " + ", ".join(name for name, why in self.methods.items() if not why),
        ]
        lines += [f"not          {name}: {why}" for name, why in self.methods.items() if why]
        plain = ", ".join(f"{name} x {n}" for name, n in self.coverage.plain.most_common())
        return "\n".join(lines + ([f"no rule      {plain}"] if plain else []))

    def record(self) -> dict[str, Any]:
        """Return everything as plain values: what ``whence check --json`` prints."""
        own = {k: v for k, v in vars(self).items() if k not in ("coverage", "trial")}
        beaten = None if self.trial is None else {"beaten": self.trial.beaten, "orders": len(self.trial.random)}
        coverage = {"share": self.coverage.share, "plain": dict(self.coverage.plain)}
        reasons = [reason._asdict() for reason in self.reasons]
        return {"verdict": self.verdict, "reasons": reasons, **own, "coverage": coverage, "trial": beaten}


def check(explainer: Explainer, input: Any = None) -> Check:
    """Check whether explanations of a model can be trusted, with one input.

    Args:
        explainer: the model with its processor.
        input: as for the explainer. With it, the random-ranking test is also run (:func:`whence.trial`). ``None`` uses
            a sentence, noise or a sine wave, by the model's modality.

    Example:
        >>> found = whence.check(explainer, "a gripping film")
        >>> found.verdict
        'yes'
        >>> print(found)
    """
    sample = explainer.read(_example(explainer) if input is None else input)
    model = explainer.model
    inputs = explainer.placed(collate([sample]))
    target = explainer.target_labels.resolve(None, [sample])
    inputs = inputs[""] if list(inputs) == [""] else inputs
    args, kwargs, batch = prepare(model, inputs)
    method = create("conservative-lrp", {})
    attempt = Attempt(model, "conservative-lrp", True, args, kwargs, [target])
    with attempt.diagnosed(), forwarded(model, args, kwargs, batch, method, [target]) as (run,):
        maps = [record.shape for record in run.trace.attentions]
        traced = run.seed.logits
    with torch.no_grad():
        plain = find_logits(model(*args, **kwargs))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", WhenceWarning)
        e = explain(model, inputs, "conservative-lrp", target)
    assert e.ledger is not None
    total = float(e.ledger.total[0]) or 1.0
    with warnings.catch_warnings():  # the warnings were recorded above
        warnings.simplefilter("ignore", WhenceWarning)
        tried, untried = _tried(explainer, input)
        applied = {name: _applies(explainer, inputs, name, target) for name in list_methods()}
        written_out = _written_out(explainer, inputs, target, e)
    return Check(
        model=type(unwrapped(model)).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        reads=explainer.modality,
        attentions=maps,
        streams={name: s.shape[1] for name, s in e.streams.items()},
        difference=_difference(traced, plain),
        coverage=e.coverage,
        kept=float(e.ledger.sums[0, 0]) / total if e.ledger.sums.shape[1] else float(e.scores.sum()) / total,
        unaccounted=float(e.ledger.imbalance.abs().max()) / abs(total) if e.ledger.sums.shape[1] else 0.0,
        methods=applied,
        written_out=written_out,
        half=any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()),
        warned=[str(w.message) for w in caught if issubclass(w.category, WhenceWarning)],
        trial=tried,
        untried=untried,
    )


def _tried(explainer: Explainer, input: Any) -> tuple[Trial | None, str]:
    """Return the random-ranking test of an input, or why it is not possible."""
    if input is None:
        return None, "none: give an input of your own, and its explanation is put on trial"
    try:
        return trial(explainer, input, explainer(input, "conservative-lrp")), ""
    except WhenceError as error:
        return None, f"none: {error}"


def _written_out(explainer: Explainer, inputs: Any, target: Any, e: Explanation) -> float | None:
    """Return the largest difference to scores with unfused attention, relative to the largest score."""
    try:
        other = explain(explainer.model, inputs, "conservative-lrp", target, inside=True)
    except WhenceError:  # `inside` is not available for every model
        return None
    largest = max(float(s.abs().max()) for s in e.streams.values())
    apart = max(float((s - other.streams[name]).abs().max()) for name, s in e.streams.items())
    return apart / max(largest, 1e-30)


def _difference(traced: Tensor, plain: Tensor | None) -> float:
    if plain is None or plain.numel() < traced.numel():
        return 0.0
    if plain.dim() == 3:  # logits at every position, the explained one among them
        distance = (plain - traced[:, None]).abs().amax(-1).amin(-1).max()
    else:
        distance = (plain - traced).abs().max()
    return float(distance / traced.abs().max().clamp(min=1e-30))


def _applies(explainer: Explainer, inputs: Any, name: str, target: Any) -> str:
    try:
        explain(explainer.model, inputs, name, target, **list_methods()[name].quick)
    except WhenceError as error:
        return str(error)
    return ""


def _example(explainer: Explainer) -> Any:
    """Return an input of the model's modality."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
    tokenizer = getattr(explainer.reader, "tokenizer", None)
    mask = getattr(tokenizer, "mask_token", None) if getattr(explainer.reader, "is_masked_lm", False) else None
    examples: dict[str, Any] = {
        "text": SENTENCE if mask is None else f"{SENTENCE} {mask}",
        "image": picture,
        "image and text": {"image": picture, "text": SENTENCE},
        "audio": np.sin(np.arange(16000) / 10).astype(np.float32),
    }
    if explainer.modality not in examples:
        raise InputError(f"This model reads {explainer.modality}: give an input to check it with.")
    return examples[explainer.modality]
