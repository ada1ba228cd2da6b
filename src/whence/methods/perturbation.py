"""What occlusion, KernelSHAP and LIME have in common: replace parts of the input, look at the target, ask Captum.

The input is cut into features: positions of what enters the first block (``at="position"``), token embeddings
(``"token"``), patches of a picture or steps of another raw input (``"pixel"``). Padding belongs to no feature. Where a
feature is taken away, the ``baseline`` stands. Captum sees only which features are kept, zeros and ones, so that it
never meets the model's shapes; the model sees only other values of one tensor.

Captum explains one sample at a time. So it is asked twice: first it says, for each sample, what it would like to know;
then the model answers for all samples of the batch at once, each with its own features replaced, every question once;
then Captum is told. Each answer is a forward without a backward, and its graph is dropped at once.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._utils.progress import track
from ..errors import MethodError, NumericalError
from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..runs.token_streams import split
from ..tracing.node import node_of
from ..tracing.reductions import precise
from .base import Reading
from .gradient_x_input import InputLevel

Value = Callable[[Tensor], Tensor]
_GENERATOR_LOCK = threading.Lock()


@dataclass
class PerturbationMethod(InputLevel):
    """Methods that replace features by a baseline.

    Attributes:
        baseline: what a feature is replaced by: a number, or a tensor that fits (``[features]``, for pixels an image).
        patch: with ``at="pixel"``, the side of a patch in pixels, or how many steps of another raw input go together;
            ``None``: the model's own patches, single steps.
    """

    backwards: ClassVar[int] = 0
    needs: ClassVar[str] = "any model"

    baseline: float | Tensor = 0.0
    patch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch is not None and (self.patch < 1 or self.at != "pixel"):
            raise MethodError(
                f"`patch` must be at least 1, and goes with at='pixel': not {self.patch} with at={self.at!r}."
            )

    def rulebook(self) -> Rulebook:
        """None is needed."""
        return Rulebook(books=False)

    def groups(self, features: Tensor) -> list[Tensor]:
        """What is replaced at once: sets of features, which lie in a row ``[features]`` or ``[rows, columns]``."""
        return list(features.reshape(-1, 1))

    def attribute(self, value: Value, count: int) -> Tensor:
        """``[count]``: what Captum finds for one sample.

        Args:
            value: ``[1, count]``, 1 where a group is kept -> ``[1]``, the target less what it is for the whole input.
            count: how many groups the sample has.
        """
        raise NotImplementedError(f"Method '{self.name}' does not say what Captum is to do.")

    def read(self, run: Run) -> Reading:
        """``[batch, tokens]``: what Captum makes of the answers, a feature's score shared by its positions."""
        game = CoalitionGame(run, self)
        groups = [
            [group for features in game.features(i) if len(features) for group in self.groups(features)]
            for i in range(game.batch)
        ]
        tables = [CaptumQueries() for _ in groups]
        for table, own in zip(tables, groups, strict=True):
            if own:
                self.attribute(table.record, len(own))
        self._run_queries(game, groups, tables)
        scores = torch.zeros(game.batch, game.count, dtype=torch.float64)
        for i, (table, own) in enumerate(zip(tables, groups, strict=True)):
            times = torch.zeros(game.count, dtype=torch.float64)
            found = self.attribute(table.look_up, len(own)).double() if own else ()
            for group, score in zip(own, found, strict=True):
                scores[i, group] += score
                times[group] += 1
            scores[i] /= times.clamp(min=1)
        return game.reading(scores)

    def _run_queries(self, game: CoalitionGame, groups: list[list[Tensor]], tables: list[CaptumQueries]) -> None:
        """Put every question of every sample to the model, those of different samples together."""
        wanted = [[asked for asked in table.answers if not all(asked)] for table in tables]
        rounds = max(map(len, wanted))
        for k in track(range(rounds), rounds, self.name):
            keep = torch.ones(game.batch, game.count, dtype=torch.bool)
            now = {i: wanted[i][k] for i in range(game.batch) if k < len(wanted[i])}
            for i, asked in now.items():
                taken = [group for group, kept in zip(groups[i], asked, strict=True) if not kept]
                keep[i, torch.cat(taken)] = False
            values = game.value(keep).tolist()
            for i, asked in now.items():
                tables[i].answers[asked] = values[i]


