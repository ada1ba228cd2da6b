"""The configuration of workers: the model, the methods and the target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .._utils.fingerprint import of_model, of_values
from ..explainer.explainer import Explainer

#: names of methods, each with its options
Methods = tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker.

    Attributes:
        model: a directory or an id on the hub; or an explainer, which only this process can use.
        methods: each with its options.
        target: as for :func:`whence.explain`, or ``"label"``: each sample's label.
        batch_size: the largest number of samples in a batch.
        loading: the arguments of :meth:`whence.Explainer.from_pretrained`.
        fingerprint: hash of the model's weights, once it is known.
    """

    model: str | Path | Explainer
    methods: Methods
    target: Any = None
    batch_size: int = 32
    loading: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    def explainer(self) -> Explainer:
        """Load the model."""
        if isinstance(self.model, Explainer):
            return self.model
        loading = dict(self.loading)
        if isinstance(loading.get("dtype"), str) and loading["dtype"] != "auto":
            loading["dtype"] = getattr(torch, loading["dtype"])
        return Explainer.from_pretrained(str(self.model), **loading)

    def settings(self, explainer: Explainer) -> dict[str, Any]:
        """Return what the rows depend on, apart from the dataset."""
        model = explainer.model
        return {
            "whence": metadata.version("whence"),
            "model": {
                "class": type(model).__name__,
                "fingerprint": of_model(model),
                "processor": _processor(explainer),
            },
            "methods": [{"method": name, "options": dict(options)} for name, options in self.methods],
            "target": self.target,
            "batch size": self.batch_size,
            "precision": str(next((p.dtype for p in model.parameters()), "")).removeprefix("torch."),
            "truncate": bool(self.loading.get("truncate", True)),
            "capture": explainer.captures_explanations,
        }  # fmt: skip


def _processor(explainer: Explainer) -> str:
    """Return the processor's class and a hash of its vocabulary and settings."""
    processor = explainer.processor
    vocabulary: dict[str, int] = getattr(processor, "get_vocab", dict)()
    options: dict[str, Any] = getattr(processor, "to_dict", dict)()
    words = json.dumps(
        [sorted(vocabulary.items()), {k: v for k, v in options.items() if isinstance(v, int | float | str)}]
    )
    return f"{type(processor).__name__} {of_values([words])}"
