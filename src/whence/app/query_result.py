"""What a question came to: of a classifier, of a language model, of a detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError
from ..explainer.explainer import Explainer
from ..explainer.generation import Generation
from ..explanations.explanation import Explanation, Explanations, Looking
from ..localisation import Detection
from ..results.input_origin import ImageOrigin, TextOrigin
from ..results.word_segmentation import Piece
from .query import Question


@dataclass
class Found:
    """What a method says.

    Attributes:
        method: its name.
        explanations: one for each target; none if it refused.
        refused: why it cannot be right about this model, in a sentence.
    """

    method: str
    explanations: list[Explanation] = field(default_factory=list)
    refused: str = ""


@dataclass
class Outcome:
    """What there is to show.

    Attributes:
        question: what was asked.
    """

    question: Question

    @property
    def explanations(self) -> list[Explanation]:
        """What can be looked at more closely."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it shows.")

    @property
    def whole(self) -> Looking:
        """What is saved."""
        return Explanations(self.explanations)

    @property
    def names(self) -> list[str]:
        """Of the explanations, each told from the others."""
        return [f"{e.method}: why {e.target_names[0] if e.target_names else 'this'}?" for e in self.explanations]


@dataclass
class Classified(Outcome):
    """Of a classifier, and of models that read a picture with a text.

    Attributes:
        found: what each method says.
        word: where the chosen word points.
    """

    found: list[Found]
    word: Explanation | None = None

    @property
    def explanations(self) -> list[Explanation]:
        """Of each method, for each target."""
        return [e for one in self.found for e in one.explanations]

    @property
    def words(self) -> list[Piece]:
        """Of the text beside a picture; none where there is no picture."""
        origins = self.explanations[0].origins[0].values() if self.explanations else ()
        texts = [origin for origin in origins if isinstance(origin, TextOrigin)]
        if not texts or not any(isinstance(origin, ImageOrigin) for origin in origins):
            return []
        return [p for p in texts[0].pieces([0.0] * len(texts[0].tokens)) if p.score is not None]


@dataclass
class Written(Outcome):
    """Of a language model.

    Attributes:
        generations: what it wrote, explained by each method that does not refuse: one at least.
        refused: why the others do.
    """

    generations: list[Generation]
    refused: list[Found]

    @property
    def generation(self) -> Generation:
        """What it wrote."""
        return self.generations[0]

    @property
    def chosen(self) -> int:
        """The token that is looked at."""
        return min(max(self.question.chosen, 0), len(self.generation) - 1)

    @property
    def explanations(self) -> list[Explanation]:
        """Of the chosen token, by each method."""
        return [generation[self.chosen] for generation in self.generations]

    @property
    def whole(self) -> Looking:
        """All that was written, by one method; of several, the chosen token."""
        return self.generation if len(self.generations) == 1 else Explanations(self.explanations)


@dataclass
class Detected(Outcome):
    """Of a detector.

    Attributes:
        objects: what it found.
        picture: where.
        found: what each method says of the chosen object.
    """

    objects: Sequence[Detection]
    picture: ImageOrigin
    found: list[Found]

    @property
    def chosen(self) -> int:
        """The object that is looked at."""
        return min(max(self.question.chosen, 0), len(self.objects) - 1)

    @property
    def explanations(self) -> list[Explanation]:
        """Of the chosen object, by the name of its class."""
        found = [e for one in self.found for e in one.explanations]
        return [replace(e, target_names=(self.objects[self.chosen].label,)) for e in found]

    @property
    def refused(self) -> list[Found]:
        """Methods that do not explain it."""
        return [one for one in self.found if one.refused]


def of_word(explainer: Explainer, given: Any, word: Piece) -> Explanation:
    """Where in a picture one word of its text points.

    Of a model that compares the two, what of the picture fits the word alone; of one whose tokens attend to each other,
    what the word drew from the picture (the word's own row of the relevancies of Chefer, Gur, Wolf, ICCV 2021).
    """
    if not isinstance(given, Mapping):
        raise InputError("This model reads no picture, so its words point nowhere in one.")
    if explainer.compares:
        found: Explanation = explainer({**given, "text": word.text}, "generic-attention")
        return found
    found = explainer(given, "generic-attention", token=word.positions[0])
    return replace(found, target_names=(word.text,))
