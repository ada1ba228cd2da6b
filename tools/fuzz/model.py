"""A model from an architecture: what is built is an ordinary ``nn.Module`` that knows nothing of Whence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tools.fuzz.grammar import CLASSES, PATCH, VOCABULARY, WIDTH, Architecture
from tools.fuzz.parts import Attention, Mlp, Norm

LONGEST = 24


def inside_windows(a: Architecture, x: Tensor, shift: int, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Tokens cut into windows that are rows of a larger batch, and put together again; shifted by half of one."""
    axis, by = (1 if a.layout == "batch-first" else 0), shift * (a.window // 2)
    inside, back = _windows(a, x.roll(-by, axis) if by else x)
    out = back(run(inside))
    return out.roll(by, axis) if by else out


def _windows(a: Architecture, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    size = a.window
    if a.layout != "batch-first":
        count = len(x) // size
        inside = x.unflatten(0, (count, size)).permute(1, 2, 0, 3).flatten(1, 2)
        return inside, lambda y: y.unflatten(1, (-1, count)).permute(2, 0, 1, 3).flatten(0, 1)
    count = x.shape[1] // size
    if a.reads != "pixels" or size != 4:
        return x.unflatten(1, (count, size)).flatten(0, 1), lambda y: y.unflatten(0, (-1, count)).flatten(1, 2)
    side = int(x.shape[1] ** 0.5)  # a picture: squares of two by two
    grid = x.view(len(x), side // 2, 2, side // 2, 2, -1).permute(0, 1, 3, 2, 4, 5)
    return grid.reshape(
        -1, 4, x.shape[-1]
    ), lambda y: y.view(-1, side // 2, side // 2, 2, 2, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, side * side, WIDTH)


class Block(nn.Module):
    """Attention, perhaps attention to another stream, and an MLP, around a stream of tokens."""

    def __init__(self, a: Architecture, cross: bool = False) -> None:
        super().__init__()
        self.a = a
        self.branches = nn.ModuleList([Attention(a), *([Attention(a)] if cross else []), Mlp(a)])
        if a.mlp == "none":
            self.branches = self.branches[:-1]
        count = len(self.branches) * (2 if a.norm == "sandwich" else 1)
        self.norms = nn.ModuleList(Norm(a) for _ in range(count if a.norm != "none" else 0))
        scales = len(self.branches) if a.layer_scale else 0
        self.scales = nn.ParameterList(nn.Parameter(torch.empty(WIDTH)) for _ in range(scales))

    def forward(
        self, x: Tensor, own: Any, other: Tensor | None = None, across: Any = None, shift: int | None = None
    ) -> Tensor:
        """A stream ``x``, with what its attention needs; perhaps another stream, with what attention to it needs."""
        if self.a.block == "parallel":
            entered = self.norms[0](x) if self.a.norm in ("pre", "sandwich") else x
            x = x + sum(self._branch(i, entered, own, other, across, shift) for i in range(len(self.branches)))
            return self.norms[0](x) if self.a.norm == "post" else x
        for i in range(len(self.branches)):
            entered = self.norms[i](x) if self.a.norm in ("pre", "sandwich") else x
            x = x + self._branch(i, entered, own, other, across, shift)
            x = self.norms[i](x) if self.a.norm == "post" else x
        return x

    def _branch(self, i: int, x: Tensor, own: Any, other: Tensor | None, across: Any, shift: int | None) -> Tensor:
        branch = self.branches[i]
        if isinstance(branch, Mlp):
            x = branch(x)
        elif i:
            x = branch(x, other, *across)
        elif self.a.window and shift is not None:
            x = inside_windows(self.a, x, shift, lambda inside: branch(inside, inside, *own))
        else:
            x = branch(x, x, *own)
        x = self.norms[len(self.branches) + i](x) if self.a.norm == "sandwich" else x
        return x * self.scales[i] if self.a.layer_scale else x


class Entrance(nn.Module):
    """What the model is given as ``[batch, tokens, features]``."""

    def __init__(self, a: Architecture, reads: str) -> None:
        super().__init__()
        self.a, self.reads = a, reads
        if reads == "ids":
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
        elif reads == "floats":
            self.project = nn.Linear(6, WIDTH, a.biases)
        else:
            self.cut = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=a.biases)
        if a.places == "learned":
            self.places = nn.Embedding(LONGEST, WIDTH)
        extra = (a.pool == "class") + a.registers
        self.extra = nn.Parameter(torch.empty(1, extra, WIDTH)) if extra else None

    def forward(self, given: Tensor, places: Tensor) -> Tensor:
        """Embedded, with positions, class token and registers."""
        if self.reads == "ids":
            x = self.embed(given)
        elif self.reads == "floats":
            x = self.project(given)
        else:
            x = self.cut(given).flatten(2).transpose(1, 2)
        if self.a.places == "learned":
            x = x + self.places(places)
        elif self.a.places == "waves":
            angles = places[..., None].to(x.dtype) * 10.0 ** -torch.arange(WIDTH // 2, dtype=x.dtype)
            x = x + torch.cat([angles.sin(), angles.cos()], -1)
        return x if self.extra is None else torch.cat([self.extra.expand(len(x), -1, -1), x], 1)


@dataclass(frozen=True)
class Stream:
    """Tokens, and what attention among them needs.

    Attributes:
        x: ``[batch, tokens, width]``, or tokens first.
        keep: ``[batch or 1, queries, keys]``, true for what is seen; ``None``: all is.
        places: ``[batch or 1, tokens]``.
        real: ``[batch, tokens]``, 0 at padding.
    """

    x: Tensor
    keep: Tensor | None
    places: Tensor
    real: Tensor | None

    @property
    def own(self) -> tuple[Any, ...]:
        """For attention of the stream to itself."""
        return self.keep, (self.places, self.places)


class Model(nn.Module):
    """A Transformer as its architecture says; weights are those of its seed."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.a = a
        self.entrance = Entrance(a, a.reads)
        two = a.streams == "two"
        count = 1 if a.shared else a.depth
        self.blocks = nn.ModuleList(Block(a, cross=two) for _ in range(count))
        if a.streams != "one":
            self.second = Entrance(a, "pixels" if two else "ids")
            self.others = nn.ModuleList(Block(a, cross=True) for _ in range(count))
        if a.head == "norm":
            self.last = Norm(a)
        elif a.head == "tanh":
            self.pooler = nn.Linear(WIDTH, WIDTH, a.biases)
        if not a.tied:
            self.head = nn.Linear(WIDTH, CLASSES, a.biases)
        self._fill()

    def _fill(self) -> None:
        draw = torch.Generator().manual_seed(self.a.weights)
        for name, p in self.named_parameters():
            noise = torch.randn(p.shape, generator=draw)
            around = 1.0 if p.dim() == 1 and name.endswith("weight") else 0.5 if ".scales." in name else 0.0
            p.data = around + noise * (self.a.scale if p.dim() > 1 else 0.2)

    def forward(
        self,
        input_ids: Tensor | None = None,
        values: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Any:
        """Logits ``[batch, classes]``, or of every token, as the architecture returns them."""
        a = self.a
        given = {"ids": input_ids, "floats": values, "pixels": pixel_values}[a.reads]
        assert given is not None
        first = self._entered(self.entrance, given, position_ids, attention_mask, a.causal and a.streams == "one")
        if a.streams == "one":
            x = first.x
            for i in range(a.depth):
                x = self._block(self.blocks[self._at(i)], replace(first, x=x), shift=i % 2)
            return self._answer(replace(first, x=x))
        beside = pixel_values if a.streams == "two" else decoder_input_ids
        assert beside is not None
        second = self._entered(self.second, beside, None, None, a.streams == "encoder-decoder")
        return self._answer(self._two(first, second))

    def _at(self, i: int) -> int:
        return 0 if self.a.shared else i

    def _entered(
        self, entrance: Entrance, given: Tensor, places: Tensor | None, real: Tensor | None, causal: bool
    ) -> Stream:
        count = given.shape[1] if given.dim() < 4 else (given.shape[2] // PATCH) * (given.shape[3] // PATCH)
        at = torch.arange(count)[None] if places is None else places
        x = entrance(given, at)
        extra = x.shape[1] - count
        at = torch.cat([at.new_zeros(len(at), extra), at], 1)
        keep = torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool).tril() if causal else None
        if real is not None:
            real = torch.cat([real.new_ones(len(real), extra), real], 1)
            seen = real[:, None].bool().expand(-1, x.shape[1], -1)
            keep = seen if keep is None else keep & seen | torch.eye(x.shape[1], dtype=torch.bool)
        return Stream(x if self.a.layout == "batch-first" else x.transpose(0, 1), keep, at, real)

    def _two(self, first: Stream, second: Stream) -> Stream:
        """The stream from which the answer is read."""
        a, x, y = self.a, first.x, second.x
        seen = None
        if first.real is not None:  # padding of the first stream is not seen from the second
            seen = first.real[:, None].bool().expand(-1, second.places.shape[1], -1)
        to_x, to_y = (seen, (second.places, first.places)), (None, (first.places, second.places))
        if a.streams == "encoder-decoder":
            for i in range(a.depth):
                x = self.blocks[self._at(i)](x, first.own)
            for i in range(a.depth):
                y = self.others[self._at(i)](y, second.own, x, to_x)
            return replace(second, x=y)
        for i in range(a.depth):
            mine, theirs = self.blocks[self._at(i)], self.others[self._at(i)]
            x, y = mine(x, first.own, y, to_y), theirs(y, second.own, x, to_x)
        return replace(first, x=x)

    def _block(self, block: nn.Module, stream: Stream, shift: int) -> Tensor:
        """A block, perhaps inside windows."""
        if not self.a.window or self.a.windowed == "attention":
            return block(stream.x, stream.own, shift=shift)
        return inside_windows(self.a, stream.x, shift, lambda x: block(x, stream.own))

    def _answer(self, stream: Stream) -> Any:
        a = self.a
        x = stream.x if a.layout == "batch-first" else stream.x.transpose(0, 1)
        x = self.last(x) if a.head == "norm" else x
        pooled = self._pooled(x, stream.real)
        if a.head == "tanh":
            pooled = torch.tanh(self.pooler(pooled))
        logits = pooled @ self.entrance.embed.weight.T if a.tied else self.head(pooled)
        if a.answers == "tuple":
            return logits, x
        if a.answers == "dict":
            return {"logits": logits, "hidden": x}
        return SimpleNamespace(logits=logits) if a.answers == "object" else logits

    def _pooled(self, x: Tensor, real: Tensor | None) -> Tensor:
        pool, rows = self.a.pool, torch.arange(len(x))
        if pool == "every":
            return x
        if pool == "class" or (pool == "first" and real is None):
            return x[:, 0]
        if pool == "first":
            return x[rows, real.argmax(1)]  # type: ignore[union-attr]  # None was answered above
        if pool == "last":
            return x[:, -1] if real is None else x[rows, (real * torch.arange(real.shape[1])).argmax(1)]
        if real is None:
            return x.mean(1)
        weights = real[..., None].to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1)
