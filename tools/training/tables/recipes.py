"""How each model is trained."""

from __future__ import annotations

from dataclasses import dataclass

from tools.training.paths import PROJECT

MODELS = PROJECT / "build" / "models"
SEED = 0


@dataclass(frozen=True)
class Recipe:
    """A model of one dataset.

    Attributes:
        dataset: its name in `whence.datasets`.
        kind: `attention`: blocks without MLP, as in Ali et al., ICML 2022; `standard`: with MLP.
        test: the splits that accuracy is measured on; the last is the one that is reported.
        epochs: how often the training split is seen.
        rate: the highest learning rate.
        layers: blocks.
        length: tokens that the model reads; of longer texts the beginning.
        window: tokens of a text that a training step sees, somewhere in it; 0: the first `length`.
        train: the split that it learns from.
        samples: how many of them, drawn once; 0: all.
        start: the trained model that it starts from; empty: the MiniLM (texts) or nothing (molecules, digits).
        batch: samples of a step.
    """

    dataset: str
    kind: str
    test: tuple[str, ...]
    epochs: int
    rate: float
    layers: int = 2
    length: int = 128
    window: int = 0
    train: str = "train"
    samples: int = 0
    start: str = ""
    batch: int = 32

    @property
    def name(self) -> str:
        """The name of the model's directory."""
        return f"{self.dataset}-{self.kind}"


def attention(dataset: str, test: tuple[str, ...], epochs: int, rate: float = 5e-4, **others: object) -> Recipe:
    """A model of attention alone."""
    return Recipe(dataset, "attention", test, epochs, rate, **others)  # type: ignore[arg-type]  # as named


def standard(dataset: str, test: tuple[str, ...], epochs: int, rate: float = 1e-4, **others: object) -> Recipe:
    """A model with MLP blocks; of texts, the first three layers of MiniLM."""
    return Recipe(dataset, "standard", test, epochs, rate, **({"layers": 3} | others))  # type: ignore[arg-type]  # as named


#: cheapest first; one that starts from another comes after it
RECIPES = {
    recipe.name: recipe
    for recipe in (
        attention("bace", ("val", "test"), 40, 1e-3, length=256),
        standard("bace", ("val", "test"), 40, 1e-3, length=256),
        attention("tweeteval-emotion", ("val", "test"), 6),
        attention("tweeteval-sentiment", ("test",), 6, train="val"),
        attention("meld-sentiment", ("dev", "test"), 4, batch=64),
        attention("tweeteval-hate", ("val", "test"), 3, batch=64),
        attention("mnist", ("test",), 4, 2e-3, layers=3, batch=128),
        standard("mnist", ("test",), 4, 2e-3, layers=3, batch=128),
        attention("sst2", ("heldout", "dev"), 1, batch=64),
        attention("imdb", ("test",), 2),
        standard("tweeteval-sentiment", ("test",), 3, train="val"),
        standard("tweeteval-emotion", ("val", "test"), 3),
        standard("meld-sentiment", ("dev", "test"), 2),
        standard("sst2", ("heldout", "dev"), 1, samples=20_000),
        standard("tweeteval-hate", ("val", "test"), 1),
        standard("imdb", ("test",), 1, length=256, window=128),
        standard("eraser-movies", ("val", "test"), 2, 5e-5, length=512, window=256, start="imdb-standard", batch=16),
    )
}
