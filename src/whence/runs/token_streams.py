"""Which tokens a model reads: text, image, or whatever the user gave; and where each stream's own tokens are."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..capture.tape import checking
from ..tracing.axes import Axis, Dim, size_of
from ..tracing.reductions import per_token
from ..tracing.tensor_info import Source, node_of
from .block_structure import around_attentions
from .run import Run

IMAGE_NAMES = ("pixel", "image", "visual", "video")
FOLDED = 4  # folding a signal in two makes its cells four times as long as wide, or more


@dataclass
class Stream:
    """A stretch of positions that come from one of the user's inputs.

    Attributes:
        name: ``text``, ``image``, ``input``, or ``queries`` for tokens that the model has learned.
        start, length: where it is on its token axis.
        special: ``[length]``, positions that the model adds of itself ([CLS], registers).
        grid: height and width, if its tokens are patches of a picture, and
        patch_start: the position of the first of them in the stream.
        order: of an image in several tiles, the model's position for each of the stream's: what the model adds to each
            tile, then the patches of one tile below those of the other.
    """

    name: str
    start: int
    length: int
    special: Tensor
    grid: tuple[int, int] | None = None
    patch_start: int = 0
    order: Tensor | None = None

    def lay_out(self, grid: tuple[int, int], extra: int) -> None:
        """Set the grid of its patches, which follow some positions of the model's own."""
        self.grid = grid
        self.patch_start = extra
        self.special = torch.arange(self.length) < extra

    def in_tiles(self, count: int) -> Stream:
        """Return the stream of several such images, tiles of one or frames of a video."""
        length = count * self.length
        if self.grid is None:
            return Stream(self.name, 0, length, self.special.repeat(count))
        rows, columns = self.grid
        ends = self.patch_start, self.patch_start + rows * columns
        places = torch.arange(length).unflatten(0, (count, self.length))
        order = torch.cat([places[:, a:b].flatten() for a, b in itertools.pairwise((0, *ends, self.length))])
        grid = count * rows, columns
        return Stream(self.name, 0, length, self.special.repeat(count)[order], grid, count * self.patch_start, order)


@dataclass
class _Stretch:
    name: str | None  # None: of the model's own
    length: int
    grid: tuple[int, int] | None = None


def entries(run: Run) -> list[tuple[Tensor, Dim]]:
    """What enters the first block of each token stream, with its token axis: one for BERT, two for CLIP and LXMERT.

    Last, what joins a stream later: LLaVA's words.
    """
    first = [b.tensor for b in run.boundaries[:1] if b.tensor is run.trace.entry or (run.around and run.aside)]
    out: list[tuple[Tensor, Dim]] = [(t, run.keys) for t in first]
    followed = {node_of(t).seq for t in first}  # where streams begin, and what follows that
    for residual in () if run.around else around_attentions(run.trace):
        record = run.trace.attentions[residual.attentions[0]]
        trunk = run.trunk(residual)
        node = node_of(trunk)
        if node.descends(followed):
            followed.add(node.seq)
            continue
        if not trunk.requires_grad:
            continue
        again = any(node.seq in node_of(t).ancestors() for t, _ in out)  # a stream that it is part of has begun
        if node.learned and (again or record.axes[record.query] not in node.token_axes):
            continue  # what queries are told anew in each layer
        followed.add(node.seq)
        out.append((trunk, record.axes[record.query]))
    named = [source.tensor for source in run.trace.sources if source.name]
    out += [(b.tensor, b.node.token_axes[1]) for b in run.aside if any(b.tensor is t for t in named)]
    return [(t, (*tiles_of(t, dim, run), *dim)) for t, dim in out]


def tiles_of(tensor: Tensor, dim: Dim, run: Run) -> Dim:
    """Return the axis of an image's tiles, or of a video's frames, that a model reads as samples of a larger batch.

    Args:
        tensor: what enters the first block of a stream.
        dim: the token axis of the stream.
        run: the run.
    """
    batch = run.trace.batch
    given = tile_atoms(run)
    return tuple(a for d in node_of(tensor).axes if batch in d for a in d if a in given and a not in dim)


def tile_atoms(run: Run) -> set[Axis]:
    """Return the axes behind the batch of inputs ``[batch, tiles, channels, height, width]``."""
    several = [node_of(s.tensor).axes for s in run.trace.sources if s.tensor.dim() > 4]
    return {atom for axes in several for dim in axes[1:-3] for atom in dim}


