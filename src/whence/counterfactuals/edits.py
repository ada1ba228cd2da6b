"""Edits of one input: the changes that can be made, and the model's input with some of them made."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..errors import InputError, WhenceWarning
from ..evaluation.feature_removal import PIXELS, TOKENS, SequenceRemoval, blank, removal_for, token
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample
from ..results.input_origin import ImageOrigin, TextOrigin
from ..results.result import Patch, Position, Unit
from ..results.word_segmentation import Piece, Word
from .rewriting import rewritten

SIDE = 224  # pixels: an image is blurred at no larger size than this, then enlarged
Bytes = npt.NDArray[np.uint8]


class Change(NamedTuple):
    """One change: a word, a patch or a position, and the word that replaces it; ``None``: it is removed."""

    unit: Unit
    new: str | None = None


class Editor(Protocol):
    """An editor of one input.

    Attributes:
        elements: every change that can be made.
        places: for each change, the word, patch or position that it changes; at most one change per place is made.
        likely: for each change, the log-probability of the new word; 0 for removals.
    """

    elements: list[Change]
    places: list[int]
    likely: list[float]

    def changed(self, chosen: frozenset[int]) -> Any:
        """Return the input with some changes made, as the user would give it."""
        ...

    def sample(self, chosen: frozenset[int]) -> Sample | None:
        """Return the same as the model takes it; ``None`` if nothing readable is left."""
        ...


class RawInputEditor:
    """An editor of the raw text or image, which is tokenized or processed again after each edit.

    Args:
        explainer: reads the edited inputs.
        raw: the user's input.
        sample: the same as tensors.
        e: an explanation of it, with the scores of its words and patches.
        baseline: what patches are replaced with: ``"zero"``, ``"mean"`` or ``"blur"``.
    """

    def __init__(self, explainer: Explainer, raw: Any, sample: Sample, e: Explanation, baseline: str) -> None:
        self.explainer = explainer
        origins = e.origins[0] if e.origins else {}
        self.text = next((o for o in origins.values() if isinstance(o, TextOrigin)), None)
        self.image = next((o for o in origins.values() if isinstance(o, ImageOrigin)), None)
        self.joint = _joint(raw) if explainer.modality == "image and text" else None
        self.blank = None if self.image is None else _blank(self.image.image, baseline)
        words = [] if self.text is None else [Change(word(p)) for p in readable(explainer, sample, e)]
        self.elements = words + ([] if self.image is None else [Change(p) for p in _visible_patches(e, self.image)])
        self.places = list(range(len(self.elements)))
        self.likely = [0.0] * len(self.elements)

    def exchange(self, words: Mapping[int, Sequence[tuple[str, float]]]) -> None:
        """Replace words from now on instead of removing them.

        Args:
            words: for each place, the words that can replace it, with their log-probabilities.
        """
        at = [(place, new, likely) for place, each in words.items() for new, likely in each]
        self.elements = [Change(self.elements[place].unit, new) for place, new, _ in at]
        self.places = [place for place, _, _ in at]
        self.likely = [likely for _, _, likely in at]

    def changed(self, chosen: frozenset[int]) -> Any:
        """Return a text, a pair of texts, an image ``[height, width, 3]``, or a mapping of image and text."""
        made = [self.elements[i] for i in sorted(chosen)]
        parts = {} if self.joint is None else dict(self.joint)
        if self.text is not None:
            parts["text"] = texts(self.text, made)
        if self.image is not None and self.blank is not None:
            parts["image"] = _replaced(self.image.image, self.blank, [change.unit for change in made])
        return parts if self.joint is not None else next(iter(parts.values()))

    def sample(self, chosen: frozenset[int]) -> Sample | None:
        """Read the edited input again; ``None`` if nothing is left of a text."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # truncation was reported when the input was explained
            try:
                return self.explainer.read(self.changed(chosen))
            except InputError:
                return None


