"""Spellings of the token embedding, of added positions and of a leading class token."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

Lookup = Callable[[Tensor, Tensor], Tensor]
Join = Callable[[Tensor, Tensor], Tensor]


def gathered(ids: Tensor, table: Tensor) -> Tensor:
    index = ids.flatten()[:, None].expand(-1, table.shape[1])
    return table.gather(0, index).unflatten(0, ids.shape)


def by_bag(ids: Tensor, table: Tensor) -> Tensor:
    return F.embedding_bag(ids.reshape(-1, 1), table, mode="sum").unflatten(0, ids.shape)


#: ``(ids, table [vocabulary, width]) -> [batch, tokens, width]``
EMBEDDINGS: dict[str, dict[str, Lookup]] = {
    "table": {
        "usual": lambda ids, table: F.embedding(ids, table),
        "keywords": lambda ids, table: F.embedding(input=ids, weight=table),
        "index": lambda ids, table: table[ids],
        "index-select": lambda ids, table: table.index_select(0, ids.flatten()).view(*ids.shape, -1),
        "gather": gathered,
        "one-hot": lambda ids, table: F.one_hot(ids, len(table)).to(table.dtype) @ table,
        "one-hot-linear": lambda ids, table: F.linear(F.one_hot(ids, len(table)).to(table.dtype), table.t()),
        "bag": by_bag,
        "flat": lambda ids, table: F.embedding(ids.reshape(-1), table).view(*ids.shape, -1),
        "tokens-first": lambda ids, table: F.embedding(ids.t(), table).transpose(0, 1),
        "by-token": lambda ids, table: torch.stack([F.embedding(t, table) for t in ids.unbind(1)], 1),
        "split": lambda ids, table: torch.cat([F.embedding(ids, part) for part in table.chunk(2, 1)], -1),
    }
}


def in_place(x: Tensor, p: Tensor) -> Tensor:
    x = x.clone()
    x += p
    return x


#: ``(tokens, positions [tokens, width]) -> tokens``
POSITIONS: dict[str, dict[str, Join]] = {
    "sum": {
        "usual": lambda x, p: x + p,
        "commuted": lambda x, p: p + x,
        "alpha": lambda x, p: torch.add(x, p, alpha=1),
        "embedding": lambda x, p: x + F.embedding(torch.arange(x.shape[1]), p),
        "embedding-by-sample": lambda x, p: x + F.embedding(torch.arange(x.shape[1]).expand(x.shape[:2]), p),
        "slice": lambda x, p: x + p[None, : x.shape[1]],
        "index-select": lambda x, p: x + p.index_select(0, torch.arange(x.shape[1])),
        "expand": lambda x, p: x + p.unsqueeze(0).expand(len(x), -1, -1),
        "repeat": lambda x, p: p.repeat(len(x), 1, 1) + x,
        "in-place": in_place,
        "stack": lambda x, p: torch.stack([x, p.expand_as(x)]).sum(0),
        "tokens-first": lambda x, p: (x.transpose(0, 1) + p.unsqueeze(1)).transpose(0, 1),
        "negated": lambda x, p: x - (-p),
        "scaled": lambda x, p: (2 * x + 2 * p) / 2,
        "by-token": lambda x, p: torch.stack([x[:, i] + p[i] for i in range(x.shape[1])], 1),
    }
}


def padded(x: Tensor, token: Tensor) -> Tensor:
    first = F.pad(token[None, None], (0, 0, 0, x.shape[1]))
    return F.pad(x, (0, 0, 1, 0)) + first


def written(x: Tensor, token: Tensor) -> Tensor:
    out = x.new_empty(len(x), x.shape[1] + 1, x.shape[2])
    out[:, 0], out[:, 1:] = token, x
    return out


#: ``(tokens, class token [width]) -> [batch, 1 + tokens, width]``
CLASS_TOKENS: dict[str, dict[str, Join]] = {
    "leading": {
        "usual": lambda x, token: torch.cat([token.expand(len(x), 1, -1), x], 1),
        "repeat": lambda x, token: torch.cat((token.repeat(len(x), 1, 1), x), dim=1),
        "concat": lambda x, token: torch.concat([token.view(1, 1, -1).expand(len(x), -1, -1), x], dim=1),
        "hstack": lambda x, token: torch.hstack([token.expand(len(x), 1, -1), x]),
        "tokens-first": lambda x, token: torch.cat([token.expand(1, len(x), -1), x.transpose(0, 1)]).transpose(0, 1),
        "stack": lambda x, token: torch.stack([token.expand(len(x), -1), *x.unbind(1)], 1),
        "by-sample": lambda x, token: torch.stack([torch.cat([token[None], s]) for s in x]),
        "padded": padded,
        "written": written,
        "added-to-zeros": lambda x, token: torch.cat([x.new_zeros(len(x), 1, x.shape[2]) + token, x], 1),
    }
}
