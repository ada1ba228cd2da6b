"""What the user holds: scores, the prediction, the target, and how far to trust them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .coverage import Coverage
from .errors import WhenceError
from .ledger import Ledger


@dataclass(eq=False)
class Explanation:
    """Scores of a batch of B samples; ``e[i]`` is the explanation of one.

    Attributes:
        scores: ``[B, S]``, one score per position of the main token stream; padding scores exactly 0.
        special: ``[B, S]``, true at positions that are no part of the user's input ([CLS], registers, padding).
        method: the method's name.
        options: its options.
        logits: ``[B, C]`` what the model said (the target's values where there are no classes).
        prediction: ``[B]`` predicted classes, or ``None``.
        target: ``[B]`` explained classes, or ``None`` where the target was a function.
        labels: the model's class names.
        streams: scores per token stream.
        grid: height and width, if the tokens are patches of an image.
        patch_start: the position of the first patch.
        ledger: relevance methods: sums at every layer, and what was absorbed.
        coverage: operations seen, with a rule, left to the plain gradient.
        layers: ``[B, L, S]``, relevance entering each block, where the method has it.
        heads: ``[B, L, H]``, relevance per head, where the method has it.
    """

    scores: Tensor
    special: Tensor
    method: str
    options: Mapping[str, Any]
    logits: Tensor
    prediction: Tensor | None
    target: Tensor | None
    coverage: Coverage
    labels: Mapping[int, str] = field(default_factory=dict)
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    patch_start: int = 0
    image_size: tuple[int, int] | None = None
    ledger: Ledger | None = None
    layers: Tensor | None = None
    heads: Tensor | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: int) -> Explanation:
        """The explanation of one sample (a batch of one)."""
        i = range(len(self))[index]

        def one(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[i : i + 1]

        return replace(
            self,
            scores=self.scores[i : i + 1],
            special=self.special[i : i + 1],
            logits=self.logits[i : i + 1],
            prediction=one(self.prediction),
            target=one(self.target),
            streams={name: s[i : i + 1] for name, s in self.streams.items()},
            ledger=None if self.ledger is None else self.ledger.select(i),
            layers=one(self.layers),
            heads=one(self.heads),
        )

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    @staticmethod
    def join(parts: list[Explanation]) -> Explanation:
        """The explanation of a batch whose samples were explained one by one."""

        def all_of(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            return None if any(v is None for v in values) else torch.cat(values)

        ledgers = [part.ledger for part in parts if part.ledger is not None]
        tensors = ("scores", "special", "logits", "prediction", "target", "layers", "heads")
        return replace(
            parts[0],
            streams={name: torch.cat([part.streams[name] for part in parts]) for name in parts[0].streams},
            ledger=Ledger.join(ledgers) if len(ledgers) == len(parts) else None,
            **{name: all_of(name) for name in tensors},
        )

    @property
    def patches(self) -> Tensor:
        """``[B, h, w]``: the scores of the image's patches."""
        if self.grid is None:
            raise WhenceError(
                "This explanation has no patches: the model's tokens do not come from the grid of an image."
            )
        h, w = self.grid
        return self.scores[:, self.patch_start : self.patch_start + h * w].reshape(-1, h, w)

    def heatmap(self, size: tuple[int, int] | None = None) -> Tensor:
        """``[B, H, W]``: the patches brought to the image's size (or another), bilinearly.

        As in Chefer et al. 2021 (``align_corners=False``), without their min-max scaling.
        """
        size = size or self.image_size or self.grid
        maps = self.patches[:, None]
        return torch.nn.functional.interpolate(maps, size=size, mode="bilinear", align_corners=False)[:, 0]

    def __repr__(self) -> str:
        b, s = self.scores.shape
        said = []
        for i in range(min(b, 3)):
            top = self.scores[i].abs().argmax().item()
            said.append(
                f"[{i}] {self._name(self.target, i)}: strongest at position {top} ({self.scores[i, int(top)]:+.4g})"
            )
        more = "" if b <= 3 else f"; {b - 3} more"
        return f"Explanation({self.method}, {b} x {s} positions; {'; '.join(said)}{more})"

    def _name(self, classes: Tensor | None, i: int) -> str:
        if classes is None:
            return "target"
        return str(self.labels.get(int(classes[i]), int(classes[i])))
