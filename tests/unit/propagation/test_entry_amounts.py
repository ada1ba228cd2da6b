"""Amounts of the ledger are added up at once: the same sums as one by one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from whence.propagation.entry_amounts import EntryAmounts, EntryKey


def test_amounts_of_one_operation_and_kind_are_added_with_their_signs():
    found = EntryAmounts()
    found.add(7, "late", {"bias": 1.0}, torch.tensor([1.0, 2.0]))
    found.add(3, "early", {"norm": 1.0}, torch.tensor([10.0, 20.0]))
    found.add(7, "late", {"bias": -0.5, "norm": 2.0}, torch.tensor([4.0, 6.0]))
    operations, amounts = found.added(lambda operation: True)
    assert operations == [EntryKey(3, "norm", "early"), EntryKey(7, "bias", "late"), EntryKey(7, "norm", "late")]
    assert amounts.tolist() == [[10.0, 20.0], [-1.0, -1.0], [8.0, 12.0]]


def test_operations_that_are_not_wanted_are_left_out():
    found = EntryAmounts()
    found.add(1, "first", {"bias": 1.0}, torch.tensor([1.0]))
    found.add(2, "second", {"bias": 1.0}, torch.tensor([2.0]))
    operations, amounts = found.added(lambda operation: operation.seq > 1)
    assert operations == [EntryKey(2, "bias", "second")]
    assert amounts.tolist() == [[2.0]]
    assert found.added(lambda operation: False) == ([], None)


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), batch=st.integers(1, 3), seed=st.integers(0, 99))
def test_products_are_those_computed_one_by_one(sizes, batch, seed):
    torch.manual_seed(seed)
    pairs = [(torch.randn(batch, n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)) for n in sizes]
    found = EntryAmounts()
    for seq, (rows, vector) in enumerate(pairs):
        found.add_product(seq, "layer", {"bias": 1.0}, rows, vector)
    _, amounts = found.added(lambda operation: True)
    torch.testing.assert_close(amounts, torch.stack([rows @ vector for rows, vector in pairs]))


def test_amounts_of_different_precision_become_the_finer_one():
    found = EntryAmounts()
    found.add(1, "a", {"bias": 1.0}, torch.tensor([1.0]))
    found.add(2, "b", {"bias": 1.0}, torch.tensor([1e-12], dtype=torch.float64))
    _, amounts = found.added(lambda operation: True)
    assert amounts.dtype == torch.float64
    assert amounts.tolist() == [[1.0], [1e-12]]


def test_amounts_that_were_added_up_before_join_the_others():
    found = EntryAmounts()
    found.add_table([EntryKey(1, "bias", "a"), EntryKey(2, "norm", "b")], torch.tensor([[1.0], [2.0]]))
    found.add(2, "b", {"norm": 1.0}, torch.tensor([5.0]))
    assert found.added(lambda operation: True)[1].tolist() == [[1.0], [7.0]]
