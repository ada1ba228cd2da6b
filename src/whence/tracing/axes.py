"""Which dimension of a tensor is the batch and which are tokens, followed through every operation.

Models merge, split and permute dimensions as they like: ``[batch, tokens, features]``,
``[tokens, batch, features]``, ``[batch * heads, tokens, head]``. Every dimension is therefore a tuple
of *atoms* (:class:`Axis`): a reshape merges or splits atoms, a permutation moves them, and whoever
needs "per sample" or "per token" later finds the batch atom or the token atoms wherever they are.

An operation that is not described here keeps the axes of its inputs where position and size agree,
and gets fresh ones where they do not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import einsum_axes
from .operations import spec


class Part(NamedTuple):
    """A stretch of a concatenated or sliced axis: where it was taken from (``None``: a constant)."""

    source: tuple[Axis, ...] | None
    start: int
    length: int


class Order(NamedTuple):
    """The order of the entries of an axis: entry ``i`` is entry ``places[i]`` of ``source``.

    ``places`` is ``[entries]``, or ``[batch, entries]`` where each sample has its own.
    """

    source: tuple[Axis, ...]
    places: Tensor


class Axis:
    """One atomic axis: an identity and a size.

    Attributes:
        size: how many entries it has.
        parts: those of a concatenation or a slice.
        order: the order in which it holds the entries of another axis.
        whole, stride: the axis that it was split from, and how far apart its entries are there.
        cells_of: the axis of which its entries are cells (rows of patches, of rows of pixels).
        joined: the axes that were made of it before, to be found again.
        grown: whether its entries were repeated, or some added to them.
    """

    __slots__ = ("cells_of", "grown", "joined", "order", "parts", "size", "stride", "whole")

    def __init__(
        self,
        size: int,
        parts: tuple[Part, ...] = (),
        order: Order | None = None,
        whole: Axis | None = None,
        stride: int = 1,
        cells_of: Axis | None = None,
    ) -> None:
        self.size = size
        self.parts = parts
        self.order = order
        self.whole = whole
        self.stride = stride
        self.cells_of = cells_of
        self.joined: list[Axis] = []
        self.grown = False

    def grow(self) -> None:
        """Note that its entries were repeated, or some added to them."""
        self.grown = True

    def origin(self) -> Axis:
        """Return the axis that it is a part of, or of which its entries are cells."""
        wider = self.cells_of or self.whole
        return self if wider is None else wider.origin()

    def split(self, first: int) -> tuple[Axis, Axis]:
        """Return the two axes of this one laid out as ``[first, rest]``."""
        whole = self if self.whole is None else self.whole
        rest = self.size // first
        return Axis(first, whole=whole, stride=self.stride * rest), Axis(rest, whole=whole, stride=self.stride)

    def __repr__(self) -> str:
        return f"Axis({self.size})"


Dim = tuple[Axis, ...]
Axes = tuple[Dim, ...]
Known = tuple[Axes, Sequence[int]]  # the axes of a tensor and its shape


def fresh(size: int) -> Dim:
    """A new dimension of one new atom; a dimension of size 1 has no atom."""
    return (Axis(size),) if size != 1 else ()


def cells(dim: Dim, size: int) -> Dim:
    """A new dimension whose entries are cells of another one."""
    return (Axis(size, cells_of=dim[0]),) if size != 1 and len(dim) == 1 else fresh(size)


def size_of(dim: Dim) -> int:
    """How long an axis is."""
    return math.prod(atom.size for atom in dim)


def ordered(dim: Dim, index: Tensor) -> Dim | None:
    """Return the axis that holds entries of another one in some order; ``None`` if they are no slice of it.

    Args:
        dim: the other axis.
        index: which of its entries, ``[entries]`` or ``[batch, entries]``.
    """
    order = order_of(dim)
    if order is not None:
        samples = torch.broadcast_shapes(order.places.shape[:-1], index.shape[:-1])
        index = order.places.expand(*samples, -1).gather(-1, index.expand(*samples, -1))
        dim = order.source
    count = index.shape[-1]
    start = int(index.min())
    rows = index.reshape(-1, count)
    if bool((rows == rows[:1]).all()):
        index = rows[0]
    if not bool((index.sort(-1).values - start == torch.arange(count)).all()):
        return None
    if count < size_of(dim):
        return ordered(cut(dim, start, count, size_of(dim)), index - start) if count > 1 else ()
    if bool((index == torch.arange(count)).all()):
        return dim
    for old in dim[0].joined:
        if old.order is not None and old.order.source == dim and torch.equal(old.order.places, index):
            return (old,)
    made = Axis(count, order=Order(dim, index))
    dim[0].joined.append(made)
    return (made,)


def order_of(dim: Dim) -> Order | None:
    """Return the order in which an axis holds the entries of another one; ``None`` if it is none of these."""
    return dim[0].order if len(dim) == 1 else None


def descends(dim: Dim, atoms: Set[Axis]) -> bool:
    """Return whether entries of a dimension are, or are parts of, entries of some axes."""
    for atom in dim:
        order = () if atom.order is None else atom.order.source
        wider = [axis for axis in (atom.whole, atom.cells_of) if axis is not None]
        inner = (*order, *wider, *(axis for part in atom.parts for axis in part.source or ()))
        if atom in atoms or descends(inner, atoms):
            return True
    return False


def plain(axes: Axes) -> Axes:
    """Return axes with those that only hold the entries of another one in some order replaced by that one."""
    return tuple(dim if (order := order_of(dim)) is None else order.source for dim in axes)


def guess(shape: Sequence[int], sources: Sequence[Known], batch: Axis) -> Axes:
    """Axes of the output of an undescribed operation, or (without sources) of a tensor from outside."""
    out: list[Dim] = []
    for i, n in enumerate(shape):
        dims = [axes[i] for axes, other in sources if len(other) == len(shape) and other[i] == n and axes[i]]
        if dims:
            out.append(dims[0])
        elif i == 0 and n == batch.size:
            out.append((batch,))
        else:
            out.append(fresh(n))
    return tuple(out)


def broadcast(shape: Sequence[int], sources: Sequence[Known]) -> Axes:
    """Axes of a broadcasting operation: each dimension from the first input that has it in full."""
    out: list[Dim] = []
    for back in range(len(shape), 0, -1):
        n = shape[-back]
        dims = [axes[-back] for axes, other in sources if len(other) >= back and other[-back] == n and axes[-back]]
        out.append(dims[0] if dims else fresh(n))
    return tuple(out)


def reshape(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Redistribute the atoms, in order, over a new shape; ``None`` where an atom is cut unevenly."""
    atoms = [atom for dim in axes for atom in dim]
    out: list[Dim] = []
    at = 0
    for n in shape:
        dim: list[Axis] = []
        got = 1
        while got < n:
            if at == len(atoms):
                return None
            atom = atoms[at]
            if n % (got * atom.size) == 0:
                dim.append(atom)
                got *= atom.size
                at += 1
            else:  # the atom is wider than what is missing here: split it
                need = n // got
                if n % got or atom.size % need:
                    return None
                first, atoms[at] = atom.split(need)
                dim.append(first)
                got = n
        if n == 1 and at < len(atoms) and atoms[at].size == 1:
            dim.append(atoms[at])
            at += 1
        out.append(tuple(dim))
    if at < len(atoms) and out:  # a batch of one that found no dimension of its own
        out[0] = (*atoms[at:], *out[0])
    return tuple(map(_put_together, out))


