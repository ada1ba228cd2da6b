"""``whence.counterfactual``: what would have to be otherwise for the model to say something else."""

from __future__ import annotations

from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

import torch

from .._utils.type_checks import counts
from ..errors import InputError, TargetError
from ..evaluation.case import as_floats
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample
from ..results.result import Patch, Position
from ..results.word_segmentation import Word
from ..targets.seed import class_index
from ..targets.specs import At, contrast
from .budgeted_inference import Asked
from .edits import Written, editor_for
from .flip_criterion import Question
from .mlm_proposals import WORDS, Filler
from .result import Answer, Counterfactual
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
    """The smallest set of words, or patches, whose removal or replacement flips the prediction.

    Args:
        explainer: the model.
        input: one text, pair of texts, picture, picture with its text, or tensors of one sample. Of a text that is
            longer than the model takes, what was not read is left out of every changed form.
        method: the name of the method whose scores say where to begin, from :func:`whence.list_methods`.
        target: the class that the model shall name instead; ``None``: any other. Of a multi-label model, the class
            whose answer shall flip, from yes to no or from no to yes; ``None``: the strongest.
        remove: how words are removed: ``"delete"`` (default) deletes them from the text, ``"unk"``, ``"mask"``,
            ``"pad"`` and ``"hide"`` replace their tokens (:mod:`whence.evaluation.feature_removal`). How patches are:
            ``"blur"`` (default), ``"mean"`` or ``"zero"``.
        replace: a masked language model, or its directory or id on the hub: words are not removed but exchanged for
            words that it proposes.
        budget: how many changed inputs are tried at most, those that the masked language model reads included.
        batch_size: how many are run together.
        options: the method's options.

    Returns:
        What was found and how certain it is that there is nothing smaller, or what was tried in vain.

    Example:
        >>> print(whence.counterfactual(explainer, "A gripping film, though far too long."))
    """
    if isinstance(input, list):
        raise InputError("A counterfactual is of one input: give them one by one.")
    counts(budget=budget, batch_size=batch_size)
    if remove is not None and replace is not None:
        raise InputError("Words are removed or replaced: give `remove` or `replace`, not both.")
    sample = explainer.read(input)
    question, e = _asked_about(explainer, sample, method, target, options)
    editor = editor_for(explainer, input, sample, e, remove)
    asked = Asked(explainer, editor, question, budget, batch_size)
    sign = -1.0 if question.several and not question.yes else 1.0
    relevance = [sign * change.unit.score for change in editor.elements]
    if replace is not None:
        _propose(Filler(replace), editor, asked, relevance)
    Search(asked, relevance).run()
    return _outcome(explainer, asked, e, relevance)


def _asked_about(
    explainer: Explainer, sample: Sample, method: str, target: int | str | None, options: dict[str, Any]
) -> tuple[Question, Explanation]:
    """What shall flip, and an explanation of what speaks against that."""
    if not (target is None or isinstance(target, int | str)):
        raise TargetError(f"The target of a counterfactual is a class number or a label, not {type(target).__name__}.")
    e: Explanation = explainer.batch([sample], method, None, options)[0]
    if e.prediction is None or e.task == "regression" or e.logits.dim() != 2:
        raise InputError(
            "The model gives a value, not a class, so there is no prediction that could flip. Explain its value "
            "instead, or give a model with classes."
        )
    several, classes = e.task == "multi-label", e.logits.shape[-1]
    if classes == 1 and not several:
        raise InputError("The model has one class, so its prediction cannot flip to another.")
    said = int(e.prediction[0])
    wanted = None if target is None else _class(explainer, sample, target, e)
    if several:
        asked = said if wanted is None else wanted
        if asked != said:
            e = explainer.batch([sample], method, asked, options)[0]
        return Question(asked, several=True, yes=bool(e.logits[0, asked] > 0)), e
    if wanted == said:
        raise TargetError(f"The model says '{e.prediction_names[0]}' already: give another class, or none.")
    if wanted is not None:
        e = explainer.batch([sample], method, contrast(said, wanted), options)[0]
    return Question(said, wanted), e


def _class(explainer: Explainer, sample: Sample, target: int | str, e: Explanation) -> int:
    """The number of a class that is given by number, label or token."""
    resolved = explainer.answers.target(target, [sample])
    return class_index(resolved.target if isinstance(resolved, At) else resolved, e.logits.shape[-1], e.labels)


def _propose(filler: Filler, editor: Any, asked: Asked, relevance: list[float]) -> None:
    """Words for as many places as half of the budget reaches for, those that speak most for the prediction first."""
    if not isinstance(editor, Written) or editor.text is None or editor.image is not None:
        raise InputError("Words are replaced in texts, and this input is none. Remove its patches instead.")
    units = [change.unit for change in editor.elements]
    order = sorted(range(len(units)), key=lambda i: -relevance[i])
    some = [(i, u) for i in order if isinstance(u := units[i], Word) and any(c.isalnum() for c in u.text)]
    some = some[: max(1, asked.budget // (2 * (WORDS + 1)))]
    found = filler.propose(editor.text, [word for _, word in some], asked.batch_size)
    asked.tried["proposing words"] += len(some)
    editor.exchange({i: each for (i, _), each in zip(some, found, strict=True) if each})


def _outcome(explainer: Explainer, asked: Asked, e: Explanation, relevance: list[float]) -> Counterfactual:
    found = asked.best
    chosen = found or asked.closest or frozenset()
    whole = as_floats(e.logits[0])
    logits = asked.logits.get(chosen, whole)

    def answer(row: Any) -> Answer:
        chances = asked.question.probabilities(row)
        top = asked.question.said if asked.question.several else int(row.argmax())
        name = _name(explainer, e, top)
        said = f"not {name}" if asked.question.several and row[top] <= 0 else name
        return Answer(top, said, float(chances[top]), float(chances[asked.question.watched]))

    editor = asked.editor
    sample = editor.sample(chosen) if chosen else None
    ordered = sorted(chosen, key=lambda i: -relevance[editor.places[i]])
    return Counterfactual(
        found=found is not None,
        changes=tuple(editor.elements[i] for i in ordered),
        noun=" or ".join(sorted({PLURAL[type(change.unit)] for change in editor.elements}, reverse=True)) or "words",
        candidates=len(set(editor.places)),
        changed=editor.changed(chosen) if chosen else None,
        tensors={} if sample is None else sample.tensors,
        before=answer(whole),
        after=answer(logits),
        watched=_name(explainer, e, asked.question.watched),
        minimal=found is not None and asked.minimal(found),
        irreducible=found is not None and asked.irreducible(found),
        smallest=asked.smallest(len(set(editor.places)) + 1 if found is None else len(found)),
        tried=dict(asked.tried),
        budget=asked.budget,
        explanation=e,
    )


def _name(explainer: Explainer, e: Explanation, index: int) -> str:
    """A class, or a token, by its name."""
    if index in e.labels:
        return e.labels[index]
    other = with_changes(e, prediction=torch.tensor([index]), target=None, prediction_names=())
    named = explainer.answers.named(other, index).prediction_names
    return named[0] if named else str(index)
