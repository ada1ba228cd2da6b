"""Two functions have the same key only if they compute the same."""

import functools

import torch

from whence.capture.function_key import function_key

CLASS = 1


def read(outputs):
    return outputs[:, CLASS]


def test_a_function_has_the_same_key_each_time():
    assert function_key(read) is not None
    assert function_key(read) == function_key(read)


def test_another_number_in_the_closure_is_another_key():
    def target(i):
        return lambda outputs: outputs[:, i]

    assert function_key(target(1)) == function_key(target(1)) != function_key(target(2))


def test_another_default_is_another_key():
    keys = [function_key(lambda outputs, i=i: outputs[:, i]) for i in (1, 1, 2)]
    assert keys[0] == keys[1] != keys[2]


def test_a_global_that_changes_is_another_key(monkeypatch):
    before = function_key(read)
    monkeypatch.setitem(globals(), "CLASS", 2)
    assert function_key(read) != before


def test_functions_that_it_calls_count():
    def inner(i):
        return lambda x: x[:, i]

    keys = [function_key(lambda outputs, f=f: f(outputs)) for f in map(inner, (1, 1, 2))]
    assert keys[0] == keys[1] != keys[2]


def test_a_tensor_is_compared_by_identity():
    a, b = torch.ones(2), torch.ones(2)
    keys = [function_key(lambda outputs, w=w: outputs @ w) for w in (a, a, b)]
    assert keys[0] == keys[1] != keys[2]


def test_what_may_change_without_notice_has_no_key():
    chosen = [1]
    assert function_key(lambda outputs: outputs[:, chosen[0]]) is None
    assert function_key(functools.partial(read)) is None
