"""``whence.counterfactual``: the smallest change of an input that flips the prediction."""

from __future__ import annotations

from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

import torch

from .._utils.type_checks import require_positive
from ..errors import InputError, TargetError
from ..evaluation.case import Floats, as_floats
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample
from ..results.result import Patch, Position
from ..results.word_segmentation import Word
from ..targets.seed import class_index
from ..targets.specs import At, contrast
from .budgeted_inference import BudgetedInference
from .edits import RawInputEditor, editor_for
from .flip_criterion import FlipCriterion
from .mlm_proposals import WORDS, WordProposer
from .result import Counterfactual, Prediction
from .search import Search

BUDGET = 500
PLURAL: dict[type, str] = {Word: "words", Patch: "patches", Position: "positions"}


def counterfactual(
    explainer: Explainer,
    input: Any,
    method: str = "conservative-lrp",
    target: int | str | None = None,
    *,
    remove: str | None = None,
    replace: Explainer | str | Path | None = None,
    budget: int = BUDGET,
    batch_size: int = 16,
    **options: Any,
) -> Counterfactual:
    """Find the smallest set of words, or patches, whose removal or replacement flips the prediction.

    Args:
        explainer: the model.
        input: one text, pair of texts, image, image with its text, or tensors of one sample. The truncated part of a
            text that is longer than the model takes is left out of every changed form.
        method: the name of the method whose scores order the search, from :func:`whence.list_methods`.
        target: the class that shall be predicted instead; ``None``: any other. For a multi-label model, the class
            whose decision shall flip, from yes to no or from no to yes; ``None``: the strongest.
        remove: how words are removed: ``"delete"`` (default) deletes them from the text, ``"unk"``, ``"mask"``,
            ``"pad"`` and ``"hide"`` replace their tokens (:mod:`whence.evaluation.feature_removal`). How patches are:
            ``"blur"`` (default), ``"mean"`` or ``"zero"``.
        replace: a masked language model, or its directory or id on the hub: words are not removed but replaced by
            words that it proposes.
        budget: how many changed inputs are run at most, including those of the masked language model.
        batch_size: how many are run together.
        options: the method's options.

    Returns:
        The changes found and whether a smaller set was ruled out, or the closest attempt.

    Example:
        >>> print(whence.counterfactual(explainer, "A gripping film, though far too long."))
    """
    if isinstance(input, list):
        raise InputError("A counterfactual is of one input: give them one by one.")
    require_positive(budget=budget, batch_size=batch_size)
    if remove is not None and replace is not None:
        raise InputError("Words are removed or replaced: give `remove` or `replace`, not both.")
    sample = explainer.read(input)
    criterion, e = _criterion(explainer, sample, method, target, options)
    editor = editor_for(explainer, input, sample, e, remove)
    inference = BudgetedInference(explainer, editor, criterion, budget, batch_size)
    sign = -1.0 if criterion.multi_label and not criterion.positive else 1.0
    relevance = [sign * change.unit.score for change in editor.elements]
    if replace is not None:
        _propose(WordProposer(replace), editor, inference, relevance)
    Search(inference, relevance).run()
    return _result(explainer, inference, e, relevance)


def _criterion(
    explainer: Explainer, sample: Sample, method: str, target: int | str | None, options: dict[str, Any]
) -> tuple[FlipCriterion, Explanation]:
    """Return what counts as a flip, and an explanation of what speaks against it."""
    if not (target is None or isinstance(target, int | str)):
        raise TargetError(f"The target of a counterfactual is a class number or a label, not {type(target).__name__}.")
    e: Explanation = explainer.batch([sample], method, None, options)[0]
    if e.prediction is None or e.task == "regression" or e.logits.dim() != 2:
        raise InputError(
            "The model gives a value, not a class, so there is no prediction that could flip. Explain its value "
            "instead, or give a model with classes."
        )
    multi_label = e.task == "multi-label"
    if e.logits.shape[-1] == 1 and not multi_label:
        raise InputError("The model has one class, so its prediction cannot flip to another.")
    predicted = int(e.prediction[0])
    wanted = None if target is None else _class(explainer, sample, target, e)
    if multi_label:
        flipped = predicted if wanted is None else wanted
        if flipped != predicted:
            e = explainer.batch([sample], method, flipped, options)[0]
        return FlipCriterion(flipped, multi_label=True, positive=bool(e.logits[0, flipped] > 0)), e
    if wanted == predicted:
        raise TargetError(f"The model says '{e.prediction_names[0]}' already: give another class, or none.")
    if wanted is not None:
        e = explainer.batch([sample], method, contrast(predicted, wanted), options)[0]
    return FlipCriterion(predicted, wanted), e


