"""What Whence sees in a model: streams and attentions, what rules cover, how much is conserved, which methods apply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arguments import prepare
from .coverage import Coverage
from .errors import InputError, WhenceError
from .explain import explain, forwarded
from .explainer import Explainer
from .inputs.sample import collate
from .methods import create, methods
from .target import find_logits

SENTENCE = "The quick brown fox jumps over the lazy dog."


@dataclass
class Check:
    """The result of :func:`check`; printed, it is a report in plain words.

    Attributes:
        model: its class.
        parameters: how many it has.
        reads: what it reads.
        attentions: shape of each attention's map, ``(heads, queries, keys)``, in order.
        streams: positions of each token stream.
        difference: the largest difference between the traced and the plain forward, relative to the largest logit.
        coverage: operations with and without a rule.
        kept: the share of the target's value that reached the input with ``conservative-lrp``.
        unaccounted: the largest share of it that the books of any block cannot explain.
        methods: per method, ``""`` if it applies, or why it does not.
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

    @property
    def warnings(self) -> list[str]:
        """What speaks against trusting explanations of this model; empty if nothing does."""
        said = []
        if self.difference > 1e-3:
            said.append(f"Traced, the model gives another answer (by {self.difference:.1e}): please report this model.")
        if self.coverage.share < 0.95:
            said.append(
                f"{1 - self.coverage.share:.0%} of the operations have no rule and are passed by their plain gradient."
            )
        if not 0.5 <= self.kept <= 1.5:
            said.append(
                f"{self.kept:.0%} of the target's value reached the input: constants inside the model (biases) took or "
                "made much of it, so read scores as an order, not as shares."
            )
        if self.unaccounted > 0.05:
            said.append(f"{self.unaccounted:.0%} of the relevance is lost or made where the ledger cannot say.")
        if not self.attentions:
            said.append("No attention was found: methods that read attention maps do not apply.")
        return said

    def __str__(self) -> str:
        heads = sorted({h for h, _, _ in self.attentions})
        lines = [
            f"{self.model}, {self.parameters:,} parameters, reads {self.reads}",
            f"attention    {len(self.attentions)} layers, {' or '.join(map(str, heads)) or 'no'} heads",
            "streams      " + ", ".join(f"{name} ({n} positions)" for name, n in self.streams.items()),
            f"forward      traced = plain to {self.difference:.1e}",
            f"coverage     {self.coverage.share:.1%} of {sum(self.coverage.seen.values())} operations have a rule",
            f"conserved    {self.kept:.0%} of the target's value reached the input (conservative-lrp)",
            "methods      " + ", ".join(name for name, why in self.methods.items() if not why),
        ]
        lines += [f"not          {name}: {why}" for name, why in self.methods.items() if why]
        plain = ", ".join(f"{name} x {n}" for name, n in self.coverage.plain.most_common())
        lines += [f"no rule      {plain}"] if plain else []
        lines += [f"beware       {said}" for said in self.warnings] or [
            "trust        nothing was found that speaks against it"
        ]
        return "\n".join(lines)


def check(explainer: Explainer, input: Any = None) -> Check:
    """Look at a model through one input.

    Args:
        explainer: the model with its processor.
        input: as for the explainer; ``None`` takes a sentence, noise or a sine wave, whatever the model reads.

    Example:
        >>> print(whence.check(explainer))
    """
    sample = explainer.read(_example(explainer) if input is None else input)
    model, inputs = explainer.model, explainer.placed(collate([sample]))
    target = explainer.answers.target(None, [sample])
    inputs = inputs[""] if list(inputs) == [""] else inputs
    args, kwargs, batch = prepare(model, inputs)
    with forwarded(model, args, kwargs, batch, create("conservative-lrp", {}), [target]) as (run,):
        maps = [record.shape for record in run.trace.attentions]
        said = run.seed.logits
    with torch.no_grad():
        plain = find_logits(model(*args, **kwargs))
    e = explain(model, inputs, "conservative-lrp", target)
    assert e.ledger is not None
    total = float(e.ledger.total[0]) or 1.0
    return Check(
        model=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        reads=explainer.modality,
        attentions=maps,
        streams={name: s.shape[1] for name, s in e.streams.items()},
        difference=_difference(said, plain),
        coverage=e.coverage,
        kept=float(e.ledger.sums[0, 0]) / total if e.ledger.sums.shape[1] else float(e.scores.sum()) / total,
        unaccounted=float(e.ledger.imbalance.abs().max()) / abs(total) if e.ledger.sums.shape[1] else 0.0,
        methods={name: _applies(explainer, inputs, name, target) for name in methods()},
    )


def _difference(traced: Tensor, plain: Tensor | None) -> float:
    if plain is None or plain.numel() < traced.numel():
        return 0.0
    if plain.dim() == 3:  # an answer at every position: the one that was explained is among them
        distance = (plain - traced[:, None]).abs().amax(-1).amin(-1).max()
    else:
        distance = (plain - traced).abs().max()
    return float(distance / traced.abs().max().clamp(min=1e-30))


def _applies(explainer: Explainer, inputs: Any, name: str, target: Any) -> str:
    try:
        explain(explainer.model, inputs, name, target, **methods()[name].quick)
    except WhenceError as error:
        return str(error)
    return ""


def _example(explainer: Explainer) -> Any:
    """An input of the kind that the model reads."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
    tokenizer = getattr(explainer.reader, "tokenizer", None)
    mask = getattr(tokenizer, "mask_token", None) if getattr(explainer.reader, "fills", False) else None
    examples: dict[str, Any] = {
        "text": SENTENCE if mask is None else f"{SENTENCE} {mask}",
        "image": picture,
        "image and text": {"image": picture, "text": SENTENCE},
        "audio": np.sin(np.arange(16000) / 10).astype(np.float32),
    }
    if explainer.modality not in examples:
        raise InputError(f"This model reads {explainer.modality}: give an input to check it with.")
    return examples[explainer.modality]
