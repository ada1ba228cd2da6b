"""A visitor's query: the model, the input, the methods and the targets. A link stores a query and nothing else."""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..methods.registry import list_methods
from .limits import Limits
from .model_registry import ServedModel

DEFAULT_METHOD = "conservative-lrp"
PREDICTION = "the prediction"  # the target that stands for the predicted class
LINK_PREFIX = "ask="


@dataclass(frozen=True)
class Query:
    """Everything that an explanation depends on. Links store the fields under these names.

    Attributes:
        model: the name of a served model.
        text: the input text.
        second: the second text of a pair.
        picture: the name of one of the model's example images.
        upload: the path of an uploaded image in the served folder. Links never store it.
        methods: names of methods.
        targets: names of classes; empty for the prediction.
        chosen: the index of the generated token, the detected object or the word to explain; -1 for none.
    """

    model: str
    text: str = ""
    second: str = ""
    picture: str = ""
    upload: str = ""
    methods: tuple[str, ...] = (DEFAULT_METHOD,)
    targets: tuple[str, ...] = ()
    chosen: int = -1

    def check(self, model: ServedModel, limits: Limits) -> None:
        """Raise if the query is incomplete or exceeds the limits."""
        limits.check_text(self.text)
        limits.check_text(self.second)
        if model.reads_text and not self.text.strip():
            raise InputError("Write a text first.")
        if model.reads_image:
            limits.check_image(str(self.image_path(model)))
        unknown = [name for name in self.methods if name not in list_methods()]
        if unknown:
            raise InputError(f"There is no method '{unknown[0]}'.")
        if not 0 < len(self.methods) <= limits.methods:
            raise InputError(f"Choose 1 to {limits.methods} methods, not {len(self.methods)}.")
        if len(self.targets) > 2:
            raise InputError("Choose one or two answers to explain.")

    def image_path(self, model: ServedModel) -> Path:
        """Return the path of the input image."""
        if self.upload and Path(self.upload).is_file():
            return Path(self.upload)
        if self.upload:
            raise InputError("The picture is no longer kept here: give it again.")
        if self.picture not in model.example_images:
            raise InputError("Give a picture first.")
        return model.example_images[self.picture]

    def explainer_input(self, model: ServedModel) -> Any:
        """Return the input as an explainer takes it."""
        text: Any = (self.text, self.second) if self.second.strip() else self.text
        if not model.reads_image:
            return text
        image = self.image_path(model)
        return {"image": image, "text": text} if model.reads_text else image

    def explainer_targets(self) -> list[str | int | None]:
        """Return the targets as an explainer takes them."""
        return [None if name == PREDICTION else name for name in self.targets] or [None]

    @property
    def cache_key(self) -> tuple[str, ...]:
        """The model and the input."""
        return self.model, self.text, self.second, self.picture, self.upload

    # -- links ---------------------------------------------------------------------------------------------------------

    def to_link(self) -> str:
        """Return the fragment of a link, which follows ``#``; uploaded images are not part of it."""
        fields = asdict(replace(self, upload=""))
        stored = {name: value for name, value in fields.items() if value not in ("", (), -1)}
        return LINK_PREFIX + urlsafe_b64encode(json.dumps(stored, separators=(",", ":")).encode()).decode().rstrip("=")

    @classmethod
    def from_link(cls, link: str) -> Query | None:
        """Return the query that the fragment of a link stores, or ``None`` if it stores none."""
        fragment = link.lstrip("#")
        encoded = fragment.removeprefix(LINK_PREFIX)
        if not encoded or encoded == fragment:
            return None
        try:
            stored = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
            return cls(
                **{name: str(stored.get(name, "")) for name in ("model", "text", "second", "picture")},
                methods=tuple(map(str, stored.get("methods", (DEFAULT_METHOD,)))),
                targets=tuple(map(str, stored.get("targets", ()))),
                chosen=int(stored.get("chosen", -1)),
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error) as error:
            raise InputError("The link is damaged: what it asks cannot be read.") from error