def split(dim: Dim, length: int, run: Run) -> list[Stream]:
    """The streams along a token axis: usually one; several where inputs are concatenated (ViLT, VisualBERT)."""
    given = tile_atoms(run)
    tiles = tuple(itertools.takewhile(given.__contains__, dim))
    if tiles and len(tiles) < len(dim):
        inner = split(dim[len(tiles) :], length // size_of(tiles), run)
        one = inner[0] if len(inner) == 1 else Stream("image", 0, length // size_of(tiles), torch.zeros(0))
        return [one.in_tiles(size_of(tiles))]
    if len(dim) == 2 and _name(dim, run.trace.sources) == "image":
        return [Stream("image", 0, length, torch.zeros(length, dtype=torch.bool), _grid(dim, run))]
    stretches = _stretches(dim, length, run)
    groups: list[list[_Stretch]] = []
    waiting: list[_Stretch] = []  # tokens of the model's own belong to what they precede
    current: str | None = None
    for stretch in stretches:
        if stretch.name is None:
            waiting.append(stretch)
        elif groups and stretch.name == current:
            groups[-1] += [*waiting, stretch]
            waiting = []
        else:
            groups.append([*waiting, stretch])
            current, waiting = stretch.name, []
    if waiting:
        groups = [*groups[:-1], [*(groups[-1] if groups else []), *waiting]]
    out: list[Stream] = []
    start = 0
    for group in groups:
        out.append(_stream(group, start))
        start += out[-1].length
    return out


def _stream(group: list[_Stretch], start: int) -> Stream:
    name = next((s.name for s in group if s.name), "input")
    special: list[bool] = []
    grid, patch_start = None, 0
    for stretch in group:
        if stretch.grid is not None:
            grid, patch_start = stretch.grid, len(special)
        special += [stretch.name is None] * stretch.length
    return Stream(name, start, len(special), torch.tensor(special), grid, patch_start)


def _stretches(dim: Dim, length: int, run: Run) -> list[_Stretch]:
    """What a token axis is made of, concatenations inside concatenations opened up."""
    if len(dim) == 1 and dim[0].parts and dim[0].size == length:
        whole = [p for p in dim[0].parts if p.source is None or size_of(p.source) == p.length]
        if len(whole) == len(dim[0].parts):
            out: list[_Stretch] = []
            for part in dim[0].parts:
                out += (
                    [_Stretch(None, part.length)] if part.source is None else _stretches(part.source, part.length, run)
                )
            return out
    name = _name(dim, run.trace.sources)
    return [_Stretch(name, length, _grid(dim, run) if name == "image" else None)]


def _grid(dim: Dim, run: Run) -> tuple[int, int] | None:
    """Height and width of two axes that are a picture's, unless it was folded on the way there (CLAP's sound)."""
    if len(dim) != 2:
        return None
    pictures = [node_of(source.tensor).axes for source in run.trace.sources if source.tensor.dim() >= 4]
    if any(atom.origin().order is not None for atom in dim):
        return None  # of a picture that was flipped or moved
    if any((dim[0].origin(),) == axes[-1] or (dim[1].origin(),) == axes[-2] for axes in pictures):
        return None  # columns first
    rows, columns = dim[0].size, dim[1].size
    sizes = [source.tensor.shape[-2:] for source in run.trace.sources if source.tensor.dim() >= 4]
    cells = [(height / rows, width / columns) for height, width in sizes]
    return (rows, columns) if not cells or any(max(cell) < FOLDED * min(cell) for cell in cells) else None


def _name(dim: Dim, sources: list[Source]) -> str:
    """What tokens on an axis are, by the input that has the axis; of an axis that no input has, by what is left."""
    named = [source for source in sources if source.name]
    own = [source for source in sources if not source.name and not source.embedded]
    if any(atom in axis for source in own for axis in node_of(source.tensor).axes for atom in dim):
        return "queries"
    if not dim and any(1 in source.tensor.shape for source in own):  # a single token has no axis
        return "queries"
    for source in named:
        if any(atom in axis for axis in node_of(source.tensor).axes[1:] for atom in dim):
            return _kind(source)
    left = [_kind(source) for source in named]
    if len(dim) == 2 and "image" in left:
        return "image"
    return "image" if "image" in left and "text" in left else (left[0] if left else "input")


def _kind(source: Source) -> str:
    if source.embedded:
        return "text"
    is_image = source.tensor.dim() == 4 or any(word in source.name for word in IMAGE_NAMES)
    return "image" if is_image else "input"


# -- patches that were not followed ----------------------------------------------------------------------------------


def patch_places(run: Run) -> tuple[tuple[int, int], Tensor] | None:
    """Where each patch of a picture went, for models that put patches in an order of their own (ViLT draws one).

    The gradient of what enters the first block with respect to the pixels, once with every position counted as 1 and
    once as its number, differs in each pixel by the number of the position that the pixel went to.

    Returns:
        The grid, and ``[batch, patches]``: the position of each patch, row by row; ``None`` if that is not so.
    """
    pixels = [s.tensor for s in run.trace.sources if s.tensor.dim() == 4]
    entry = run.position("position")
    if len(pixels) != 1 or entry is pixels[0] or not run.tokens:
        return None
    sums = per_token(entry, node_of(entry).axes, run.trace.batch, run.tokens)
    numbers = torch.arange(1, sums.shape[1] + 1, dtype=sums.dtype, device=sums.device)
    (once,) = torch.autograd.grad(sums.sum(), pixels, retain_graph=True, materialize_grads=True)
    (numbered,) = torch.autograd.grad((sums * numbers).sum(), pixels, retain_graph=True, materialize_grads=True)
    run.forget()
    norm = once.double().square().sum(1)
    owner = (once.double() * numbered.double()).sum(1) / norm.clamp(min=torch.finfo(torch.float64).tiny)
    whole = owner.round()
    error = (numbered.double() - once.double() * whole[:, None]).abs().max()
    if not bool(norm.any() & (error <= 1e-3 * numbered.abs().max())):
        return None
    with checking():  # the order is part of what a capture computes; the grid is the same for all inputs of one size
        found = [_laid_out(sample.long() - 1) for sample in torch.where(norm > 0, whole, 0)]
    grids = {grid for grid, _ in (one for one in found if one is not None)}
    if len(grids) != 1 or any(one is None for one in found):
        return None
    return grids.pop(), torch.stack([one[1] for one in found if one is not None])


def _laid_out(owner: Tensor) -> tuple[tuple[int, int], Tensor] | None:
    """The grid of patches, and which position each of them went to, row by row.

    Args:
        owner: ``[height, width]``, the position that each pixel went to; -1: to none.
    """
    rows = [i for i in range(len(owner)) if bool((owner[i] >= 0).any())]
    columns = [j for j in range(owner.shape[1]) if bool((owner[:, j] >= 0).any())]
    if not rows:
        return None
    tops = [i for n, i in enumerate(rows) if n == 0 or not torch.equal(owner[i], owner[rows[n - 1]])]
    lefts = [j for n, j in enumerate(columns) if n == 0 or not torch.equal(owner[:, j], owner[:, columns[n - 1]])]
    places = owner[tops][:, lefts].flatten()
    if bool((places < 0).any()) or bool((places.sort().values.diff() == 0).any()):
        return None
    return (len(tops), len(lefts)), places


def row_by_row(run: Run, length: int) -> Tensor | None:
    """Return ``[batch, tokens]``: positions in an order in which patches lie row by row; ``None`` if they do."""
    return in_order(run, split(run.tokens, length, run), length)


def in_order(run: Run, streams: list[Stream], length: int) -> Tensor | None:
    """Return ``[batch, tokens]``: positions in an order in which patches lie row by row; ``None`` if they do.

    The stream of the image gets its grid.
    """
    image = next((s for s in streams if s.name == "image" and s.grid is None), None)
    if image is None or run.group.places is None:
        return None
    grid, places = run.group.places
    taken = torch.zeros(len(places), length, dtype=torch.bool, device=places.device).scatter(1, places, True)
    inside = torch.zeros(length, dtype=torch.bool, device=places.device)
    inside[image.start : image.start + image.length] = True
    if bool((taken & ~inside).any()) or int(taken.sum()) != places.numel():
        return None
    extra = image.length - places.shape[1]
    every = torch.arange(length, device=places.device).expand(len(places), -1)
    own = every.masked_fill(~inside | taken, length).sort(1).values[:, :extra]
    before = every[:, : image.start]
    after = every[:, image.start + image.length :]
    image.lay_out(grid, extra)
    return torch.cat([before, own, places, after], 1)