class TensorEditor:
    """An editor of the model's tensors: tokens, patches or positions replaced by a baseline, as in an evaluation.

    Args:
        explainer: made the explanation.
        sample: the input as tensors.
        e: an explanation of it.
        baseline: a name from :mod:`whence.evaluation.feature_removal`; ``None``: the default there.
    """

    def __init__(self, explainer: Explainer, sample: Sample, e: Explanation, baseline: str | None) -> None:
        self.given = sample
        self.removal = removal_for(explainer, sample, e, baseline, "patch", False)
        self.text = next((o for o in e.origins[0].values() if isinstance(o, TextOrigin)), None) if e.origins else None
        scores = self.removal.scores(e)
        self.count = len(scores)
        if isinstance(self.removal, SequenceRemoval):
            at = self.removal.at.tolist()
            feature = {position: i for i, position in enumerate(at)}
            pieces = [] if self.text is None else readable(explainer, sample, e)
            units: list[Unit] = [word(p) for p in pieces] or [
                Position(p, float(score)) for p, score in zip(at, scores, strict=True)
            ]
            self.features = [[feature[i] for i in p.positions] for p in pieces] or [[i] for i in range(len(at))]
        else:
            columns = self.removal.grid[1]
            units = [Patch(*divmod(i, columns), float(score), None) for i, score in enumerate(scores)]
            self.features = [[i] for i in range(len(units))]
        self.elements = [Change(unit) for unit in units]
        self.places = list(range(len(units)))
        self.likely = [0.0] * len(units)
        self.baseline_text = _baseline_text(explainer, baseline) if self.text is not None else ""

    def changed(self, chosen: frozenset[int]) -> Any:
        """Return the text with the baseline of its replaced tokens; tensors where tensors were given."""
        if self.text is None:
            return self._tensors(chosen)
        made = [
            Change(self.elements[i].unit, " ".join([self.baseline_text] * len(self.features[i])))
            for i in sorted(chosen)
        ]
        return texts(self.text, made)

    def sample(self, chosen: frozenset[int]) -> Sample | None:
        """Return the model's arguments."""
        return Sample(self._tensors(chosen), {}, position=self.given.position, alone=self.given.alone)

    def _tensors(self, chosen: frozenset[int]) -> dict[str, torch.Tensor]:
        flags = np.zeros((1, self.count), bool)
        flags[0, [feature for i in chosen for feature in self.features[i]]] = True
        return self.removal.apply(flags)


def editor_for(explainer: Explainer, raw: Any, sample: Sample, e: Explanation, remove: str | None) -> Editor:
    """Return the editor of an input.

    Args:
        explainer: made the explanation.
        raw: the user's input.
        sample: the same as tensors.
        e: the explanation.
        remove: how words or patches are removed; ``None``: words are deleted, patches blurred.
    """
    if remove not in (None, "delete", *TOKENS, *PIXELS):
        raise InputError(
            f"Nothing is removed by '{remove}': choose delete, {', '.join(TOKENS)} for texts, {', '.join(PIXELS)} for "
            "pictures."
        )
    if remove in TOKENS or not sample.origins:
        return TensorEditor(explainer, sample, e, None if remove == "delete" else remove)
    found = RawInputEditor(explainer, raw, sample, e, remove if remove in PIXELS else "blur")
    if not found.elements:
        raise InputError(
            "Counterfactuals change the words of a text or the patches of a picture, and in this input none was found "
            f"({', '.join(sample.origins)}; scores of {' and '.join(e.streams)})."
        )
    if (remove == "delete" and found.text is None) or (remove in PIXELS and found.image is None):
        raise InputError(
            f"'{remove}' is for {'texts' if remove == 'delete' else 'pictures'}: choose "
            f"{', '.join(PIXELS) if remove == 'delete' else ', '.join(('delete', *TOKENS))}."
        )
    return found


