"""A family of models: how to build a tiny seeded one, and what to feed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]
Target = Callable[[Any], Tensor]
VOCABULARY = 60


@dataclass
class Family:
    """A tiny model of a family.

    Attributes:
        name: as in the table.
        group: the heading under which it stands.
        build: makes the model, given the attention implementation (``"eager"`` or ``"sdpa"``).
        inputs: a batch of some samples, given how many.
        attentions: how many attentions the model has, counted by hand from its configuration.
        streams: the token streams that are expected, and their lengths.
        target: what is explained: a function from the model's outputs to one number per sample.
        implementations: the attention implementations that the family has.
        mask: the name of its padding mask, where samples can be padded on the right, and
        padded: the inputs that have the padded axis second, with what to pad them with.
        note: what a reader of the table should know.
        queries: parts of the names of parameters that are tokens of the model's own, such as DETR's queries.
        norms, activations, gates, residuals: how many the model has, where the number that
            :func:`tools.conformance.regions.implied` derives is not it; each with a comment that says why.
    """

    name: str
    group: str
    build: Callable[[str], nn.Module]
    inputs: Callable[[int], Inputs]
    attentions: int
    streams: Mapping[str, int]
    target: Target = lambda outputs: outputs.logits[:, 1]
    implementations: tuple[str, ...] = ("eager", "sdpa")
    mask: str = ""
    padded: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    queries: tuple[str, ...] = ()
    norms: int | None = None
    activations: int | None = None
    gates: int | None = None
    residuals: int | None = None

    def model(self, implementation: str = "") -> nn.Module:
        """The model, seeded, in float64."""
        torch.manual_seed(0)
        return self.build(implementation or self.implementations[-1]).double().eval()

    def batch(self, samples: int) -> Inputs:
        """Inputs in float64; the same first samples, however many are asked for."""
        torch.manual_seed(1)
        given = self.inputs(8)
        return {
            k: (v.double() if v.is_floating_point() else v)[:samples] if v.dim() and len(v) == 8 else v
            for k, v in given.items()
        }


FAMILIES: dict[str, Family] = {}


def add(name: str, group: str, **parts: Any) -> None:
    """Add a family to the matrix."""
    if name in FAMILIES:
        raise ValueError(f"The family '{name}' is there twice.")
    FAMILIES[name] = Family(name, group, **parts)


def ids(samples: int, tokens: int = 7, low: int = 5) -> Tensor:
    """Random token ids, none of them special."""
    return torch.randint(low, VOCABULARY, (samples, tokens))


def text(samples: int, tokens: int = 7) -> Inputs:
    """Token ids and a mask that hides nothing."""
    tokens_ = ids(samples, tokens)
    return {"input_ids": tokens_, "attention_mask": torch.ones_like(tokens_)}


def pixels(samples: int, size: int = 16, channels: int = 3) -> Inputs:
    """Pictures."""
    return {"pixel_values": torch.randn(samples, channels, size, size)}


#: for families that read a text with a mask: what to pad, and with what
PADDED_TEXT: dict[str, Any] = {"mask": "attention_mask", "padded": {"input_ids": 0, "attention_mask": 0}}