class CaptumQueries:
    """What Captum asks about a sample, and the answers."""

    def __init__(self) -> None:
        self.answers: dict[tuple[float, ...], float] = {}

    def record(self, kept: Tensor) -> Tensor:
        """Write a question down; the answer is for later."""
        self.answers.setdefault(tuple(kept[0].tolist()), 0.0)
        return torch.zeros(1, dtype=torch.float64)

    def look_up(self, kept: Tensor) -> Tensor:
        """``[1]``: the answer."""
        return torch.tensor([self.answers[tuple(kept[0].tolist())]], dtype=torch.float64)


class CoalitionGame:
    """The target as a function of which features are kept.

    Attributes:
        batch: the number of samples.
        count: the number of features, of the sample that has most; one stream after the other.
    """

    def __init__(self, run: Run, method: PerturbationMethod) -> None:
        self.run = run
        self.batch = run.trace.batch.size
        self.whole = precise(run.seed.value)
        self.places = method.places(run)
        self.template, self.owners = _owners(run, method, self.places)
        scores = [(run.tokens(), self.template.scores), *self.template.others]
        self.columns: int | None = None
        self.cells: list[Tensor] = []  # [batch, positions]: the feature of each; -1 at padding
        self.count = 0
        for n, (tokens, found) in enumerate(scores):
            if n == 0 and self.template.grid is not None:
                cells, self.columns = _patches(run, self.template.grid, method.patch)
                cells = cells.expand(self.batch, -1)
            else:
                cells = _steps(found, run.absent(found, tokens), (method.patch or 1) if n == 0 else 1)
            self.cells.append(torch.where(cells < 0, cells, cells + self.count))
            self.count += int(cells.max()) + 1
        self.baselines = [_baseline(method.baseline, t.detach()) for t in self.places]

    def features(self, i: int) -> list[Tensor]:
        """The features of a sample, stream by stream: ``[features]``, or ``[rows, columns]`` of a picture's patches."""
        own = [cells[i][cells[i] >= 0].unique() for cells in self.cells]
        return [own[0] if self.columns is None else own[0].reshape(-1, self.columns), *own[1:]]

    def value(self, keep: Tensor) -> Tensor:
        """``[batch]``: the target less its value for the whole input, if only some features are kept.

        Args:
            keep: ``[batch, features]``.
        """
        values = {}
        for t, baseline, owner, cells in zip(self.places, self.baselines, self.owners, self.cells, strict=True):
            kept = (cells < 0) | keep.gather(1, cells.clamp(min=0))  # [batch, positions]
            values[node_of(t).seq] = torch.where(kept.flatten().to(t.device)[owner], t.detach(), baseline)
        try:
            return precise(self.run.rerun(values).seed.value) - self.whole
        except NumericalError as error:
            raise NumericalError(
                "The model's output is not finite where features are replaced by the baseline. Give another "
                "`baseline`, a padding token's embedding for instance."
            ) from error

    def reading(self, scores: Tensor) -> Reading:
        """Scores of features, ``[batch, features]``, shared out among the positions of each."""
        shared = []
        for cells in self.cells:
            real = cells >= 0
            sizes = torch.zeros_like(scores).scatter_add_(1, cells.clamp(min=0), real.to(scores))
            each = (scores / sizes.clamp(min=1)).gather(1, cells.clamp(min=0)) * real
            shared.append(each.to(self.whole))
        others = [(dim, found) for (dim, _), found in zip(self.template.others, shared[1:], strict=True)]
        return Reading(shared[0], grid=self.template.grid, others=others, tokens=self.template.tokens)