def _put_together(dim: Dim) -> Dim:
    """Return the axis that some axes were split from, in the order in which they hold its entries."""
    orders = [order_of((atom,)) for atom in dim]  # rows or columns that were moved by themselves
    atoms = [atom if order is None else order.source[0] for atom, order in zip(dim, orders, strict=True)]
    whole = atoms[0].whole if len(dim) > 1 else None
    if whole is None or any(atom.whole is not whole for atom in atoms) or size_of(tuple(atoms)) != whole.size:
        return dim
    index = torch.zeros(1, dtype=torch.long)
    for atom, order in zip(atoms, orders, strict=True):
        places = torch.arange(atom.size) if order is None else order.places
        if places.dim() > 1:
            return dim
        index = (index[:, None] + places * atom.stride).flatten()
    return ordered((whole,), index) or dim


def cut(dim: Dim, start: int, length: int, size: int) -> Dim:
    """Axes of a stretch of a dimension."""
    if length == size:
        return dim
    order = order_of(dim)
    if order is not None:
        found = ordered(dim, torch.arange(start, start + length))
        if found is not None:
            return found
    at = 0
    for part in dim[0].parts if len(dim) == 1 else ():  # what was joined comes apart again
        if at == start and part.length == length and part.source is not None and size_of(part.source) == length:
            return part.source
        at += part.length
    return (Axis(length, (Part(dim, start, length),)),) if length != 1 else ()


