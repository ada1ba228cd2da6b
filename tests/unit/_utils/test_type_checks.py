"""Options of methods and numbers of things: what fits is taken, what does not is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch

from whence._utils.type_checks import fits, from_options, require_positive
from whence.errors import InputError, MethodError


@dataclass
class Several:
    one: int = 0
    part: float = 0.0
    yes: bool = False
    many: Sequence[int] = ()
    some: list[float] | None = None
    either: int | Sequence[int] | None = None
    pair: tuple[int, int] | None = None
    named: Mapping[str, int] | None = None
    call: Callable[[int], int] | None = None
    kind: Literal["a", "b"] = "a"
    anything: Any = None


@pytest.mark.parametrize("options", [
    {"one": np.int64(3)}, {"part": 2}, {"part": np.float32(0.5)}, {"yes": True}, {"many": [1, 2]}, {"many": (1,)},
    {"many": np.array([1])}, {"some": []}, {"some": None}, {"some": torch.ones(2)}, {"either": 3}, {"either": [3, 4]},
    {"either": None}, {"pair": (1, 2)}, {"pair": [1, 2]}, {"named": {"a": 1}}, {"call": len}, {"kind": "b"},
    {"anything": object()},
])  # fmt: skip
def test_what_fits_is_taken(options):
    ((name, value),) = options.items()
    assert getattr(from_options(Several, "method 'some'", options), name) is value


@pytest.mark.parametrize(("options", "said"), [
    ({"one": 1.0}, "'one' of the method 'some' takes int, not float (1.0)"), ({"one": True}, "takes int, not bool"),
    ({"part": "a"}, "takes float, not str"), ({"yes": 1}, "takes bool, not int"),
    ({"many": 3}, "takes Sequence[int], not int (3)"), ({"many": "12"}, "takes Sequence[int], not str ('12')"),
    ({"many": None}, "not NoneType"), ({"some": 1.5}, "takes list[float] | None, not float"),
    ({"either": "a"}, "takes int | Sequence[int] | None, not str"), ({"either": 1.5}, "not float"),
    ({"named": [1]}, "takes Mapping[str, int] | None, not list"), ({"call": 3}, "not int"),
    ({"two": 2}, "has no option 'two'"),
])  # fmt: skip
def test_what_does_not_fit_is_named(options, said):
    with pytest.raises(MethodError) as error:
        from_options(Several, "method 'some'", options)
    assert said in str(error.value)


def test_numbers_of_things_are_whole_and_at_least_one():
    require_positive(batch_size=1, budget=np.int64(500))
    for wrong in (0, -1, 2.0, "9", None, True):
        with pytest.raises(InputError, match=r"budget must be a whole number, at least 1, not"):
            require_positive(batch_size=1, budget=wrong)


@pytest.mark.parametrize(("value", "hint", "shallow", "deep"), [
    ((1, "2"), Sequence[int], True, False), ([1, 2], tuple[int, int], True, False), ([1, "2"], list[int], True, False),
    (np.int64(1), int, False, False), ({"a": "b"}, Mapping[str, int], True, False), (True, float, False, False),
    (Several(one=1), Several, True, True), (Several(one="1"), Several, True, False),
])  # fmt: skip
def test_contents_are_checked_if_wanted(value, hint, shallow, deep):
    assert fits(value, hint, contents=False) is shallow
    assert fits(value, hint) is deep
    assert fits(np.int64(1), int, numpy=True)
