"""Operations of a program are called as methods or functions of torch, and return what the operations return."""

import pytest
import torch

from whence.capture.bindings import called

X = torch.arange(24.0).reshape(2, 3, 4)
aten = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "name"),
    [
        (aten.add.Tensor, (X, X), {"alpha": 2}, "add"),
        (aten.view.default, (X, [6, 4]), {}, "view"),
        (aten.view.default, (X[0, 0, 0], []), {}, "view"),
        (aten._unsafe_view.default, (X, [6, 4]), {}, "view"),
        (aten.expand.default, (X[:1], [5, 3, 4]), {}, "expand"),
        (aten.sum.dim_IntList, (X, [1]), {}, "sum"),
        (aten.sum.dim_IntList, (X, [0, 2], True), {}, "sum"),
        (aten.sum.default, (X,), {"dtype": torch.float64}, "sum"),
        (aten.transpose.int, (X, 0, 1), {}, "transpose"),
        (aten.new_zeros.default, (X, [2]), {}, "new_zeros"),
    ],
)
def test_a_method_is_called_where_there_is_one(func, args, kwargs, name):
    found, given = called(func, args, kwargs)
    assert found == name
    assert torch.equal(getattr(given[0], name)(*given[1:], **kwargs), func(*args, **kwargs))


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.native_layer_norm.default, (X, [4], None, None, 1e-5), {}),
        (aten.gelu.default, (X,), {}),
        (aten.cat.default, ([X, X],), {}),
        (aten.gelu_backward.default, (X, X), {}),
    ],
)
def test_a_function_is_called_where_there_is_no_method(func, args, kwargs):
    found, given = called(func, args, kwargs)
    assert not isinstance(found, str)
    for one, other in zip(found(*given, **kwargs), func(*args, **kwargs), strict=True):
        assert torch.equal(one, other)


def test_a_result_that_is_written_to_a_given_tensor_needs_a_function():
    assert called(aten.div.out, (X, X), {"out": torch.empty_like(X)})[0] is torch.div


def test_an_index_of_some_dimensions_needs_the_operation():
    index = [None, torch.tensor([0, 0])]
    assert called(aten.index_put.default, (X, index, torch.ones(2), True), {})[0] is aten.index_put.default


def test_other_functions_stay_as_they_are():
    assert called(torch.matmul, (X, X), {}) == (torch.matmul, (X, X))
