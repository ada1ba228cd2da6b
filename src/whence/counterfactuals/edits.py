"""An input's changed forms: what can be changed in it, and what the model is given when some of it is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..errors import InputError, WhenceWarning
from ..evaluation.feature_removal import PIXELS, TOKENS, Rows, blank, removal, token
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample
from ..results.input_origin import ImageOrigin, TextOrigin
from ..results.result import Patch, Position, Unit
from ..results.word_segmentation import Piece, Word
from .rewriting import rewritten

SIDE = 224  # pixels: a picture's blurred form is made no larger than this, and enlarged
Bytes = npt.NDArray[np.uint8]


class Change(NamedTuple):
    """One change: a word, a patch or a position, and the word that replaces it; ``None``: it is removed."""

    unit: Unit
    new: str | None = None


class Editor(Protocol):
    """Makes changed forms of one input.

    Attributes:
        elements: every change that can be made.
        places: of each, which word, patch or position it changes; of those with the same, only one is made.
        likely: of each, how well it fits (a logarithm of a probability); 0 for removals.
    """

    elements: list[Change]
    places: list[int]
    likely: list[float]

    def changed(self, chosen: frozenset[int]) -> Any:
        """The input with some changes made, as the user would give it."""
        ...

    def sample(self, chosen: frozenset[int]) -> Sample | None:
        """The same as the model takes it; ``None`` if nothing is left that could be read."""
        ...


class Written:
    """Changes as the user would make them, in the text and in the picture, which are then read again.

    Args:
        explainer: reads them.
        raw: what the user gave.
        sample: the same as it was read.
        e: an explanation of it, with the scores of its words and patches.
        baseline: what is painted over patches: ``"zero"``, ``"mean"`` or ``"blur"``.
    """

    def __init__(self, explainer: Explainer, raw: Any, sample: Sample, e: Explanation, baseline: str) -> None:
        self.explainer = explainer
        origins = e.origins[0] if e.origins else {}
        self.text = next((o for o in origins.values() if isinstance(o, TextOrigin)), None)
        self.image = next((o for o in origins.values() if isinstance(o, ImageOrigin)), None)
        self.joint = _joint(raw) if explainer.modality == "image and text" else None
        self.blank = None if self.image is None else _blank(self.image.image, baseline)
        words = [] if self.text is None else [Change(word(p)) for p in readable(explainer, sample, e)]
        self.elements = words + ([] if self.image is None else [Change(p) for p in _seen(e, self.image)])
        self.places = list(range(len(self.elements)))
        self.likely = [0.0] * len(self.elements)

    def exchange(self, words: Mapping[int, Sequence[tuple[str, float]]]) -> None:
        """From now on, words are not removed but exchanged.

        Args:
            words: of each place, the words that can stand there instead, with the logarithm of their probability.
        """
        at = [(place, new, likely) for place, each in words.items() for new, likely in each]
        self.elements = [Change(self.elements[place].unit, new) for place, new, _ in at]
        self.places = [place for place, _, _ in at]
        self.likely = [likely for _, _, likely in at]

    def changed(self, chosen: frozenset[int]) -> Any:
        """A text, a pair of texts, a picture ``[height, width, 3]``, or a mapping of picture and text."""
        made = [self.elements[i] for i in sorted(chosen)]
        parts = {} if self.joint is None else dict(self.joint)
        if self.text is not None:
            parts["text"] = texts(self.text, made)
        if self.image is not None and self.blank is not None:
            parts["image"] = _painted(self.image.image, self.blank, [change.unit for change in made])
        return parts if self.joint is not None else next(iter(parts.values()))

    def sample(self, chosen: frozenset[int]) -> Sample | None:
        """Read again; a text of which nothing is left cannot be."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # that it is too long was said when it was explained
            try:
                return self.explainer.read(self.changed(chosen))
            except InputError:
                return None


