"""Amounts of relevance that operations absorbed or created, added up for all operations at once.

A backward pass records some hundred amounts, each one number per sample. Added up one after the other, they would take
more kernels than the backward pass of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..capture.tape import repeated


class EntryKey(NamedTuple):
    """An operation that absorbed relevance, and the kind of that loss: there is one entry for each."""

    seq: int
    kind: str
    name: str


class _Shares(NamedTuple):
    """Where an amount is entered: by kind, how many times it counts there."""

    seq: int
    name: str
    times: Mapping[str, float]


class EntryAmounts:
    """Collects amounts while a backward pass runs."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str], str] = {}  # of operations, by ``seq`` and kind
        self._amounts: list[tuple[_Shares, Tensor]] = []
        self._products: list[tuple[_Shares, Tensor, Tensor]] = []
        self._tables: list[tuple[list[_Shares], Tensor]] = []

    def add(self, seq: int, name: str, times: Mapping[str, float], amount: Tensor) -> None:
        """Add an amount ``[batch]`` to the entries of an operation.

        Args:
            seq: the operation.
            name: its name.
            times: by kind of loss, how many times the amount counts.
            amount: the amount.
        """
        self._amounts.append((self._shares(seq, name, times), amount))

    def add_product(self, seq: int, name: str, times: Mapping[str, float], rows: Tensor, vector: Tensor) -> None:
        """Add the product of ``[batch, features]`` and ``[features]``; all products are computed together."""
        self._products.append((self._shares(seq, name, times), rows, vector))

    def add_table(self, operations: Sequence[EntryKey], amounts: Tensor) -> None:
        """Add amounts that were added up before, ``[entries, batch]``."""
        self._tables.append(([self._shares(seq, name, {kind: 1.0}) for seq, kind, name in operations], amounts))

    def _shares(self, seq: int, name: str, times: Mapping[str, float]) -> _Shares:
        for kind in times:
            self._names.setdefault((seq, kind), name)
        return _Shares(seq, name, times)

    def added(self, wanted: Callable[[EntryKey], bool]) -> tuple[list[EntryKey], Tensor | None]:
        """Return the operations that are wanted, in their order, and what each absorbed, ``[entries, batch]``."""
        found = [EntryKey(seq, kind, name) for (seq, kind), name in self._names.items()]
        operations = sorted(filter(wanted, found), key=lambda operation: operation.seq)
        if not operations:
            return [], None
        places = {(operation.seq, operation.kind): i for i, operation in enumerate(operations)}
        shares, amounts = self._all()
        entered = [
            (places[one.seq, kind], row, times)
            for row, one in enumerate(shares)
            for kind, times in one.times.items()
            if (one.seq, kind) in places
        ]
        into, rows, factors = zip(*entered, strict=True)
        device = amounts.device
        chosen = amounts[torch.tensor(rows, device=device)] * torch.tensor(factors, device=device).to(amounts)[:, None]
        empty = torch.zeros(len(operations), amounts.shape[1], dtype=amounts.dtype, device=device)
        return operations, empty.index_add(0, torch.tensor(into, device=device), chosen)

    def _all(self) -> tuple[list[_Shares], Tensor]:
        """Return where each amount is entered, and all amounts, ``[amounts, batch]``."""
        shares = [one for one, _ in self._amounts]
        tables = [torch.stack(_together([amount for _, amount in self._amounts]))] if shares else []
        for own, table in self._tables:
            shares += own
            tables.append(table)
        alike: dict[tuple[int, torch.dtype], list[tuple[_Shares, Tensor, Tensor]]] = {}
        for product in self._products:
            alike.setdefault((len(product[2]), product[1].dtype), []).append(product)
        for products in alike.values():
            shares += [one for one, _, _ in products]
            rows = torch.stack(_together([p[1] for p in products]))
            with repeated():
                vectors = torch.stack(_together([p[2] for p in products]))
            tables.append((rows * vectors[:, None]).sum(-1))
        return shares, torch.cat(_together(tables))


def _together(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors on the device of the first one: a model may be spread over several."""
    device = tensors[0].device
    return tensors if device.type == "cpu" else [t.to(device) for t in tensors]
