"""The models that the page serves: fixed when it starts, loaded once, known to the browser by name alone."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, ModelError
from ..explainer.explainer import Explainer
from ..inputs.token_output import can_write
from ..localisation import finds_objects
from ..models import MODELS
from .cancellable import ask_first
from .request_filter import EXAMPLES

READS = ("text", "image", "image and text")
MANY = 6  # examples
PICTURES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, eq=False)
class Served:
    """A model on the page.

    Attributes:
        name: what visitors choose.
        source: an id on the hub, or a directory by its last name.
        shipped: whether it comes with Whence.
        explainer: the model.
        writes: whether it is a language model that goes on with a text.
        finds: whether it finds objects in pictures.
        texts: examples.
        pictures: examples, by file name.
    """

    name: str
    source: str
    shipped: bool
    explainer: Explainer
    writes: bool
    finds: bool
    texts: tuple[str, ...]
    pictures: Mapping[str, Path]

    def copies(self, count: int) -> list[Explainer]:
        """So many explainers of it, each with weights of its own; the first is the one that was loaded."""
        found = [self.explainer, *(copy.deepcopy(self.explainer) for _ in range(count - 1))]
        for explainer in found:
            ask_first(explainer.model)
        return found

    def lend(self, name: str, folder: Path) -> str:
        """One of its example pictures, copied to where pictures are served from."""
        path = folder / EXAMPLES / self.name.replace("/", "-") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.pictures[name], path)
        return str(path)

    @property
    def written(self) -> str:
        """What it is loaded from, as it is written in Python."""
        return f'MODELS / "{self.source}"' if self.shipped else repr(self.source)

    @property
    def reads_text(self) -> bool:
        """Whether it takes a text."""
        return "text" in self.explainer.modality

    @property
    def reads_picture(self) -> bool:
        """Whether it takes a picture."""
        return "image" in self.explainer.modality

    @property
    def labels(self) -> list[str]:
        """The names of its classes; none for a language model, a detector, or one that compares picture and text."""
        if self.writes or self.finds or self.explainer.compares:
            return []
        known = self.explainer.answers.labels or getattr(getattr(self.explainer.model, "config", None), "id2label", {})
        return [str(known[i]) for i in sorted(known)]


class Shelf(Mapping[str, Served]):
    """Models by name, in the order given.

    Example:
        >>> Shelf.shipped()["sentiment"].explainer("a gripping film")
    """

    def __init__(self, served: Sequence[Served]) -> None:
        if not served:
            raise InputError("There is no model to serve.")
        self._served = {one.name: one for one in served}

    def __getitem__(self, name: str) -> Served:
        if name not in self._served:
            raise InputError(f"There is no model '{name}' here: choose one of {', '.join(self._served)}.")
        return self._served[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    @property
    def first(self) -> Served:
        """What the page begins with."""
        return next(iter(self._served.values()))

    @classmethod
    def shipped(cls) -> Shelf:
        """The models that come with Whence."""
        return cls.load([str(MODELS / name) for name in ("sentiment", "digits")])

    @classmethod
    def load(cls, sources: Sequence[str], **loading: Any) -> Shelf:
        """Models from directories or ids on the hub; ``loading`` as for :meth:`Explainer.from_pretrained`."""
        names: dict[str, str] = {}
        for source in sources:
            name = base = source if "/" in source and not Path(source).exists() else Path(source).resolve().name
            while name in names:
                name = f"{base} ({sum(n.startswith(base) for n in names) + 1})"
            names[name] = source
        return cls(
            [_served(name, Explainer.from_pretrained(source, **loading), source) for name, source in names.items()]
        )

    @classmethod
    def of(cls, explainers: Mapping[str, Explainer]) -> Shelf:
        """Models in hand, by name."""
        return cls([_served(name, explainer, name) for name, explainer in explainers.items()])


def _served(name: str, explainer: Explainer, source: str) -> Served:
    if explainer.modality not in READS:
        raise ModelError(
            f"The page takes texts and pictures, and '{name}' reads {explainer.modality}: use `whence explain` for it."
        )
    folder = Path(source)
    lines = folder / "examples.txt"
    texts = lines.read_text(encoding="utf-8").splitlines() if lines.is_file() else []
    shots = folder / "examples"
    pictures = [p for p in sorted(shots.iterdir()) if p.suffix.lower() in PICTURES] if shots.is_dir() else []
    return Served(
        name=name,
        source=folder.resolve().name if folder.exists() else source,
        shipped=folder.parent == MODELS,
        explainer=explainer,
        writes=explainer.modality == "text" and _can_write(explainer),
        finds=explainer.modality == "image" and finds_objects(explainer, _blank()),
        texts=tuple(text for text in texts if text.strip())[:MANY],
        pictures={p.name: p for p in pictures[:MANY]},
    )


def _can_write(explainer: Explainer) -> bool:
    """Whether it goes on with a text, not only fills in masked tokens."""
    return explainer.answers.speaks() and bool(can_write(explainer.model))


def _blank() -> Any:
    """A picture of nothing, to see what a model answers with."""
    import numpy as np

    return np.full((64, 64, 3), 127, np.uint8)
