"""The result of a method: scores, prediction, target, the user's input, and diagnostics."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..errors import WhenceError
from ..propagation.ledger import Ledger
from ..tracing.coverage import Coverage
from .arithmetic import Arithmetic
from .input_origin import ImageOrigin, Origin, TextOrigin
from .word_segmentation import Word

#: fields with one entry per sample
TENSORS = ("scores", "special", "logits", "value", "prediction", "target", "layers", "heads", "branches", "pairs")
NAMES = ("target_names", "prediction_names", "origins")


class Patch(NamedTuple):
    """A patch of an image: its place in the grid, its score, and its left, top, right and bottom in the image."""

    row: int
    column: int
    score: float
    box: tuple[int, int, int, int] | None


class Position(NamedTuple):
    """A position of a stream that is neither text nor image."""

    position: int
    score: float


Unit = Word | Patch | Position


@dataclass(eq=False)
class Result(Arithmetic):
    """The scores of a batch of B samples; ``e[i]`` is the explanation of one, ``e[a:b]`` of several.

    Attributes:
        scores: ``[B, S]``, one score per position of the main token stream; padding scores exactly 0.
        special: ``[B, S]``, true at positions that are no part of the user's input ([CLS], registers, padding).
        method: the method's name.
        options: its options.
        logits: ``[B, C]``, the model's logits (the target's values where there are no classes).
        value: ``[B]``, the value of the target: a class's logit, a function's value.
        prediction: ``[B]``, predicted classes, or ``None``.
        target: ``[B]``, target classes, or ``None`` where the target is a function.
        labels: the model's class names.
        task: ``"single-label"``, ``"multi-label"``, ``"regression"``, or empty where it is not known.
        streams: scores per token stream; the first is the main one.
        grid: height and width, if the tokens are patches of an image.
        patch_start: the position of the first patch in its stream.
        ledger: relevance methods: the sum of relevance at every layer, and what was absorbed or created.
        coverage: the operations seen: with a rule, and with the plain gradient.
        layers: ``[B, L, S]``, relevance entering each block, where the method has it.
        heads: ``[B, L, H]``, relevance per head, where the method has it.
        branches: ``[B, L, 2, S]``, relevance of each block's residual branches: attention and the rest (its MLP), by
            ``inside=True``.
        pairs: ``[B, L, S, S]``, token-to-token relevance of each block's attention: from each token to those it
            attended to, by ``inside=True``.
        target_names: per sample, the target in words.
        prediction_names: per sample, the prediction in words.
        origins: per sample, the user's input for each stream; empty where tensors were given.
    """

    scores: Tensor
    special: Tensor
    method: str
    options: Mapping[str, Any]
    logits: Tensor
    value: Tensor
    prediction: Tensor | None
    target: Tensor | None
    coverage: Coverage
    labels: Mapping[int, str] = field(default_factory=dict)
    task: str = ""
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    patch_start: int = 0
    image_size: tuple[int, int] | None = None
    ledger: Ledger | None = None
    layers: Tensor | None = None
    heads: Tensor | None = None
    branches: Tensor | None = None
    pairs: Tensor | None = None
    target_names: tuple[str, ...] = ()
    prediction_names: tuple[str, ...] = ()
    origins: tuple[Mapping[str, Origin], ...] = ()

    # -- a batch ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: int | slice) -> Self:
        """Return the explanation of one sample (a batch of one), or of several."""
        every = range(len(self))
        chosen = list(every[index]) if isinstance(index, slice) else [every[operator.index(index)]]

        def some(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[chosen]

        changes: dict[str, Any] = {name: some(getattr(self, name)) for name in TENSORS}
        for name in NAMES:
            changes[name] = tuple(getattr(self, name)[i] for i in chosen) if getattr(self, name) else ()
        changes["streams"] = {name: s[chosen] for name, s in self.streams.items()}
        changes["ledger"] = None if self.ledger is None else self.ledger.select(chosen)
        return replace(self, **changes)

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join explanations of single samples into one of a batch."""

        def all_of(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            return None if any(v is None for v in values) else torch.cat(values)

        ledgers = [part.ledger for part in parts if part.ledger is not None]
        changes: dict[str, Any] = {name: all_of(name) for name in TENSORS}
        changes |= {name: sum((getattr(part, name) for part in parts), start=()) for name in NAMES}
        changes["streams"] = {name: torch.cat([part.streams[name] for part in parts]) for name in parts[0].streams}
        changes["ledger"] = Ledger.join(ledgers) if len(ledgers) == len(parts) else None
        return replace(parts[0], **changes)

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the result, in a fixed order."""
        own = [getattr(self, name) for name in TENSORS]
        ledger = [] if self.ledger is None else self.ledger.tensors()
        return [*(t for t in own if t is not None), *self.streams.values(), *ledger]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Self:
        """Return the same result with other tensors, taken in the order of :meth:`tensors`."""
        changes: dict[str, Any] = {name: next(tensors) for name in TENSORS if getattr(self, name) is not None}
        changes["streams"] = {name: next(tensors) for name in self.streams}
        changes["ledger"] = None if self.ledger is None else self.ledger.with_tensors(tensors)
        return replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal, scores bit for bit."""
        if not isinstance(other, Result):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]  # tensors have no hash

    # -- the model's prediction --------------------------------------------------------------------------------------

    @property
    def probabilities(self) -> Tensor | None:
        """``[B, C]``: by softmax, or by sigmoid for a multi-label model; ``None`` without classes."""
        if self.prediction is None or self.logits.dim() != 2 or self.task == "regression":
            return None
        logits = self.logits.float()
        return logits.sigmoid() if self.task == "multi-label" else logits.softmax(-1)

    # -- back to the input -------------------------------------------------------------------------------------------

    def _texts(self) -> list[tuple[TextOrigin, str]]:
        found = [
            next(((o, name) for name, o in origins.items() if isinstance(o, TextOrigin)), None)
            for origins in self.origins
        ]
        if not found or any(x is None for x in found):
            recorded = sorted({name for origins in self.origins for name in origins})
            raise WhenceError(
                "This explanation knows no text: "
                + (
                    f"of its input, {', '.join(recorded)} is recorded"
                    if recorded
                    else "nothing of its input is recorded, as of tensors"
                )
                + ". Explain a string with whence.Explainer to have tokens, words and offsets."
            )
        return [x for x in found if x is not None]

    @property
    def tokens(self) -> list[list[str]]:
        """Per sample, the token at each position of the text's stream."""
        return [list(origin.tokens) for origin, _ in self._texts()]

    @property
    def offsets(self) -> list[list[tuple[int, int]]]:
        """Per sample and position, the token's span in the user's own string; ``(0, 0)`` for special tokens."""
        return [[(s.start, s.end) if s else (0, 0) for s in origin.spans] for origin, _ in self._texts()]

    @property
    def words(self) -> list[list[Word]]:
        """Per sample, the words of the user's own string; a word's score is the sum of its tokens' scores."""
        out = []
        for i, (origin, stream) in enumerate(self._texts()):
            cut = origin.pieces(self.streams[stream][i].tolist())
            out.append([Word(p.text, p.score, p.start, p.end, p.part) for p in cut if p.score is not None])
        return out

    @property
    def patches(self) -> Tensor:
        """``[B, h, w]``: the scores of the image's patches."""
        if self.grid is None:
            raise WhenceError(
                "This explanation has no patches: the model's tokens do not come from the grid of an image."
            )
        h, w = self.grid
        stream = self.streams.get("image", self.scores)
        return stream[:, self.patch_start : self.patch_start + h * w].reshape(-1, h, w)

    def heatmap(self, size: tuple[int, int] | None = None) -> Tensor:
        """Return ``[B, H, W]``: the patches upsampled bilinearly to the image's own size, or another.

        The image is the user's own, where it is known: resizing, cropping and padding are inverted, and what was
        cropped is 0. Otherwise it is the model's input. As in Chefer et al. 2021 (``align_corners=False``), without
        their min-max scaling.
        """
        images = [o for origins in self.origins for o in origins.values() if isinstance(o, ImageOrigin)]
        maps = self.patches
        if not images:
            size = size or self.image_size or self.grid
            return torch.nn.functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
        laid = [origin.lay(patches, size) for origin, patches in zip(images, maps, strict=True)]
        if len({m.shape for m in laid}) > 1:
            raise WhenceError(
                "The pictures of this batch differ in size, so their heat maps do not stack: take them one by one "
                "(e[i].heatmap()), or give a size."
            )
        return torch.stack(laid)

    def top(self, k: int = 5) -> list[list[Unit]]:
        """Return per sample the ``k`` strongest words, patches or positions, by magnitude."""
        if self.origins and any(isinstance(o, TextOrigin) for o in self.origins[0].values()):
            return [list(sorted(words, key=lambda w: -abs(w.score))[:k]) for words in self.words]
        if self.grid is not None:
            return [self._top_patches(i, k) for i in range(len(self))]
        out: list[list[Unit]] = []
        for scores, special in zip(self.scores, self.special, strict=True):
            order = scores.abs().masked_fill(special, -1.0).argsort(descending=True, stable=True)
            out.append([Position(int(at), float(scores[at])) for at in order[:k] if not special[at]])
        return out

    def _top_patches(self, i: int, k: int) -> list[Unit]:
        assert self.grid is not None
        width = self.grid[1]
        flat = self.patches[i].flatten()
        origin = (
            next((o for o in self.origins[i].values() if isinstance(o, ImageOrigin)), None) if self.origins else None
        )
        out: list[Unit] = []
        for at in flat.abs().argsort(descending=True, stable=True)[:k].tolist():
            row, column = divmod(at, width)
            box = None if origin is None else origin.box(row, column, self.grid)
            out.append(Patch(row, column, float(flat[at]), box))
        return out

    # -- records -------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Return every field, as it is saved in a file."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        record["coverage"] = self.coverage.record()
        record["ledger"] = None if self.ledger is None else self.ledger.record()
        return record

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the result of a record."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in record.items() if k in known}
        values["coverage"] = Coverage.of(record["coverage"])
        values["ledger"] = None if record.get("ledger") is None else Ledger.of(record["ledger"])
        result = cls(**values)
        b, s = result.scores.shape
        if (
            result.special.shape != (b, s)
            or len(result.logits) != b
            or any(len(x) != b for x in result.streams.values())
        ):
            raise ValueError("its scores, positions and logits do not belong together")
        return result

    def __repr__(self) -> str:
        b, s = self.scores.shape
        said = []
        for i, strongest in enumerate(self[:3].top(2)):
            why = ", ".join(map(_called, strongest)) or "nothing"
            said.append(f"{self.target_names[i] if self.target_names else 'target'}: {why}")
        more = "" if b <= 3 else f"; {b - 3} more"
        return f"{type(self).__name__}({self.method}, {b} x {s} positions; {'; '.join(said)}{more})"


def _called(unit: Unit) -> str:
    place = f"patch ({unit.row}, {unit.column})" if isinstance(unit, Patch) else ""
    name = repr(unit.text) if isinstance(unit, Word) else place or f"position {unit[0]}"
    return f"{name} {unit.score:+.4g}"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b)