def _getitem(axes: Axes, shape: Sequence[int], index: Any, batch: Axis) -> Axes | None:
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(item, Tensor | list) for item in items):
        return _picked(axes, items, batch)
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    at = next((n for n, item in enumerate(items) if item is Ellipsis), len(items))
    items[at : at + 1] = [slice(None)] * (len(shape) - used)
    out: list[Dim] = []
    d = 0
    for item in items:
        if item is None:
            out.append(())
            continue
        if isinstance(item, slice):
            start, stop, step = item.indices(shape[d])
            length = len(range(start, stop, step))
            out.append(cut(axes[d], start, length, shape[d]) if step == 1 else fresh(length))
        d += 1
    return tuple(out)


def _picked(axes: Axes, items: Sequence[Any], batch: Axis) -> Axes | None:
    """``x[samples, places]``, which picks as many places of each sample, one sample after the other."""
    first = items[0]
    if axes[0] != (batch,) or not all(isinstance(i, Tensor) and i.dim() == 1 and i.dtype == torch.long for i in items):
        return None
    places, left = divmod(len(first), batch.size)
    each = torch.arange(batch.size, device=first.device).repeat_interleave(places)
    if left or not places or not torch.equal(first, each):
        return None
    return ((batch, *fresh(places)), *axes[len(items) :])


def _matmul(shape: Sequence[int], known: Sequence[Known]) -> Axes:
    (a, a_shape), (b, b_shape) = known[:2]
    if len(a) == 1 or len(b) == 1:
        return (*a[:-1], *(b[:-2] if len(a) == 1 else ()), *(b[-1:] if len(b) > 1 else ()))
    return (*broadcast(shape[:-2], [(a[:-2], a_shape[:-2]), (b[:-2], b_shape[:-2])]), a[-2], b[-1])


