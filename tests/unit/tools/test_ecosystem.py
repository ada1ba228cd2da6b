"""How a model as it is loaded is compared with the plain one, and when the comparison fails."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import whence
from tools.ecosystem.__main__ import CASES, lost, page
from tools.ecosystem.case import Case, Pair
from tools.ecosystem.compare import ABSENT, CLOSE, DIFFERENT, EQUAL, NEITHER, REFUSED, Outcome, compared, outcomes

WANTED = np.array([1.0, -2.0, 0.5, 0.1])


def gives(*scores):
    return lambda method: SimpleNamespace(scores=torch.tensor(scores))


def fails(error):
    def explain(method):
        raise error

    return explain


def outcome(plain, loaded):
    return outcomes(Case("a model", "a package", lambda: Pair(plain, loaded)), ["lrp"])["lrp"].kind


def test_scores_are_equal_up_to_rounding_and_close_by_rank():
    assert compared(WANTED + 1e-5, WANTED, None).kind == EQUAL
    assert compared(WANTED + 1e-3, WANTED, None).kind == DIFFERENT
    assert compared(WANTED * 1.1, WANTED, 0.99) == Outcome(CLOSE, "1.000")
    assert compared(WANTED[::-1], WANTED, 0.99).kind == DIFFERENT
    assert compared(WANTED[:3], WANTED, 0.99).kind == DIFFERENT


@pytest.mark.parametrize(
    ("plain", "loaded", "kind"),
    [(gives(1.0), gives(1.0), EQUAL), (gives(1.0), fails(whence.ModelError("no")), REFUSED),
     (fails(whence.ModelError("no")), fails(whence.ModelError("no")), NEITHER),
     (fails(whence.ModelError("no")), gives(1.0), DIFFERENT), (gives(1.0), fails(TypeError("bare")), DIFFERENT),
     (gives(1.0), fails(whence.EngineError("a fault")), DIFFERENT)],
)  # fmt: skip
def test_a_refusal_is_a_sentence_and_a_crash_or_a_fault_is_a_failure(plain, loaded, kind):
    assert outcome(plain, loaded) == kind


def test_a_package_that_is_absent_is_no_success():
    assert outcomes(Case("a", "b", lambda: __import__("no_such_package")), ["lrp"])["lrp"].kind == ABSENT


def test_a_cell_that_was_good_and_is_not_is_lost():
    before = {"a": {"lrp": EQUAL, "attn-lrp": CLOSE, "rollout": EQUAL}}
    rows = {"a": {"lrp": Outcome(CLOSE, "0.99"), "attn-lrp": Outcome(EQUAL), "rollout": Outcome(REFUSED, "no")}}
    assert [line.split("`")[1] for line in lost(rows, before)] == ["lrp", "rollout"]


def test_the_page_names_each_case_and_each_reason():
    name = CASES[0].name
    text = page({name: {"lrp": Outcome(EQUAL), "rollout": Outcome(REFUSED, "It has no maps.")}})
    assert f"| {name} | {CASES[0].package} | 1 | - | `rollout` |" in text
    assert "- It has no maps." in text