class Covered:
    """Changes of what the model is given: tokens, patches or positions replaced as in an evaluation.

    Args:
        explainer: what explained it.
        sample: the input as tensors.
        e: an explanation of it.
        baseline: a name from :mod:`whence.evaluation.feature_removal`; ``None``: what is usual there.
    """

    def __init__(self, explainer: Explainer, sample: Sample, e: Explanation, baseline: str | None) -> None:
        self.given = sample
        self.removal = removal(explainer, sample, e, baseline, "patch", False)
        self.text = next((o for o in e.origins[0].values() if isinstance(o, TextOrigin)), None) if e.origins else None
        scores = self.removal.scores(e)
        self.count = len(scores)
        if isinstance(self.removal, Rows):
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
        self.instead = _instead(explainer, baseline) if self.text is not None else ""

    def changed(self, chosen: frozenset[int]) -> Any:
        """The text, with what stands in for its tokens; the model's arguments, where these were given."""
        if self.text is None:
            return self._tensors(chosen)
        made = [Change(self.elements[i].unit, " ".join([self.instead] * len(self.features[i]))) for i in sorted(chosen)]
        return texts(self.text, made)

    def sample(self, chosen: frozenset[int]) -> Sample | None:
        """The model's arguments."""
        return Sample(self._tensors(chosen), {}, position=self.given.position, alone=self.given.alone)

    def _tensors(self, chosen: frozenset[int]) -> dict[str, torch.Tensor]:
        flags = np.zeros((1, self.count), bool)
        flags[0, [feature for i in chosen for feature in self.features[i]]] = True
        return self.removal.apply(flags)


def editor_for(explainer: Explainer, raw: Any, sample: Sample, e: Explanation, remove: str | None) -> Editor:
    """What makes changed forms of an input.

    Args:
        explainer: what explained it.
        raw: what the user gave.
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
        return Covered(explainer, sample, e, None if remove == "delete" else remove)
    found = Written(explainer, raw, sample, e, remove if remove in PIXELS else "blur")
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
    """What was read of the user's text, or pair of texts, with changes made.

    What was not read is left out: otherwise the model would come to read it when words before it are taken out.
    """
    out = []
    for part, text in enumerate(origin.texts):
        low, high = was_read(origin, part)
        words = [(c.unit, c.new) for c in made if isinstance(c.unit, Word) and c.unit.part == part]
        own = [(max(word.start, low) - low, min(word.end, high) - low, new) for word, new in words]
        out.append(rewritten(text[low:high], own))
    return out[0] if len(out) == 1 else tuple(out)


def was_read(origin: TextOrigin, part: int) -> tuple[int, int]:
    """Start and end of what the model read of a text: all of it, or all but its end or its beginning."""
    low, high = 0, len(origin.texts[part])
    for span in origin.unread:
        if span.part == part and span.end == len(origin.texts[part]):
            high = span.start
        elif span.part == part:
            low = span.end
    return low, high


def readable(explainer: Explainer, sample: Sample, e: Explanation) -> list[Piece]:
    """The words that the model read, but not the place that it is to fill in."""
    stream, origin = next((name, o) for name, o in e.origins[0].items() if isinstance(o, TextOrigin))
    gap = sample.position if getattr(explainer.reader, "fills", False) else None
    pieces = origin.pieces(e.streams[stream][0].tolist())
    return [p for p in pieces if p.score is not None and gap not in p.positions]


def word(piece: Piece) -> Word:
    """A piece that has a score, as a word."""
    assert piece.score is not None
    return Word(piece.text, piece.score, piece.start, piece.end, piece.part)


def _instead(explainer: Explainer, baseline: str | None) -> str:
    """How a token that stands in for others is written."""
    name, value = token(explainer, baseline)
    tokenizer = getattr(explainer.reader, "tokenizer", None)
    spell = getattr(tokenizer, "convert_ids_to_tokens", None)
    return "[hidden]" if name != "input_ids" else str(spell(int(value))) if spell else f"[{baseline}]"


def _joint(raw: Any) -> dict[str, Any]:
    return dict(raw) if isinstance(raw, Mapping) else dict(zip(("image", "text"), raw, strict=True))


def _seen(e: Explanation, origin: ImageOrigin) -> list[Patch]:
    """The patches that lie on the picture."""
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
    """What is painted over a picture's patches, ``[height, width, 3]``."""
    resize = torch.nn.functional.interpolate
    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    height, width = image.shape[:2]
    shrink = min(1.0, SIDE / max(height, width))
    small = resize(pixels, (max(1, round(height * shrink)), max(1, round(width * shrink))), mode="area")
    whole = resize(blank(small, baseline), (height, width), mode="bilinear", align_corners=False)
    return np.asarray(whole[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy())


def _painted(image: Bytes, over: Bytes, units: Sequence[Unit]) -> Bytes:
    """A picture with some patches painted over."""
    out = image.copy()
    for unit in units:
        if isinstance(unit, Patch) and unit.box is not None:
            left, top, right, bottom = unit.box
            out[top:bottom, left:right] = over[top:bottom, left:right]
    return out
