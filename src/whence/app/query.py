"""What a visitor asks: which model, what input, which methods, for which answers. A link holds it, and nothing else."""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..methods.registry import list_methods as all_methods
from .limits import Limits
from .model_registry import Served

DEFAULT = "conservative-lrp"
SAID = "the prediction"  # of the targets: the predicted class
LISTS: dict[str, tuple[str, ...]] = {"methods": (DEFAULT,), "targets": ()}


@dataclass(frozen=True)
class Question:
    """All that an explanation depends on.

    Attributes:
        model: the name of a served model.
        text: what was written.
        second: the second text of a pair.
        picture: the name of one of the model's example pictures.
        upload: a picture that was uploaded: a file in the server's own directory. No link can name one.
        methods: names of methods.
        targets: names of classes; none: what the model says.
        chosen: the token written, the object found or the word that is looked at; -1: none was chosen.
    """

    model: str
    text: str = ""
    second: str = ""
    picture: str = ""
    upload: str = ""
    methods: tuple[str, ...] = (DEFAULT,)
    targets: tuple[str, ...] = ()
    chosen: int = -1

    def checked(self, served: Served, limits: Limits) -> Question:
        """The same, if it can be asked."""
        limits.text(self.text)
        limits.text(self.second)
        if served.reads_text and not self.text.strip():
            raise InputError("Write a text first.")
        if served.reads_picture:
            limits.picture(str(self.file(served)))
        unknown = [name for name in self.methods if name not in all_methods()]
        if unknown:
            raise InputError(f"There is no method '{unknown[0]}'.")
        if not 0 < len(self.methods) <= limits.methods:
            raise InputError(f"Choose 1 to {limits.methods} methods, not {len(self.methods)}.")
        if len(self.targets) > 2:
            raise InputError("Choose one or two answers to explain.")
        return self

    def file(self, served: Served) -> Path:
        """Where the picture is."""
        if self.upload and Path(self.upload).is_file():
            return Path(self.upload)
        if self.upload:
            raise InputError("The picture is no longer kept here: give it again.")
        if self.picture not in served.pictures:
            raise InputError("Give a picture first.")
        return served.pictures[self.picture]

    def input(self, served: Served) -> Any:
        """The input as an explainer takes it."""
        words: Any = (self.text, self.second) if self.second.strip() else self.text
        if not served.reads_picture:
            return words
        return {"image": self.file(served), "text": words} if served.reads_text else self.file(served)

    @property
    def about(self) -> tuple[str, ...]:
        """Model and input."""
        return self.model, self.text, self.second, self.picture, self.upload

    def wanted(self) -> list[str | int | None]:
        """The targets as an explainer takes them."""
        return [None if name == SAID else name for name in self.targets] or [None]

    # -- links ---------------------------------------------------------------------------------------------------------

    def link(self) -> str:
        """What stands behind the ``#`` of a link; pictures that were uploaded are not in it."""
        said = {name: value for name, value in asdict(replace(self, upload="")).items() if value not in ("", (), -1)}
        return "ask=" + urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode().rstrip("=")

    @classmethod
    def from_link(cls, link: str) -> Question | None:
        """What a link holds; ``None`` if it holds no question."""
        word = link.lstrip("#").removeprefix("ask=")
        if not word or word == link.lstrip("#"):
            return None
        try:
            said = json.loads(urlsafe_b64decode(word + "=" * (-len(word) % 4)))
            words = {name: str(said.get(name, "")) for name in ("model", "text", "second", "picture")}
            methods, targets = (tuple(map(str, said.get(name, default))) for name, default in LISTS.items())
            return cls(**words, methods=methods, targets=targets, chosen=int(said.get("chosen", -1)))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error) as error:
            raise InputError("The link is damaged: what it asks cannot be read.") from error