def _owners(run: Run, method: InputLevel, places: list[Tensor]) -> tuple[Reading, list[Tensor]]:
    """To which of ``[batch * positions]`` each element of each place belongs: that to which its relevance is summed.

    The transpose of a sum carries the number of each position to all its elements.
    """
    leaves = [torch.zeros(t.shape, dtype=torch.float64, requires_grad=True) for t in places]
    reading = method.reading(run, places, list(leaves))
    owners = []
    for t, leaf, found in zip(places, leaves, [reading.scores, *(s for _, s in reading.others)], strict=True):
        numbers = torch.arange(found.numel(), dtype=found.dtype).reshape(found.shape)
        owners.append(torch.autograd.grad(found, leaf, numbers)[0].long().to(t.device))
    return reading, owners


def _steps(scores: Tensor, padding: Tensor | None, size: int) -> Tensor:
    """``[batch, positions]``: the number of the stretch, of some size, that each position is in; -1 at padding."""
    real = torch.ones_like(scores, dtype=torch.bool) if padding is None else ~padding.cpu()
    return ((real.cumsum(1) - 1) // size).masked_fill(~real, -1)


def _patches(run: Run, size: tuple[int, int], patch: int | None) -> tuple[Tensor, int]:
    """``[pixels]``: the patch of each, and how many there are in a row."""
    if patch is not None:
        rows, columns = (torch.arange(n) // patch for n in size)
    else:
        tokens = run.tokens()
        grids = [stream.grid for stream in split(tokens, math.prod(atom.size for atom in tokens), run)]
        grids += [run.places[0]] if run.places is not None else []
        grid = next((g for g in grids if g is not None), None)
        if grid is None:
            raise MethodError(
                "The model's own patches were not found. Give their side in pixels, for example at='pixel', patch=16."
            )
        rows, columns = (torch.arange(n) * cells // n for n, cells in zip(size, grid, strict=True))
    wide = int(columns[-1]) + 1
    return (rows[:, None] * wide + columns).flatten(), wide


def _baseline(given: float | Tensor, like: Tensor) -> Tensor:
    value = torch.as_tensor(given).to(like)
    try:
        return value.expand_as(like)
    except RuntimeError as error:
        raise MethodError(
            f"The baseline has shape {list(value.shape)}, which does not fit {list(like.shape)}: give a number, or a "
            "tensor whose last dimensions are those."
        ) from error


@dataclass
class SampledPerturbation(PerturbationMethod):
    """Methods that fit a linear model to the target's values for features drawn at random.

    Attributes:
        samples: how many sets of features are drawn; ``None``: 200, and 2 for each feature of the sample.
        seed: other seeds draw other sets.
    """

    forwards: ClassVar[int | str] = "200 + 2 x tokens"

    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples is not None and self.samples < 2:
            raise MethodError(f"`samples` must be at least 2, not {self.samples}.")

    def attribute(self, value: Value, count: int) -> Tensor:
        """``[count]``: the coefficients of the fitted model."""
        with seeded_generator(self.seed):
            return self.fit(value, count, 200 + 2 * count if self.samples is None else self.samples)

    def fit(self, value: Value, count: int, samples: int) -> Tensor:
        """``[count]``: Captum draws, asks and fits."""
        raise NotImplementedError(f"Method '{self.name}' does not say what Captum is to do.")


class Surrogate:
    """One of Captum's linear models, fitted in double precision: Captum hands over its sets and values in single, and
    the weights of KernelSHAP are a million apart."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, batches: Any) -> Any:
        """Fit to batches of sets, values and weights."""
        return self.model.fit([[t.double() for t in batch] for batch in batches])

    def representation(self) -> Tensor:
        """``[1, features]``: the coefficients."""
        found: Tensor = self.model.representation()
        return found


@contextlib.contextmanager
def seeded_generator(seed: int) -> Iterator[None]:
    """Torch's global generator, from which Captum draws, seeded for the while and then as it was.

    One thread at a time may draw. No model runs in the meantime.
    """
    with _GENERATOR_LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
