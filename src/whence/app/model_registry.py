"""The models that the page serves: fixed and loaded when it starts, chosen by name in the browser."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, ModelError
from ..explainer.explainer import Explainer
from ..inputs.token_output import can_generate
from ..localisation import finds_objects
from ..models import MODELS
from ..targets.seed import labels_of
from .cancellable import make_cancellable
from .request_filter import EXAMPLES

MODALITIES = ("text", "image", "image and text")
MAX_EXAMPLES = 6
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model on the page.

    Attributes:
        name: what visitors choose.
        source: its id on the hub, or the name of its directory.
        shipped: whether it comes with Whence.
        explainer: the model and its processor.
        generates_text: whether it is a language model that continues a text.
        detects_objects: whether it is an object detector.
        example_texts: the texts that the page offers.
        example_images: the images that the page offers, by file name.
    """

    name: str
    source: str
    shipped: bool
    explainer: Explainer
    generates_text: bool
    detects_objects: bool
    example_texts: tuple[str, ...]
    example_images: Mapping[str, Path]

    @classmethod
    def from_explainer(cls, name: str, explainer: Explainer, source: str) -> ServedModel:
        """Describe a model, with the examples in its directory if ``source`` is one."""
        if explainer.modality not in MODALITIES:
            raise ModelError(
                f"The page takes texts and pictures, and '{name}' reads {explainer.modality}: "
                "use `whence explain` for it."
            )
        folder = Path(source)
        return cls(
            name=name,
            source=folder.resolve().name if folder.exists() else source,
            shipped=folder.parent == MODELS,
            explainer=explainer,
            generates_text=explainer.modality == "text" and _generates_text(explainer),
            detects_objects=explainer.modality == "image" and finds_objects(explainer, _blank_image()),
            example_texts=_example_texts(folder / "examples.txt"),
            example_images=_example_images(folder / "examples"),
        )

    def copies(self, count: int) -> list[Explainer]:
        """Return ``count`` explainers with weights of their own, the loaded one first; tasks can cancel each."""
        explainers = [self.explainer, *(copy.deepcopy(self.explainer) for _ in range(count - 1))]
        for explainer in explainers:
            make_cancellable(explainer.model)
        return explainers

    def copy_example(self, name: str, folder: Path) -> str:
        """Copy an example image into the served folder; return its path there."""
        path = folder / EXAMPLES / self.name.replace("/", "-") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.example_images[name], path)
        return str(path)

    @property
    def source_expression(self) -> str:
        """The Python expression for what it is loaded from."""
        return f'MODELS / "{self.source}"' if self.shipped else repr(self.source)

    @property
    def reads_text(self) -> bool:
        """Whether its input has a text."""
        return "text" in self.explainer.modality

    @property
    def reads_image(self) -> bool:
        """Whether its input has an image."""
        return "image" in self.explainer.modality

    @property
    def labels(self) -> list[str]:
        """The names of its classes; none for a language model, a detector, or one that compares image and text."""
        if self.generates_text or self.detects_objects or self.explainer.compares:
            return []
        known = self.explainer.target_labels.labels or labels_of(self.explainer.model)
        return [str(known[i]) for i in sorted(known)]


class ModelRegistry(Mapping[str, ServedModel]):
    """Models by name, in the order given.

    Example:
        >>> ModelRegistry.shipped()["sentiment"].explainer("a gripping film")
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        if not models:
            raise InputError("There is no model to serve.")
        self._models = {model.name: model for model in models}

    def __getitem__(self, name: str) -> ServedModel:
        if name not in self._models:
            raise InputError(f"There is no model '{name}' here: choose one of {', '.join(self._models)}.")
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def first(self) -> ServedModel:
        """The model that the page begins with."""
        return next(iter(self._models.values()))

    @classmethod
    def shipped(cls) -> ModelRegistry:
        """Load the models that come with Whence."""
        return cls.load([str(MODELS / name) for name in ("sentiment", "digits")])

    @classmethod
    def load(cls, sources: Sequence[str], **options: Any) -> ModelRegistry:
        """Load models from directories or hub ids; ``options`` as for :meth:`Explainer.from_pretrained`."""
        named: dict[str, str] = {}
        for source in sources:
            name = base = source if "/" in source and not Path(source).exists() else Path(source).resolve().name
            while name in named:
                name = f"{base} ({sum(n.startswith(base) for n in named) + 1})"
            named[name] = source
        return cls(
            [
                ServedModel.from_explainer(name, Explainer.from_pretrained(source, **options), source)
                for name, source in named.items()
            ]
        )

    @classmethod
    def from_explainers(cls, explainers: Mapping[str, Explainer]) -> ModelRegistry:
        """Serve models that are loaded already."""
        return cls([ServedModel.from_explainer(name, explainer, name) for name, explainer in explainers.items()])


def _example_texts(path: Path) -> tuple[str, ...]:
    """Read the first lines of a file that are not blank."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return tuple(line for line in lines if line.strip())[:MAX_EXAMPLES]


def _example_images(folder: Path) -> dict[str, Path]:
    """List the first images of a folder."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    images = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES]
    return {path.name: path for path in images[:MAX_EXAMPLES]}


def _generates_text(explainer: Explainer) -> bool:
    """Return whether a model continues a text, instead of only filling in masked tokens."""
    return explainer.target_labels.are_tokens() and bool(can_generate(explainer.model))


def _blank_image() -> Any:
    """Return a grey image, which shows what kind of output a model has."""
    import numpy as np

    return np.full((64, 64, 3), 127, np.uint8)
