"""Which tokens a model reads: text, image, or whatever the user gave; and where each stream's own tokens are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .axes import Dim
from .node import Node, Source, node_of
from .run import Run

IMAGE_NAMES = ("pixel", "image", "visual", "video")


@dataclass
class Stream:
    """A stretch of positions that come from one of the user's inputs.

    Attributes:
        name: ``text``, ``image`` or ``input``.
        start, length: where it is on its token axis.
        special: ``[length]``, positions that the model adds of itself ([CLS], registers).
        grid: height and width, if its tokens are patches of a picture, and
        patch_start: the position of the first of them in the stream.
    """

    name: str
    start: int
    length: int
    special: Tensor
    grid: tuple[int, int] | None = None
    patch_start: int = 0


@dataclass
class _Stretch:
    name: str | None  # None: of the model's own
    length: int
    grid: tuple[int, int] | None = None


def entries(run: Run) -> list[tuple[Tensor, Dim]]:
    """What enters the first block of each token stream, with its token axis: one for BERT, two for CLIP and LXMERT."""
    out: list[tuple[Tensor, Dim]] = []
    seen: list[Node] = []
    for residual in run.trace.residuals:
        if not residual.attentions:
            continue
        record = run.trace.attentions[residual.attentions[0]]
        node = node_of(residual.trunk)
        if any(node is other or node.between(other) for other in seen) or not residual.trunk.requires_grad:
            continue
        seen.append(node)
        out.append((residual.trunk, record.axes[record.query]))
    return out


def split(dim: Dim, length: int, run: Run) -> list[Stream]:
    """The streams along a token axis: usually one; several where inputs are concatenated (ViLT, VisualBERT)."""
    if len(dim) == 2:
        return [Stream("image", 0, length, torch.zeros(length, dtype=torch.bool), (dim[0].size, dim[1].size))]
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
        out.append(_stream(group, start, run))
        start += out[-1].length
    return out


def _stream(group: list[_Stretch], start: int, run: Run) -> Stream:
    name = next((s.name for s in group if s.name), "input")
    special: list[bool] = []
    grid, patch_start = None, 0
    for stretch in group:
        if stretch.grid is not None:
            grid, patch_start = stretch.grid, len(special)
        special += [stretch.name is None] * stretch.length
    stream = Stream(name, start, len(special), torch.tensor(special), grid, patch_start)
    if name == "image" and grid is None:
        _guess_grid(stream, run)
    return stream


def _stretches(dim: Dim, length: int, run: Run) -> list[_Stretch]:
    """What a token axis is made of, concatenations inside concatenations opened up."""
    if len(dim) == 1 and dim[0].parts and dim[0].size == length:
        whole = [p for p in dim[0].parts if p.source is None or _size(p.source) == p.length]
        if len(whole) == len(dim[0].parts):
            out: list[_Stretch] = []
            for part in dim[0].parts:
                out += (
                    [_Stretch(None, part.length)] if part.source is None else _stretches(part.source, part.length, run)
                )
            return out
    name = _name(dim, run.trace.sources)
    grid = (dim[0].size, dim[1].size) if len(dim) == 2 and name == "image" else None
    return [_Stretch(name, length, grid)]


def _size(dim: Dim) -> int:
    size = 1
    for atom in dim:
        size *= atom.size
    return size


def _name(dim: Dim, sources: list[Source]) -> str:
    """What tokens on an axis are, by the input that has the axis; of an axis that no input has, by what is left."""
    named = [source for source in sources if source.name]
    for source in named:
        if any(atom in axis for axis in node_of(source.tensor).axes[1:] for atom in dim):
            return _kind(source)
    left = [_kind(source) for source in named]
    if len(dim) == 2:
        return "image"
    return "image" if "image" in left and "text" in left else (left[0] if left else "input")


def _kind(source: Source) -> str:
    if source.embedded:
        return "text"
    is_image = source.tensor.dim() == 4 or any(word in source.name for word in IMAGE_NAMES)
    return "image" if is_image else "input"


def _guess_grid(stream: Stream, run: Run) -> None:
    """The grid of patches whose way through the model was not followed, from the model's patch size if it fits."""
    patch = getattr(getattr(run.model, "config", None), "patch_size", None)
    sizes = [s.tensor.shape[-2:] for s in run.trace.sources if s.tensor.dim() == 4]
    if not isinstance(patch, int) or len(sizes) != 1:
        return
    h, w = sizes[0][0] // patch, sizes[0][1] // patch
    extra = stream.length - h * w
    if 0 <= extra <= 8 and int(stream.special[:extra].sum()) in (0, extra):
        stream.grid, stream.patch_start = (h, w), extra
        stream.special[:extra] = True