def _distinct(func: Callable[..., Any], ndim: int, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Run a shape function on a tensor whose sizes are all different: which dimension went where."""
    tight = [tuple(a) if isinstance(a, list) else a for a in (*args, *kwargs.values())]
    return _moved(func, ndim, tuple(tight[: len(args)]), tuple(zip(kwargs, tight[len(args) :], strict=True)))


@functools.lru_cache(maxsize=512)
def _moved(func: Callable[..., Any], ndim: int, args: tuple[Any, ...], kwargs: tuple[Any, ...]) -> tuple[int, ...]:
    out = func(torch.empty(tuple(range(2, 2 + ndim)), device="meta"), *args, **dict(kwargs))
    return tuple(n - 2 for n in out.shape)


def _argument(args: Sequence[Any], kwargs: dict[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def follow(
    name: str,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    known: Sequence[Known],
    shapes: Sequence[Sequence[int]],
    batch: Axis,
) -> list[Axes]:
    """Axes of each output of an operation.

    Args:
        name: the operation's canonical name.
        func: the operation.
        args: its positional arguments (tensors included).
        kwargs: its keyword arguments.
        known: axes and shape of each tensor argument, in order.
        shapes: the shapes of the outputs.
        batch: the batch axis.
    """
    out = shapes[0]
    rule = spec(name).axes
    if rule == "created":  # a tensor of the same shape is not made of the same tokens
        return [guess(s, (), batch) for s in shapes]
    if rule == "split":
        return _split(name, *known[0], shapes, args, kwargs)
    found = _RULES[rule](Step(name, func, args, kwargs, known, out, batch))
    if found is None or len(found) != len(out):
        guessed = [guess(s, known, batch) for s in shapes]
        if "grows" in spec(name).traits:
            _note_growth(guessed[0], known)
        return guessed
    if "grows" in spec(name).traits:
        _note_growth(found, known)
    if not all(found):
        found = tuple(dim if dim or n == 1 else fresh(n) for dim, n in zip(found, out, strict=True))  # from a constant
    return [found] if len(shapes) == 1 else [found, *(guess(s, [(found, out)], batch) for s in shapes[1:])]


def _note_growth(axes: Axes, known: Sequence[Known]) -> None:
    """Mark the axes that an operation made longer, or new."""
    before = {atom for own, _ in known for dim in own for atom in dim}
    for atom in {atom for dim in axes for atom in dim} - before:
        atom.grow()


class Step(NamedTuple):
    """One operation: as in :func:`follow`, with the shape of its first output."""

    name: str
    func: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    known: Sequence[Known]
    out: Sequence[int]
    batch: Axis

    def argument(self, position: int, name: str, default: Any) -> Any:
        """An argument by position or by name."""
        return _argument(self.args, self.kwargs, position, name, default)


def _elementwise(step: Step) -> Axes | None:
    axes, shape = step.known[0]
    out = step.out
    if shape == out and all(axes):
        return axes
    return broadcast(out, step.known) if _fits(out, step.known) else None


def _reduced(step: Step) -> Axes | None:
    axes, shape = step.known[0]
    if len(step.out) == len(shape):  # the dimension is kept
        return _elementwise(step)
    kept = _distinct(step.func, len(axes), step.args[1:], step.kwargs) if step.out else ()
    return tuple(axes[i] for i in kept)


def _expanded(step: Step) -> Axes:
    axes = step.known[0][0]
    out, batch = step.out, step.batch
    found = broadcast(out, step.known)
    same = len(axes) < len(out) or not axes[0] if out else False
    if same and out[0] == batch.size and not any(batch in dim for dim in found):
        found = ((batch,), *found[1:])  # one for every sample, of what was the same for all
    return found


def _permuted(step: Step) -> Axes:
    axes = step.known[0][0]
    return tuple(axes[i] for i in _distinct(step.func, len(axes), step.args[1:], step.kwargs))


def _linear(step: Step) -> Axes:
    return (*(step.known[0][0][: len(step.out) - 1]), fresh(step.out[-1]))


def _convolved(step: Step) -> Axes:
    (axes, shape), out = step.known[0], step.out
    at = len(out) - int(step.name[-2])  # where space begins: one image has no batch axis
    kept = [dim if n == m else cells(dim, n) for dim, n, m in zip(axes[at:], out[at:], shape[at:], strict=True)]
    return (*axes[: at - 1], fresh(out[at - 1]), *kept)


def _selected(step: Step) -> Axes:
    axes, dim = step.known[0][0], step.argument(1, "dim", 0)
    return tuple(a for i, a in enumerate(axes) if i != dim % len(axes))


def _narrowed(step: Step) -> Axes:
    axes, shape = step.known[0]
    dim = step.argument(1, "dim", 0) % len(axes)
    start = int(step.argument(2, "start", 0))
    return tuple(cut(a, start, step.out[i], shape[i]) if i == dim else a for i, a in enumerate(axes))


def _stacked(step: Step) -> Axes:
    dim, out = step.argument(1, "dim", 0) % len(step.out), step.out
    inner = broadcast([n for i, n in enumerate(out) if i != dim], step.known)
    return (*inner[:dim], fresh(out[dim]), *inner[dim:])


def _unfolded(step: Step) -> Axes | None:
    """``x.unfold(dim, size, step)``: stretches of one dimension, what is in each of them last."""
    (axes, shape), out = step.known[0], step.out
    if len(shape) == 4 and len(out) == 3:  # patches of a picture (`F.unfold`)
        names = ("kernel_size", "dilation", "padding", "stride")
        given = [
            step.argument(1 + i, name, default)
            for i, (name, default) in enumerate(zip(names, (1, 1, 0, 1), strict=True))
        ]
        pairs = zip(shape[2:], *((n, n) if isinstance(n, int) else n for n in given), strict=True)
        rows, columns = ((n + 2 * pad - wide * (kernel - 1) - 1) // by + 1 for n, kernel, wide, pad, by in pairs)
        return axes[0], fresh(out[1]), (*cells(axes[2], rows), *cells(axes[3], columns))
    if len(out) != len(shape) + 1:
        return None
    dim = step.argument(1, "dimension", 0) % len(axes)
    return (*(fresh(out[i]) if i == dim else a for i, a in enumerate(axes)), fresh(out[-1]))


def _repeated(step: Step) -> Axes | None:
    (axes, shape), out = step.known[0], step.out
    if len(out) != len(shape):
        return _elementwise(step)
    return tuple(a if n == m else (*a, Axis(n // m)) for a, n, m in zip(axes, out, shape, strict=True))


def _cat(step: Step) -> Axes:
    out, dim = step.out, step.argument(1, "dim", 0) % len(step.out)
    known = [(axes, shape) for axes, shape in step.known if len(shape) == len(out)]
    parts = [Part(axes[dim] or None, 0, shape[dim]) for axes, shape in known if shape[dim]]
    rest = broadcast(out, known)
    if len(parts) == 1:  # beside something empty (a cache not yet filled)
        return rest
    whole = _rejoined(parts) or _reordered(parts)
    if whole is None:
        whole = _concatenated(parts)
    return (*rest[:dim], whole, *rest[dim + 1 :])


def _written(step: Step) -> Axes | None:
    """``x[:, a:b] = y``: the axis of ``x`` with a slice of another one in it; the whole, where that is complete."""
    (axes, shape), (value, lengths) = step.known[0], step.known[-1]
    items = step.args[1] if isinstance(step.args[1], tuple) else (step.args[1],)
    if len(value) != len(axes) or not all(isinstance(i, slice) and i.step in (None, 1) for i in items):
        return _elementwise(step)
    places = [range(*item.indices(n)) for item, n in zip(items, shape, strict=False)]
    cuts = [d for d, place in enumerate(places) if len(place) != shape[d]]
    if len(cuts) != 1 or lengths[cuts[0]] != len(places[cuts[0]]):
        return _elementwise(step)
    (d,) = cuts
    old = axes[d][0].parts if len(axes[d]) == 1 and axes[d][0].parts else (Part(axes[d] or None, 0, shape[d]),)
    place = places[d]
    parts = [*_slices(old, 0, place.start), Part(value[d] or None, 0, len(place))]
    parts += _slices(old, place.stop, shape[d])
    return (*axes[:d], _rejoined(parts) or _concatenated(parts), *axes[d + 1 :])


def _slices(parts: Sequence[Part], start: int, stop: int) -> list[Part]:
    """What lies between two places of some parts side by side."""
    out = []
    at = 0
    for part in parts:
        low, high = max(start, at), min(stop, at + part.length)
        if low < high:
            whole = high - low == part.length
            source = (
                part.source if whole or part.source is None else cut(part.source, low - at, high - low, part.length)
            )
            out.append(part if whole else Part(source or None, 0, high - low))
        at += part.length
    return out


def _padded(step: Step) -> Axes | None:
    """``F.pad``: entries of a dimension with constants before or behind them."""
    (axes, shape), out = step.known[0], step.out
    sizes = list(step.argument(1, "pad", ()))
    if len(out) != len(shape) or any(n < 0 for n in sizes):
        return None
    found = list(axes)
    for back in range(len(sizes) // 2):
        d = len(shape) - 1 - back
        before, after = sizes[2 * back : 2 * back + 2]
        parts = [Part(None, 0, before), Part(axes[d] or None, 0, shape[d]), Part(None, 0, after)]
        if before or after:
            found[d] = _concatenated([part for part in parts if part.length])
    return tuple(found)


def _fits(shape: Sequence[int], known: Sequence[Known]) -> bool:
    """Whether an output's shape is that of its inputs, broadcast."""
    for _, other in known:
        if len(other) > len(shape) or any(n not in (1, m) for n, m in zip(other[::-1], shape[::-1], strict=False)):
            return False
    return True


def _split(
    name: str,
    axes: Axes,
    shape: Sequence[int],
    shapes: Sequence[Sequence[int]],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> list[Axes]:
    position = 1 if name == "unbind" else 2
    dim = _argument(args, kwargs, position, "dim", 0) % len(axes)
    if name == "unbind":
        return [tuple(a for i, a in enumerate(axes) if i != dim)] * len(shapes)
    out = []
    start = 0
    for s in shapes:
        out.append(tuple(cut(a, start, s[i], shape[i]) if i == dim else a for i, a in enumerate(axes)))
        start += s[dim]
    return out


def _rejoined(parts: Sequence[Part]) -> Dim | None:
    """The dimension that was cut, if its stretches lie side by side again (a rotation of patches, [CLS] left out)."""
    cuts = [p.source[0].parts[0] if p.source and len(p.source[0].parts) == 1 else None for p in parts]
    source = next((one.source for one in cuts if one is not None), None) or ()
    at = 0
    for part, one in zip(parts, cuts, strict=True):
        same = one is not None and one.source == source and one.start == at
        single = part.source is None and part.length == 1  # of which nothing is known
        if not same and not single and cut(source, at, part.length, size_of(source)) != part.source:
            return None
        at += part.length
    return source if source and at == size_of(source) else None


def _reordered(parts: Sequence[Part]) -> Dim | None:
    """The axis that slices were cut from, where they are put together in another order; or parts that are ordered."""
    orders = [None if part.source is None else order_of(part.source) for part in parts]
    if any(order is not None for order in orders):
        plain_parts = [
            part if order is None else Part(order.source, 0, part.length)
            for part, order in zip(parts, orders, strict=True)
        ]
        starts = [sum(part.length for part in parts[:i]) for i in range(len(parts))]
        each = [
            start + (torch.arange(part.length) if order is None else order.places)
            for part, order, start in zip(parts, orders, starts, strict=True)
        ]
        samples = torch.broadcast_shapes(*(index.shape[:-1] for index in each))
        return ordered(_concatenated(plain_parts), torch.cat([i.expand(*samples, -1) for i in each], -1))
    slices = [part.source[0].parts if part.source and len(part.source) == 1 else () for part in parts]
    if any(len(own) != 1 for own in slices) or len({own[0].source for own in slices}) != 1:
        return None
    source = slices[0][0].source
    index = torch.cat([torch.arange(own[0].start, own[0].start + own[0].length) for own in slices])
    return None if source is None or len(index) != size_of(source) else ordered(source, index)


def _concatenated(parts: Sequence[Part]) -> Dim:
    """The axis of some parts side by side: the same one, if they were put together before."""
    made = Axis(sum(part.length for part in parts), tuple(parts))
    atom = next((p.source[0] for p in parts if p.source), made)
    found = next((old for old in atom.joined if old.parts == made.parts), None)
    if found is None:
        atom.joined.append(made)
    return (found or made,)


#: where axes go, by the rule that the table of operations names; without one they stay where they are, broadcast
_RULES: dict[str, Callable[[Step], Axes | None]] = {
    "": _elementwise,
    "reduced": _reduced,
    "expanded": _expanded,
    "permuted": _permuted,
    "reshaped": lambda step: reshape(step.known[0][0], step.out),
    "indexed": lambda step: _getitem(*step.known[0], step.args[1], step.batch),
    "product": lambda step: _matmul(step.out, step.known),
    "sum_of_product": lambda step: _matmul(step.out, step.known[1:]),
    "einsum": lambda step: einsum_axes.follow(step.args[0], step.known),
    "linear": _linear,
    "attended": lambda step: (*step.known[0][0][:-1], step.known[2][0][-1]),
    "convolved": _convolved,
    "selected": _selected,
    "narrowed": _narrowed,
    "joined": _cat,
    "as_complex": lambda step: step.known[0][0][:-1],
    "as_real": lambda step: (*step.known[0][0], fresh(2)),
    "stacked": _stacked,
    "repeated": _repeated,
    "unfolded": _unfolded,
    "one_hot": lambda step: (*step.known[0][0], fresh(step.out[-1])),
    "written": _written,
    "padded": _padded,
}
