"""The common part of occlusion, KernelSHAP and LIME: replace features of the input and run Captum on the target.

The input is divided into features: positions of the first block's input (``at="position"``), token embeddings
(``"token"``), patches of an image or steps of another raw input (``"pixel"``). Padding belongs to no feature. Removed
features are replaced by the ``baseline``. Captum gets only which features are kept, zeros and ones, so that it does not
depend on the model's shapes; the model gets only other values of one tensor.

Captum explains one sample at a time. So it is run twice: the first run records, for each sample, the sets of features
that it evaluates; then the model is run for all samples of the batch at once, each with its own features replaced, and
for several sets in one forward pass; the second run of Captum looks up the values. There is no backward pass, and no
graph is kept.
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
from ..runs.copies import in_chunks
from ..runs.run import Run
from ..runs.token_streams import row_by_row, split
from ..tracing.reductions import precise
from ..tracing.tensor_info import node_of
from .base import Reading
from .changed_copies import ChangedCopies
from .gradient_x_input import InputLevel

Value = Callable[[Tensor], Tensor]
_GENERATOR_LOCK = threading.Lock()


@dataclass
class PerturbationMethod(ChangedCopies):
    """Methods that replace features by a baseline.

    Attributes:
        baseline: what removed features are replaced with: a number, or a tensor that broadcasts (``[features]``, for
            pixels an image).
        patch: with ``at="pixel"``, the side of a patch in pixels, or the number of steps of another raw input that make
            one feature; ``None``: the model's own patches, single steps.
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

    def groups(self, features: Tensor) -> list[Tensor]:
        """Return the sets of features that are replaced at once, of ``[features]`` or ``[rows, columns]``."""
        return list(features.reshape(-1, 1))

    def attribute(self, value: Value, count: int) -> Tensor:
        """Return Captum's scores for one sample, ``[count]``.

        Args:
            value: ``[1, count]``, 1 where a group is kept -> ``[1]``, the target less its value for the whole input.
            count: the number of groups of the sample.
        """
        raise NotImplementedError(f"Method '{self.name}' does not say what Captum is to do.")

    def read(self, run: Run) -> Reading:
        """Return Captum's scores, ``[batch, tokens]``, a feature's score shared by its positions."""
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
        """Evaluate every recorded set of every sample: one set of each sample in a copy of the batch."""
        wanted = [[kept for kept in table.values if not all(kept)] for table in tables]
        rounds = max(map(len, wanted))
        keeps = (
            game.keep(groups, [own[k] if k < len(own) else () for own in wanted]) for k in range(rounds)
        )  # [batch, features] of each round
        copies = self.copies(game.run, game.places, gradients=False)
        found = in_chunks(keeps, copies, game.values, lambda keep: game.values([keep])[0], game.agree)
        for k, values in enumerate(track(found, rounds, self.name)):
            for table, own, value in zip(tables, wanted, values.tolist(), strict=True):
                if k < len(own):
                    table.values[own[k]] = value


class CaptumQueries:
    """The sets of features that Captum evaluates for a sample, and the target's value for each."""

    def __init__(self) -> None:
        self.values: dict[tuple[float, ...], float] = {}

    def record(self, kept: Tensor) -> Tensor:
        """Record a set of features; its value is computed later."""
        self.values.setdefault(tuple(kept[0].tolist()), 0.0)
        return torch.zeros(1, dtype=torch.float64)

    def look_up(self, kept: Tensor) -> Tensor:
        """Return the value of a recorded set, ``[1]``."""
        return torch.tensor([self.values[tuple(kept[0].tolist())]], dtype=torch.float64)