def texts(origin: TextOrigin, made: Sequence[Change]) -> Any:
    """Return the part of the user's text, or pair of texts, that the model read, with changes made.

    The truncated part is left out: otherwise it would move into the input when words before it are removed.
    """
    out = []
    for part, text in enumerate(origin.texts):
        low, high = was_read(origin, part)
        words = [(c.unit, c.new) for c in made if isinstance(c.unit, Word) and c.unit.part == part]
        own = [(max(word.start, low) - low, min(word.end, high) - low, new) for word, new in words]
        out.append(rewritten(text[low:high], own))
    return out[0] if len(out) == 1 else tuple(out)


def changed_image(changed: Any) -> Bytes | None:
    """Return the image ``[height, width, 3]`` of a changed input, where it has one."""
    image = changed.get("image") if isinstance(changed, Mapping) else changed
    return image if isinstance(image, np.ndarray) else None


def was_read(origin: TextOrigin, part: int) -> tuple[int, int]:
    """Return start and end of the part of a text that the model read; truncation is at its end or its beginning."""
    low = 0
    high = len(origin.texts[part])
    for span in origin.unread:
        if span.part == part and span.end == len(origin.texts[part]):
            high = span.start
        elif span.part == part:
            low = span.end
    return low, high


def readable(explainer: Explainer, sample: Sample, e: Explanation) -> list[Piece]:
    """Return the words that the model read, without a mask token that it is to fill in."""
    stream, origin = next((name, o) for name, o in e.origins[0].items() if isinstance(o, TextOrigin))
    gap = sample.position if getattr(explainer.reader, "is_masked_lm", False) else None
    pieces = origin.pieces(e.streams[stream][0].tolist())
    return [p for p in pieces if p.score is not None and gap not in p.positions]


def word(piece: Piece) -> Word:
    """Return a piece that has a score as a word."""
    assert piece.score is not None
    return Word(piece.text, piece.score, piece.start, piece.end, piece.part)


def _baseline_text(explainer: Explainer, baseline: str | None) -> str:
    """Return how the baseline token is written in a text."""
    name, value = token(explainer, baseline)
    tokenizer = getattr(explainer.reader, "tokenizer", None)
    spell = getattr(tokenizer, "convert_ids_to_tokens", None)
    return "[hidden]" if name != "input_ids" else str(spell(int(value))) if spell else f"[{baseline}]"


def _joint(raw: Any) -> dict[str, Any]:
    return dict(raw) if isinstance(raw, Mapping) else dict(zip(("image", "text"), raw, strict=True))


def _visible_patches(e: Explanation, origin: ImageOrigin) -> list[Patch]:
    """Return the patches that lie on the image."""
    assert e.grid is not None
    if e.grid == origin.size:
        raise InputError("The explanation is of pixels: choose a method, or `at`, that scores patches.")
    scores = e.patches[0]
    found = [
        Patch(row, column, float(scores[row, column]), origin.box(row, column, e.grid))
        for row in range(e.grid[0])
        for column in range(e.grid[1])
    ]
    return [p for p in found if p.box and p.box[0] < p.box[2] and p.box[1] < p.box[3]]


def _blank(image: Bytes, baseline: str) -> Bytes:
    """Return the baseline of an image, ``[height, width, 3]``."""
    resize = torch.nn.functional.interpolate
    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    height, width = image.shape[:2]
    shrink = min(1.0, SIDE / max(height, width))
    small = resize(pixels, (max(1, round(height * shrink)), max(1, round(width * shrink))), mode="area")
    whole = resize(blank(small, baseline), (height, width), mode="bilinear", align_corners=False)
    return np.asarray(whole[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy())


def _replaced(image: Bytes, baseline: Bytes, units: Sequence[Unit]) -> Bytes:
    """Return the image with some patches replaced by the baseline."""
    out = image.copy()
    for unit in units:
        if isinstance(unit, Patch) and unit.box is not None:
            left, top, right, bottom = unit.box
            out[top:bottom, left:right] = baseline[top:bottom, left:right]
    return out
