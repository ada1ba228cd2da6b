"""What a search for a counterfactual came to: the changes, both answers, and how certain it is that none is smaller."""

from __future__ import annotations

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
from .edits import Change

FORMAT, VERSION = "whence-counterfactuals", 1
NAMED = 12  # changes that are named when it is printed


@dataclass(frozen=True)
class Answer:
    """What a model said.

    Attributes:
        index: the class.
        name: its name; of a multi-label model with ``not`` before it, if the answer is no.
        probability: of the class.
        watched: the probability of the class that is watched: the target, or what was said at first.
    """

    index: int
    name: str
    probability: float
    watched: float

    def __str__(self) -> str:
        return f"{flat(self.name)} ({self.probability:.1%})"


@dataclass(frozen=True, eq=False, repr=False)
class Counterfactual:
    """The smallest change found that flips a prediction, or what was tried in vain.

    Attributes:
        found: whether the prediction flips; if not, the changes are those that came nearest to it.
        changes: the words, patches or positions, the most relevant first, each with what replaces it.
        noun: what can be changed: words, patches, positions.
        candidates: how many there are.
        changed: the input with the changes made, as the user would give it: a text, a pair of texts, a picture
            ``[height, width, 3]``; where tokens were covered, the text with what stands in for them; tensors where
            tensors were given; ``None`` where nothing could be tried. Of a text, only what the model read.
        tensors: the same as the model's arguments.
        before, after: what the model says of the input, and with the changes made.
        watched: the class whose probability both answers give: the target, or what was said at first.
        minimal: every proper subset of the changes was tried, and none flips the prediction.
        irreducible: the same of every subset with one change less.
        smallest: the same of every set of fewer changes, whichever they are; where nothing was found, of every set.
        tried: how many changed inputs were given to the model, by what for.
        budget: how many would have been allowed.
        explanation: the explanation from which the search began.
    """

    found: bool
    changes: tuple[Change, ...]
    noun: str
    candidates: int
    changed: Any
    tensors: Mapping[str, Tensor]
    before: Answer
    after: Answer
    watched: str
    minimal: bool
    irreducible: bool
    smallest: bool
    tried: Mapping[str, int]
    budget: int
    explanation: Explanation

    @property
    def runs(self) -> int:
        """How many changed inputs were given to the model."""
        return sum(self.tried.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.headline})"

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"    {text}" for text in self._texts()), self.certainty, self.effort])

    @property
    def headline(self) -> str:
        """What flips what, in a sentence."""
        made = f"{len(self.changes)} of {self.candidates} {self.noun}"
        named = ", ".join(_called(change) for change in self.changes[:NAMED])
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
        """How certain it is that there is nothing smaller, in a sentence."""
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
        """What was tried, in a sentence."""
        tried = ", ".join(f"{why} ({count:,})" for why, count in self.tried.items())
        return f"{self.runs:,} of {self.budget:,} inputs tried" + (f": {tried}" if tried else "")

    def _texts(self) -> list[str]:
        given = self.changed.get("text") if isinstance(self.changed, Mapping) else self.changed
        each = given if isinstance(given, tuple) else (given,)
        return [flat(text) for text in each if isinstance(text, str)]

    # -- kept --------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """All of it as plain values, pictures as PNG."""
        return {
            "found": self.found, "before": asdict(self.before), "after": asdict(self.after),
            "watched": self.watched, "changes": [_record(change) for change in self.changes],
            "candidates": self.candidates, "changed": _plain(self.changed), "minimal": self.minimal,
            "irreducible": self.irreducible, "smallest": self.smallest, "runs": self.runs, "tried": dict(self.tried),
            "budget": self.budget, "method": self.explanation.method,
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write it to a file, whole or not at all: see :func:`save`.

        Example:
            >>> whence.counterfactual(explainer, "a gripping film").save("otherwise.html")
        """
        return save([self], path)

    def _repr_html_(self) -> str:
        from .html_page import fragment

        return fragment(self)


def save(found: Sequence[Counterfactual], path: str | Path) -> Path:
    """Write counterfactuals to a file, whole or not at all.

    Args:
        found: one, or several.
        path: its ending says how: ``.html``, ``.json``, ``.txt``; ``.png`` for the changed picture of one.

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
    """A JSON document of records."""
    document = {"format": FORMAT, "version": VERSION, "counterfactuals": [one.record() for one in found]}
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def _to_text(found: Sequence[Counterfactual]) -> bytes:
    return "".join(f"{one}\n" for one in found).encode()


def _to_html(found: Sequence[Counterfactual]) -> bytes:
    from .html_page import page

    return page(found).encode()


def _to_png(found: Sequence[Counterfactual]) -> bytes:
    """The changed picture, as it was given to the model."""
    import base64

    pictures = [picture for one in found if (picture := picture_of(one)) is not None]
    if len(found) != 1 or not pictures:
        raise InputError("A .png holds the changed picture of one input: use .html for several, or for texts.")
    return base64.b64decode(encode(pictures[0], lambda _: None)["png"])


WRITERS: dict[str, Callable[[Sequence[Counterfactual]], bytes]] = {
    ".html": _to_html, ".json": to_json, ".txt": _to_text, ".png": _to_png,
}  # fmt: skip


def picture_of(one: Counterfactual) -> np.ndarray[Any, Any] | None:
    """The changed picture ``[height, width, 3]``, where there is one."""
    given = one.changed.get("image") if isinstance(one.changed, Mapping) else one.changed
    return given if isinstance(given, np.ndarray) else None


def _called(change: Change) -> str:
    unit = change.unit
    if isinstance(unit, Patch):
        return f"row {unit.row + 1} column {unit.column + 1}"
    name = f"'{flat(unit.text)}'" if isinstance(unit, Word) else str(unit.position)
    return name if change.new is None else f"'{flat(change.new)}' for {name}"


def _record(change: Change) -> dict[str, Any]:
    return {"kind": type(change.unit).__name__.lower(), **change.unit._asdict(), "new": change.new}


def _plain(changed: Any) -> Any:
    """A changed input as JSON knows it; tensors are left to whoever gave them."""
    if isinstance(changed, Mapping):
        kept = {name: _plain(value) for name, value in changed.items() if not isinstance(value, Tensor)}
        return kept or None
    if isinstance(changed, np.ndarray):
        return encode(changed, lambda _: None)
    return list(changed) if isinstance(changed, tuple) else changed