class CoalitionGame:
    """The target as a function of which features are kept.

    Attributes:
        batch: the number of samples.
        count: the largest number of features of a sample; one stream after the other.
    """

    def __init__(self, run: Run, method: PerturbationMethod) -> None:
        self.run = run
        self.batch = run.trace.batch.size
        self.whole = precise(run.seed.value)
        self.places = method.places(run)
        self.template, self.owners = _owners(run, method, self.places)
        scores = [(run.tokens, self.template.scores), *self.template.others]
        self.columns: int | None = None
        self.cells: list[Tensor] = []  # [batch, positions]: the feature of each; -1 at padding
        self.count = 0
        for n, (tokens, found) in enumerate(scores):
            if n == 0 and self.template.grid is not None:
                cells, self.columns = _patches(run, self.template.grid, method.patch)
                cells = cells.expand(self.batch, -1)
            else:
                order = None if n else row_by_row(run, found.shape[1])
                cells = _steps(found, run.absent(found, tokens), (method.patch or 1) if n == 0 else 1, order)
            self.cells.append(torch.where(cells < 0, cells, cells + self.count))
            self.count += int(cells.max()) + 1
        self.baselines = [_baseline(method.baseline, t.detach()) for t in self.places]

    def features(self, i: int) -> list[Tensor]:
        """Return the features of a sample, per stream: ``[features]``, or ``[rows, columns]`` of an image's patches."""
        own = [cells[i][cells[i] >= 0].unique() for cells in self.cells]
        return [own[0] if self.columns is None else own[0].reshape(-1, self.columns), *own[1:]]

    def keep(self, groups: list[list[Tensor]], flags: list[tuple[float, ...]]) -> Tensor:
        """Return which features are kept, ``[batch, features]``.

        Args:
            groups: the groups of features of each sample.
            flags: for each sample, 1 for each group that is kept and 0 for one that is not; empty: all are.
        """
        keep = torch.ones(self.batch, self.count, dtype=torch.bool)
        for own, kept, row in zip(groups, flags, keep, strict=True):
            for group, flag in zip(own, kept, strict=False):
                if not flag:
                    row[group] = False
        return keep

    def values(self, keeps: list[Tensor]) -> list[Tensor]:
        """Return the target less its value for the whole input, ``[batch]``, for each of several sets of features.

        Args:
            keeps: ``[batch, features]`` each, true where a feature is kept.
        """
        values = {}
        for t, baseline, owner, cells in zip(self.places, self.baselines, self.owners, self.cells, strict=True):
            changed = []
            for keep in keeps:
                kept = (cells < 0) | keep.gather(1, cells.clamp(min=0))  # [batch, positions]
                changed.append(torch.where(kept.flatten().to(t.device)[owner], t.detach(), baseline))
            node = node_of(t)
            batch = node.axes.index((self.run.trace.batch,)) if len(keeps) > 1 else 0
            values[node.seq] = torch.cat(changed, batch)
        try:
            found = self.run.rerun(values, len(keeps), gradients=False).seed.value
        except NumericalError as error:
            raise NumericalError(
                "The model's output is not finite where features are replaced by the baseline. Give another "
                "`baseline`, a padding token's embedding for instance."
            ) from error
        return [precise(value) - self.whole for value in found.chunk(len(keeps))]

    def agree(self, found: list[Tensor], alone: Tensor) -> bool:
        """Return whether the last of several values is that of the same set alone, up to rounding of the logits."""
        size = max(float(values.abs().max()) for values in (*found, alone))
        rounding = 10 * torch.finfo(self.run.seed.logits.dtype).eps * float(self.run.seed.logits.abs().max())
        return torch.allclose(found[-1], alone, rtol=0, atol=1e-3 * size + rounding)

    def reading(self, scores: Tensor) -> Reading:
        """Distribute scores of features, ``[batch, features]``, evenly over the positions of each."""
        shared = []
        for cells in self.cells:
            real = cells >= 0
            sizes = torch.zeros_like(scores).scatter_add_(1, cells.clamp(min=0), real.to(scores))
            each = (scores / sizes.clamp(min=1)).gather(1, cells.clamp(min=0)) * real
            shared.append(each.to(self.whole))
        others = [(dim, found) for (dim, _), found in zip(self.template.others, shared[1:], strict=True)]
        return Reading(shared[0], grid=self.template.grid, others=others, tokens=self.template.tokens)


def _owners(run: Run, method: InputLevel, places: list[Tensor]) -> tuple[Reading, list[Tensor]]:
    """Return to which of ``[batch * positions]`` each element of each place belongs: where its relevance is summed.

    The transpose of a sum copies the index of each position to all its elements.
    """
    leaves = [torch.zeros(t.shape, dtype=torch.float64, requires_grad=True) for t in places]
    reading = method.reading(run, places, list(leaves))
    owners = []
    for t, leaf, found in zip(places, leaves, [reading.scores, *(s for _, s in reading.others)], strict=True):
        numbers = torch.arange(found.numel(), dtype=found.dtype).reshape(found.shape)
        owners.append(torch.autograd.grad(found, leaf, numbers)[0].long().to(t.device))
    return reading, owners


def _steps(scores: Tensor, padding: Tensor | None, size: int, order: Tensor | None = None) -> Tensor:
    """Return the index of the slice, of some size, that each position is in, ``[batch, positions]``; -1 at padding.

    Slices are numbered along the positions, or along ``order``, ``[batch, positions]``.
    """
    real = torch.ones_like(scores, dtype=torch.bool) if padding is None else ~padding.cpu()
    real = real if order is None else real.gather(1, order.cpu())
    found = ((real.cumsum(1) - 1) // size).masked_fill(~real, -1)
    return found if order is None else torch.empty_like(found).scatter(1, order.cpu(), found)


def _patches(run: Run, size: tuple[int, int], patch: int | None) -> tuple[Tensor, int]:
    """Return the patch of each pixel, ``[pixels]``, and the number of patches in a row."""
    if patch is not None:
        rows, columns = (torch.arange(n) // patch for n in size)
    else:
        tokens = run.tokens
        grids = [stream.grid for stream in split(tokens, math.prod(atom.size for atom in tokens), run)]
        grids += [run.group.places[0]] if run.group.places is not None else []
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
        samples: the number of sets that are drawn; ``None``: 200, and 2 for each feature of the sample.
        seed: the seed of the draws.
    """

    forwards: ClassVar[int | str] = "200 + 2 x tokens"

    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples is not None and self.samples < 2:
            raise MethodError(f"`samples` must be at least 2, not {self.samples}.")

    def attribute(self, value: Value, count: int) -> Tensor:
        """Return the coefficients of the fitted model, ``[count]``."""
        with seeded_generator(self.seed):
            return self.fit(value, count, 200 + 2 * count if self.samples is None else self.samples)

    def fit(self, value: Value, count: int, samples: int) -> Tensor:
        """Return the coefficients, ``[count]``, after Captum has drawn sets, evaluated them and fitted the model."""
        raise NotImplementedError(f"Method '{self.name}' does not say what Captum is to do.")


class Surrogate:
    """One of Captum's linear models, fitted in double precision.

    Captum passes sets and values in single precision, and the weights of KernelSHAP differ by a factor of a million.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, batches: Any) -> Any:
        """Fit to batches of sets, values and weights."""
        return self.model.fit([[t.double() for t in batch] for batch in batches])

    def representation(self) -> Tensor:
        """Return the coefficients, ``[1, features]``."""
        found: Tensor = self.model.representation()
        return found


@contextlib.contextmanager
def seeded_generator(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which Captum draws, and restore its state afterwards.

    Only one thread draws at a time. No model runs in the meantime.
    """
    with _GENERATOR_LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
