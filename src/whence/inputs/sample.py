"""One input as the model's arguments, with the user's own input that they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from .._utils.offloading import device_of
from ..results.input_origin import Origin, TextOrigin

if TYPE_CHECKING:
    from .patch_layout import PatchLayout


@dataclass
class Sample:
    """One input.

    Attributes:
        tensors: the model's arguments by name, each a batch of one; under ``""`` the only positional one.
        origins: the user's own input, by kind: ``text``, ``image``, ``audio``, ``series``.
        pads: the padding value of each argument; empty where nothing may be padded.
        position: the position of the prediction, for a model with an output at every position.
        alone: whether it cannot share a batch.
        layout: where the patches of its image lie, if the processor cuts it into tiles or puts them in another order.
        choices: of multiple choice, the text with each choice: the origin is that of the choice explained.
    """

    tensors: dict[str, Tensor]
    origins: Mapping[str, Origin]
    pads: Mapping[str, float] = field(default_factory=dict)
    position: int | None = None
    alone: bool = False
    layout: PatchLayout | None = None
    choices: tuple[TextOrigin, ...] = ()

    @property
    def length(self) -> int:
        """The largest sequence length of its tensors: batches are sorted by it."""
        return max(t.shape[1] if t.dim() > 1 else 1 for t in self.tensors.values())

    @property
    def shape(self) -> tuple[Any, ...]:
        """A key that samples of one batch share; where padding is allowed, it leaves out the length."""
        return tuple(
            (name, t.dtype, tuple(t.shape[2:] if name in self.pads else t.shape[1:]))
            for name, t in self.tensors.items()
        )


class Reader(Protocol):
    """A reader of one modality."""

    kind: str

    def read(self, raw: Any) -> Sample:
        """Read one raw input; raise an error that says what is wrong with it."""
        ...


def on_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on a model's device, floats in its precision."""
    device, dtype = device_of(model), precision_of(model)
    return {name: t.to(device, dtype) if t.is_floating_point() else t.to(device) for name, t in tensors.items()}


def precision_of(model: nn.Module) -> torch.dtype:
    """Return the precision of a model's floating-point inputs: that of its parameters; packed integers are none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())


def collate(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Collate samples of one shape into a batch, padded on the right."""
    out: dict[str, Tensor] = {}
    for name in samples[0].tensors:
        each = [sample.tensors[name] for sample in samples]
        if name in samples[0].pads:
            width = max(t.shape[1] for t in each)
            each = [
                torch.nn.functional.pad(t, (0, width - t.shape[1]), value=s.pads[name])
                for s, t in zip(samples, each, strict=True)
            ]
        out[name] = torch.cat(each)
    return out


def batches(samples: Sequence[Sample], size: int, tokens: int | None = None) -> list[list[int]]:
    """Return the indices of samples in batches: of one shape, sorted by length so that little is padded.

    Args:
        samples: of any shapes.
        size: samples of one batch, at most.
        tokens: positions of one batch, padding included, at most; a longer sample is a batch of its own.
    """
    groups: dict[Any, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(i if sample.alone else sample.shape, []).append(i)
    out: list[list[int]] = []
    for places in groups.values():
        places.sort(key=lambda i: samples[i].length)
        batch: list[int] = []
        for i in places:
            if batch and (len(batch) == size or (tokens and samples[i].length * (len(batch) + 1) > tokens)):
                out.append(batch)
                batch = []
            batch.append(i)
        out.append(batch)
    return out
