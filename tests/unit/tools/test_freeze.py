"""Hashes of explanations: the same for the same numbers, another for any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

import whence
from tests.support import tiny
from tools.freeze.__main__ import changes
from tools.freeze.digest import digest


@pytest.fixture(scope="module")
def explanation():
    return whence.explain(tiny.bert(), {"input_ids": tiny.ids(1)}, "conservative-lrp", 0)


def test_the_same_numbers_have_the_same_hash(explanation):
    again = whence.explain(tiny.bert(), {"input_ids": tiny.ids(1)}, "conservative-lrp", 0)
    assert digest(again) == digest(explanation)


@pytest.mark.parametrize("field", ["scores", "logits", "value", "layers", "heads"])
def test_the_last_bit_of_any_field_changes_the_hash(explanation, field):
    moved = getattr(explanation, field).clone()
    moved.view(-1)[0] *= 1 + 2e-7
    assert digest(replace(explanation, **{field: moved})) != digest(explanation)


def test_an_entry_of_the_ledger_changes_the_hash(explanation):
    record = explanation.ledger.record()
    record["entries"][0]["amount"] = record["entries"][0]["amount"] + 1e-6 * record["total"]
    assert digest(replace(explanation, ledger=type(explanation.ledger).of(record))) != digest(explanation)


def test_what_differs_is_new_or_gone_is_named():
    before = {"bert": {"lrp": "a", "rollout": "b", "dave": "c"}}
    now = {"bert": {"lrp": "a", "rollout": "x", "lime": "d"}}
    assert changes(before, now) == [
        "bert: dave: c before, absent now",
        "bert: lime: absent before, d now",
        "bert: rollout: b before, x now",
    ]
