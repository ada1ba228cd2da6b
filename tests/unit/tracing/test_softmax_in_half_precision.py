"""Capped scores are not taken for plain ones where half precision hides the cap."""

import pytest

from tools.fuzz.case import case_of
from tools.fuzz.properties import explained, readied

CASES = [
    "method=res-lrp dtype=bfloat16 attend=matmul groups=2 window=2 places=learned cap=True biases=False",
    "method=lrp dtype=bfloat16 block=parallel attend=matmul window=2 cap=True shared=True depth=2 scale=0.1 weights=21",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", CASES)
def test_which_operations_are_recognised_does_not_depend_on_the_input(words):
    case = case_of(words.split())
    model = readied(case.model(), case)
    one, other = (explained(case, model, inputs=case.inputs(other=choice)).coverage for choice in (False, True))
    assert one.seen == other.seen
    assert one.seen["tanh"] >= 1
