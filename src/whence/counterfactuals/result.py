"""The result of a counterfactual search: the changes, both predictions, and whether a smaller set was ruled out."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .._utils import atomic_files
from ..errors import InputError
from ..explanations.explanation import Explanation
from ..render.phrases import flat
from ..results.result import Patch
from ..results.serialization import encode
from ..results.word_segmentation import Word
from .edits import Change, changed_image
from .html_page import fragment, page

FORMAT, VERSION = "whence-counterfactuals", 1
NAMED = 12  # changes that are listed when it is printed


@dataclass(frozen=True)
class Prediction:
    """A predicted class with its probability.

    Attributes:
        index: the class.
        name: its name; for a multi-label model preceded by ``not`` if the class is decided as false.
        probability: of the class.
        watched: the probability of the watched class: the target, or the class predicted at first.
    """

    index: int
    name: str
    probability: float
    watched: float

    def __str__(self) -> str:
        return f"{flat(self.name)} ({self.probability:.1%})"


@dataclass(frozen=True, eq=False, repr=False)
class Counterfactual:
    """The smallest change found that flips a prediction, or the closest attempt.

    Attributes:
        found: whether the prediction flips; if not, the changes are those that came closest.
        changes: the words, patches or positions, the most relevant first, each with what replaces it.
        noun: what can be changed: words, patches, positions.
        candidates: how many there are.
        changed: the input with the changes made, as the user would give it: a text, a pair of texts, an image
            ``[height, width, 3]``; where tokens were replaced, the text with their baseline; tensors where tensors
            were given; ``None`` where nothing could be tried. Of a text, only the part that the model read.
        tensors: the same as the model's arguments.
        before, after: the prediction for the input, and with the changes made.
        watched: the class whose probability both predictions report: the target, or the class predicted at first.
        minimal: every proper subset of the changes was tried, and none flips the prediction.
        irreducible: the same for every subset with one change less.
        smallest: the same for every possible set of fewer changes; where nothing was found, for every set.
        tried: how many changed inputs were run, by the step of the search.
        budget: the largest number allowed.
        explanation: the explanation that ordered the search.
    """

    found: bool
    changes: tuple[Change, ...]
    noun: str
    candidates: int
    changed: Any
    tensors: Mapping[str, Tensor]
    before: Prediction
    after: Prediction
    watched: str
    minimal: bool
    irreducible: bool
    smallest: bool
    tried: Mapping[str, int]
    budget: int
    explanation: Explanation

    @property
    def runs(self) -> int:
        """The number of changed inputs that were run."""
        return sum(self.tried.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.headline})"

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"    {text}" for text in self._texts()), self.certainty, self.effort])

    @property
    def headline(self) -> str:
        """The flip and its changes, in a sentence."""
        made = f"{len(self.changes)} of {self.candidates} {self.noun}"
        named = ", ".join(_described(change) for change in self.changes[:NAMED])
        more = f" and {len(self.changes) - NAMED} more" if len(self.changes) > NAMED else ""
        verb = "with" if any(change.new is not None for change in self.changes) else "without"
        if self.found:
            return f"{self.before} becomes {self.after} {verb} {made}: {named}{more}"
        said = f"{self.before} does not flip"
        if not self.changes:
            return f"{said}: none of {self.candidates} {self.noun} can be changed"
        return (
            f"{said}: {flat(self.watched)} goes from {self.before.watched:.1%} to {self.after.watched:.1%} at best, "
            f"{verb} {made}: {named}{more}"
        )

    @property
    def certainty(self) -> str:
        """Whether smaller sets were ruled out, in a sentence."""
        if not self.found:
            return f"no {self.noun} do it: all sets were tried" if self.smallest else "not all sets were tried"
        if self.smallest:
            return f"no fewer {self.noun} do it"
        if self.minimal:
            return "none of their proper subsets does it; not all other sets were tried"
        if self.irreducible:
            return "all of them are needed, if only one is put back; not all their subsets were tried"
        return "fewer of them may do it: the budget ended the search"

    @property
    def effort(self) -> str:
        """The inputs that were run, in a sentence."""
        tried = ", ".join(f"{why} ({count:,})" for why, count in self.tried.items())
        return f"{self.runs:,} of {self.budget:,} inputs tried" + (f": {tried}" if tried else "")

    def _texts(self) -> list[str]:
        given = self.changed.get("text") if isinstance(self.changed, Mapping) else self.changed
        each = given if isinstance(given, tuple) else (given,)
        return [flat(text) for text in each if isinstance(text, str)]

    # -- saving ------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Return everything as plain values, images as PNG."""
        return {
            "found": self.found, "before": asdict(self.before), "after": asdict(self.after),
            "watched": self.watched, "changes": [_record(change) for change in self.changes],
            "candidates": self.candidates, "changed": _plain(self.changed), "minimal": self.minimal,
            "irreducible": self.irreducible, "smallest": self.smallest, "runs": self.runs, "tried": dict(self.tried),
            "budget": self.budget, "method": self.explanation.method,
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write it to a file atomically: see :func:`save`.

        Example:
            >>> whence.counterfactual(explainer, "a gripping film").save("otherwise.html")
        """
        return save([self], path)

    def _repr_html_(self) -> str:
        return fragment(self)


def save(found: Sequence[Counterfactual], path: str | Path) -> Path:
    """Write counterfactuals to a file atomically.

    Args:
        found: one, or several.
        path: its ending selects the format: ``.html``, ``.json``, ``.txt``; ``.png`` for the changed image of one.

    Returns:
        The path.
    """
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputError(
            f"Counterfactuals are not saved as '{path.name}': use one of the endings {', '.join(WRITERS)}."
        )
    atomic_files.write(path, writer(found))
    return path


def to_json(found: Sequence[Counterfactual]) -> bytes:
    """Return a JSON document of records."""
    document = {"format": FORMAT, "version": VERSION, "counterfactuals": [one.record() for one in found]}
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def _to_text(found: Sequence[Counterfactual]) -> bytes:
    return "".join(f"{one}\n" for one in found).encode()


def _to_html(found: Sequence[Counterfactual]) -> bytes:
    return page(found).encode()


def _to_png(found: Sequence[Counterfactual]) -> bytes:
    """Return the changed image, as it was given to the model."""
    images = [image for one in found if (image := changed_image(one.changed)) is not None]
    if len(found) != 1 or not images:
        raise InputError("A .png holds the changed picture of one input: use .html for several, or for texts.")
    return base64.b64decode(encode(images[0], lambda _: None)["png"])


WRITERS: dict[str, Callable[[Sequence[Counterfactual]], bytes]] = {
    ".html": _to_html, ".json": to_json, ".txt": _to_text, ".png": _to_png,
}  # fmt: skip


def _described(change: Change) -> str:
    unit = change.unit
    if isinstance(unit, Patch):
        return f"row {unit.row + 1} column {unit.column + 1}"
    name = f"'{flat(unit.text)}'" if isinstance(unit, Word) else str(unit.position)
    return name if change.new is None else f"'{flat(change.new)}' for {name}"


def _record(change: Change) -> dict[str, Any]:
    return {"kind": type(change.unit).__name__.lower(), **change.unit._asdict(), "new": change.new}


def _plain(changed: Any) -> Any:
    """Return a changed input as JSON values; tensors are left out."""
    if isinstance(changed, Mapping):
        kept = {name: _plain(value) for name, value in changed.items() if not isinstance(value, Tensor)}
        return kept or None
    if isinstance(changed, np.ndarray):
        return encode(changed, lambda _: None)
    return list(changed) if isinstance(changed, tuple) else changed