def _class(explainer: Explainer, sample: Sample, target: int | str, e: Explanation) -> int:
    """Return the index of a class that is given by index, label or token."""
    resolved = explainer.target_labels.resolve(target, [sample])
    return class_index(resolved.target if isinstance(resolved, At) else resolved, e.logits.shape[-1], e.labels)


def _propose(proposer: WordProposer, editor: Any, inference: BudgetedInference, relevance: list[float]) -> None:
    """Propose replacements for the most relevant words, as many as half of the budget allows."""
    if not isinstance(editor, RawInputEditor) or editor.text is None or editor.image is not None:
        raise InputError("Words are replaced in texts, and this input is none. Remove its patches instead.")
    units = [change.unit for change in editor.elements]
    order = sorted(range(len(units)), key=lambda i: -relevance[i])
    words = [(i, u) for i in order if isinstance(u := units[i], Word) and any(c.isalnum() for c in u.text)]
    words = words[: max(1, inference.budget // (2 * (WORDS + 1)))]
    proposals = proposer.propose(editor.text, [word for _, word in words], inference.batch_size)
    inference.tried["proposing words"] += len(words)
    editor.exchange({i: each for (i, _), each in zip(words, proposals, strict=True) if each})


def _result(
    explainer: Explainer, inference: BudgetedInference, e: Explanation, relevance: list[float]
) -> Counterfactual:
    criterion = inference.criterion
    editor = inference.editor
    found = inference.best
    chosen = found or inference.closest or frozenset()
    before = as_floats(e.logits[0])
    after = inference.logits.get(chosen, before)

    def prediction(logits: Floats) -> Prediction:
        probabilities = criterion.probabilities(logits)
        top = criterion.predicted if criterion.multi_label else int(logits.argmax())
        name = _name(explainer, e, top)
        if criterion.multi_label and logits[top] <= 0:
            name = f"not {name}"
        return Prediction(top, name, float(probabilities[top]), float(probabilities[criterion.watched]))

    sample = editor.sample(chosen) if chosen else None
    ordered = sorted(chosen, key=lambda i: -relevance[editor.places[i]])
    places = len(set(editor.places))
    return Counterfactual(
        found=found is not None,
        changes=tuple(editor.elements[i] for i in ordered),
        noun=" or ".join(sorted({PLURAL[type(change.unit)] for change in editor.elements}, reverse=True)) or "words",
        candidates=places,
        changed=editor.changed(chosen) if chosen else None,
        tensors={} if sample is None else sample.tensors,
        before=prediction(before),
        after=prediction(after),
        watched=_name(explainer, e, criterion.watched),
        minimal=found is not None and inference.minimal(found),
        irreducible=found is not None and inference.irreducible(found),
        smallest=inference.smallest(places + 1 if found is None else len(found)),
        tried=dict(inference.tried),
        budget=inference.budget,
        explanation=e,
    )


def _name(explainer: Explainer, e: Explanation, index: int) -> str:
    """Return the name of a class, or of a token."""
    if index in e.labels:
        return e.labels[index]
    other = with_changes(e, prediction=torch.tensor([index]), target=None, prediction_names=())
    named = explainer.target_labels.attach_names(other, index).prediction_names
    return named[0] if named else str(index)
