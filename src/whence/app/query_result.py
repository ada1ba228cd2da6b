"""The results of a query: of a classifier, of a language model, of an object detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError
from ..explainer.explainer import Explainer
from ..explainer.generation import Generation
from ..explanations.explanation import DisplayMixin, Explanation, Explanations
from ..localisation import Detection
from ..results.input_origin import ImageOrigin, TextOrigin
from ..results.word_segmentation import Piece
from .query import Query


@dataclass(frozen=True)
class MethodResult:
    """The explanations of one method.

    Attributes:
        method: its name.
        explanations: one for each target; none if the method is not applicable.
        error: why it is not applicable, in a sentence.
    """

    method: str
    explanations: list[Explanation] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class QueryResult:
    """What the page shows for a query.

    Attributes:
        query: the query.
    """

    query: Query

    @property
    def explanations(self) -> list[Explanation]:
        """The explanations that can be inspected: their layers, heads and ledger."""
        raise NotImplementedError(f"{type(self).__name__} does not define its explanations.")

    @property
    def export(self) -> DisplayMixin:
        """What is saved to a file."""
        return Explanations(self.explanations)

    @property
    def names(self) -> list[str]:
        """The names of the explanations: their method and target."""
        return [f"{e.method}: why {e.target_names[0] if e.target_names else 'this'}?" for e in self.explanations]


@dataclass(frozen=True)
class ClassificationResult(QueryResult):
    """The result of a classifier, or of a model that reads an image with a text.

    Attributes:
        methods: the result of each method.
        word_explanation: the image relevance of the chosen word.
    """

    methods: list[MethodResult]
    word_explanation: Explanation | None = None

    @property
    def explanations(self) -> list[Explanation]:
        """One for each method and target."""
        return [e for result in self.methods for e in result.explanations]

    @property
    def words(self) -> list[Piece]:
        """The words of the text that comes with an image; none if there is no image."""
        origins = self.explanations[0].origins[0].values() if self.explanations else ()
        texts = [origin for origin in origins if isinstance(origin, TextOrigin)]
        if not texts or not any(isinstance(origin, ImageOrigin) for origin in origins):
            return []
        return [p for p in texts[0].pieces([0.0] * len(texts[0].tokens)) if p.score is not None]


@dataclass(frozen=True)
class GenerationResult(QueryResult):
    """The result of a language model.

    Attributes:
        generations: the generated text, explained by each applicable method: at least one.
        failures: the results of the methods that are not applicable.
    """

    generations: list[Generation]
    failures: list[MethodResult]

    @property
    def generation(self) -> Generation:
        """The generated text, explained by the first method."""
        return self.generations[0]

    @property
    def chosen(self) -> int:
        """The index of the chosen token."""
        return min(max(self.query.chosen, 0), len(self.generation) - 1)

    @property
    def explanations(self) -> list[Explanation]:
        """The chosen token, explained by each method."""
        return [generation[self.chosen] for generation in self.generations]

    @property
    def export(self) -> DisplayMixin:
        """The whole generated text if there is one method; the chosen token if there are several."""
        return self.generation if len(self.generations) == 1 else Explanations(self.explanations)


@dataclass(frozen=True)
class DetectionResult(QueryResult):
    """The result of an object detector.

    Attributes:
        objects: the detected objects.
        image: the input image.
        methods: the result of each method for the chosen object.
    """

    objects: Sequence[Detection]
    image: ImageOrigin
    methods: list[MethodResult]

    @property
    def chosen(self) -> int:
        """The index of the chosen object."""
        return min(max(self.query.chosen, 0), len(self.objects) - 1)

    @property
    def explanations(self) -> list[Explanation]:
        """The chosen object, explained by each method; the target is named by the object's class."""
        explanations = [e for result in self.methods for e in result.explanations]
        return [replace(e, target_names=(self.objects[self.chosen].label,)) for e in explanations]

    @property
    def failures(self) -> list[MethodResult]:
        """The results of the methods that are not applicable."""
        return [result for result in self.methods if result.error]


def explain_word(explainer: Explainer, given: Any, word: Piece) -> Explanation:
    """Return the relevance of the image for one word of its text.

    For a model that compares image and text, the word alone is compared with the image. For a model whose tokens attend
    to each other, the scores are the word's row of the relevancies of Chefer, Gur, Wolf (ICCV 2021).
    """
    if not isinstance(given, Mapping):
        raise InputError("This model reads no picture, so its words point nowhere in one.")
    if explainer.compares:
        alone: Explanation = explainer({**given, "text": word.text}, "generic-attention")
        return alone
    explanation: Explanation = explainer(given, "generic-attention", token=word.positions[0])
    return replace(explanation, target_names=(word.text,))
