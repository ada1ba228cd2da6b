"""Check the order of patches: pixels of one cell are changed, and the patch of that cell has to change.

The scores here are how much the embedding of each patch changes where it enters the first block. They take the same way
to ``e.patches`` as the relevance of a method that is read there, so that transposed, flipped or shuffled patches show.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from tools.conformance.family import Family, Inputs
from whence.errors import SamplesMixedError
from whence.explainer.assemble import assemble
from whence.explanations.explanation import Explanation
from whence.methods.base import Reading
from whence.methods.gradient_x_input import InputLevel
from whence.propagation.rulebook import Rulebook
from whence.runs.forward import forwarded
from whence.runs.model_inputs import prepare
from whence.runs.run import Run

#: cells of a grid that are tried at most, and how often each
CELLS, DRAWS = 16, 4
#: relative to the largest change, what is rounding
ROUNDING = 1e-9
#: correlation of the place of a cell and the centre of all changes, where a patch sees the whole image
CORRELATED = 0.8
Cell = tuple[int, int]


@dataclass
class _Change(InputLevel):
    """Scores each token by the change of its embedding since an earlier run.

    Attributes:
        before: what entered the first block of each stream then; empty: compare with this run itself.
        now: what entered in the last run.
    """

    name: ClassVar[str] = "change"

    before: list[Tensor] = field(default_factory=list)
    now: list[Tensor] = field(default_factory=list)

    def rulebook(self) -> Rulebook:
        """Return a rulebook without rules."""
        return Rulebook(books=False)

    def read(self, run: Run) -> Reading:
        """Return the squared change of each token."""
        places = self.places(run)
        self.now = [t.detach().clone() for t in places]
        changes = [(a - b) ** 2 for a, b in zip(self.now, self.before or self.now, strict=True)]
        return self.reading(run, places, changes)


def misplaced(family: Family, model: nn.Module) -> str | None:
    """Return what is wrong with the order of a family's patches, empty if nothing is; ``None`` if it has no patches."""
    one = family.batch(1)
    name = next((k for k, v in one.items() if v.is_floating_point() and v.dim() >= 4), None)
    grid = None if name is None else _run(family, model, one, _Change()).grid
    if name is None or grid is None:
        return None
    chosen = torch.randperm(grid[0] * grid[1], generator=torch.Generator().manual_seed(0))[:CELLS].tolist()
    cells = [divmod(number, grid[1]) for number in chosen]
    changes = _changes(family, model, one, name, grid, cells)
    return compare(cells, changes / changes.amax((1, 2), keepdim=True))


def _run(family: Family, model: nn.Module, inputs: Inputs, method: _Change) -> Explanation:
    torch.manual_seed(0)  # some draw an order of patches (ViLT)
    with (
        warnings.catch_warnings(action="ignore"),  # of scores that are read at the pixels
        forwarded(model, *prepare(model, inputs), method, [family.target]) as (run,),
    ):
        return assemble(run, method.read(run), method, {}).explanation


def _changes(
    family: Family, model: nn.Module, one: Inputs, name: str, grid: tuple[int, int], cells: Sequence[Cell]
) -> Tensor:
    """Return ``[cells, h, w]``: the mean change of each patch where the pixels of one cell are changed."""
    count = len(cells) * DRAWS
    same = {k: v.expand(count, *v.shape[1:]).clone() if v.dim() and len(v) == 1 else v for k, v in one.items()}
    generator = torch.Generator().manual_seed(1)
    image = same[name].clone()
    height, width = (size // n for size, n in zip(image.shape[-2:], grid, strict=True))
    for sample, (row, column) in enumerate(cell for cell in cells for _ in range(DRAWS)):
        pixels = image[sample, ..., row * height : (row + 1) * height, column * width : (column + 1) * width]
        pixels += torch.randn(pixels.shape, generator=generator, dtype=pixels.dtype)
    changed = {**same, name: image}
    try:
        method = _Change()
        _run(family, model, same, method)
        found = _run(family, model, changed, _Change(before=method.now)).patches
    except SamplesMixedError:
        method = _Change()
        _run(family, model, one, method)
        alone = ({**one, name: image[i : i + 1]} for i in range(count))
        found = torch.cat([_run(family, model, given, _Change(before=method.now)).patches for given in alone])
    return found.reshape(len(cells), DRAWS, *grid).mean(1)


def compare(cells: Sequence[Cell], changes: Tensor) -> str:
    """Return what is wrong with changes ``[cells, h, w]`` of which the largest is 1; empty if nothing is.

    Where patches overlap, those beside the cell change, too: no other order of patches keeps them beside it. Where a
    patch sees the whole image, the centre of the changes has to follow the cell.
    """
    rows, columns = (torch.arange(n, dtype=changes.dtype) for n in changes.shape[1:])
    far = torch.stack([
        torch.maximum((rows - row).abs()[:, None], (columns - column).abs()[None]) for row, column in cells
    ])  # fmt: skip
    own = (far == 0) & (changes > ROUNDING)
    if not bool(own.flatten(1).any(1).all()):
        cell = cells[int(own.flatten(1).any(1).int().argmin())]
        return f"the patch at {cell} does not change with its pixels"
    reach = float(far[changes > ROUNDING].max())
    if reach <= 1:
        return ""
    if reach < max(changes.shape[1:]) - 1:
        return f"patches change that are {reach:.0f} away from the pixels that were changed"
    total = changes.sum((1, 2))
    for axis, places, centre in (
        ("rows", [cell[0] for cell in cells], (changes.sum(2) @ rows) / total),
        ("columns", [cell[1] for cell in cells], (changes.sum(1) @ columns) / total),
    ):
        found = float(torch.corrcoef(torch.stack([torch.tensor(places, dtype=centre.dtype), centre]))[0, 1])
        if found < CORRELATED:
            return f"{axis} of patches follow those of pixels with a correlation of {found:.2f}"
    return ""
