"""What is done with each sample: the same for every worker, and all that a worker needs to know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch

from .._utils.fingerprint import of_model, of_values
from ..explainer.explainer import Explainer


@dataclass(frozen=True)
class Task:
    """A model and what is asked of it.

    Attributes:
        model: a directory or an id on the hub; or an explainer, which only its own process can use.
        methods: each with its options.
        target: as for :func:`whence.explain`, or ``"label"``: each sample's own.
        batch_size: how many are explained together.
        loading: the arguments of :meth:`whence.Explainer.from_pretrained`.
        fingerprint: of the model, once it is known.
    """

    model: str | Explainer
    methods: tuple[tuple[str, Mapping[str, Any]], ...]
    target: Any = None
    batch_size: int = 32
    loading: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    def explainer(self) -> Explainer:
        """The model, loaded."""
        if isinstance(self.model, Explainer):
            return self.model
        loading = dict(self.loading)
        if isinstance(loading.get("dtype"), str) and loading["dtype"] != "auto":
            loading["dtype"] = getattr(torch, loading["dtype"])
        return Explainer.from_pretrained(self.model, **loading)

    def settings(self, explainer: Explainer) -> dict[str, Any]:
        """What the rows depend on, apart from the dataset."""
        model, processor = explainer.model, _processor(explainer)
        return {
            "whence": metadata.version("whence"),
            "model": {"class": type(model).__name__, "fingerprint": of_model(model), "processor": processor},
            "methods": [{"method": name, "options": dict(options)} for name, options in self.methods],
            "target": self.target,
            "batch size": self.batch_size,
            "precision": str(next((p.dtype for p in model.parameters()), "")).removeprefix("torch."),
            "truncate": bool(self.loading.get("truncate", True)),
        }  # fmt: skip


def _processor(explainer: Explainer) -> str:
    """What turns inputs into tensors, by name; of a tokenizer, its words, too."""
    processor = explainer.processor
    vocabulary: dict[str, int] = getattr(processor, "get_vocab", dict)()
    told: dict[str, Any] = getattr(processor, "to_dict", dict)()
    words = json.dumps(
        [sorted(vocabulary.items()), {k: v for k, v in told.items() if isinstance(v, int | float | str)}]
    )
    return f"{type(processor).__name__} {of_values([words])}"
