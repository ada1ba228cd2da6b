"""Token positions through operations that move tokens: which token each position holds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import close
from whence.tracing.axes import order_of
from whence.tracing.tensor_info import node_of
from whence.tracing.tracer import Trace

X = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
ORDER = torch.tensor([3, 1, 5, 0, 2, 4])
OWN = torch.stack([ORDER, torch.tensor([5, 2, 1, 0, 4, 3])])  # one order for each sample
MATRIX = torch.eye(6, dtype=torch.float64)[ORDER]


def own(x):
    return OWN[: len(x), :, None].expand_as(x)


def written(x):
    y = torch.zeros_like(x)
    y[:, ORDER] = x
    return y


def sort_by_score(x):
    return x[torch.arange(len(x))[:, None], x[..., 0].argsort(1)]


REORDERINGS = {
    "flip": lambda x: x.flip(1),
    "fliplr": torch.fliplr,
    "roll": lambda x: x.roll(2, 1),
    "index": lambda x: x[:, ORDER],
    "list": lambda x: x[:, ORDER.tolist()],
    "index_select": lambda x: x.index_select(1, ORDER),
    "gather": lambda x: x.gather(1, ORDER[None, :, None].expand_as(x)),
    "gather of each sample": lambda x: x.gather(1, own(x)),
    "take_along_dim": lambda x: torch.take_along_dim(x, OWN[: len(x), :, None], 1),
    "scatter of each sample": lambda x: torch.zeros_like(x).scatter(1, own(x), x),
    "index_copy": lambda x: torch.zeros_like(x).index_copy(1, ORDER, x),
    "index_put": lambda x: torch.zeros_like(x).index_put((torch.arange(len(x))[:, None], ORDER[None]), x),
    "setitem": written,
    "sort": sort_by_score,
    "unbind and stack": lambda x: torch.stack([x.unbind(1)[i] for i in ORDER], 1),
    "slices": lambda x: torch.cat([x[:, 3:], x[:, :3]], 1),
    "every other": lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1),
    "split": lambda x: torch.cat(x.split(2, 1)[::-1], 1),
    "permutation matrix": lambda x: MATRIX @ x,
    "einsum": lambda x: torch.einsum("pn,bnd->bpd", MATRIX, x),
    "linear": lambda x: F.linear(x.mT, MATRIX).mT,
}


def held(x, y):
    """Which entry of ``x`` each position of ``y`` holds, by their values."""
    return (x[:, None] == y[:, :, None]).all(-1).long().argmax(-1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", REORDERINGS)
def test_the_order_of_an_axis_tells_which_token_each_position_holds(name, batch):
    with Trace({}, batch=batch) as trace:
        x = trace.input("x", X[:batch])
        y = REORDERINGS[name](x)
    order = order_of(node_of(y).axes[1])
    assert order.source == node_of(x).axes[1]
    assert torch.equal(order.places.expand(batch, -1), held(x.detach(), y.detach()))
    assert node_of(y).axes[0] == (trace.batch,)
    assert node_of(y).axes[2] == node_of(x).axes[2]
    assert node_of(y).token_axes == node_of(x).axes


def test_samples_in_one_order_share_it():
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        shared, separate = x.gather(1, ORDER[None, :, None].expand_as(x)), x.gather(1, own(x))
    assert order_of(node_of(shared).axes[1]).places.shape == (6,)
    assert order_of(node_of(separate).axes[1]).places.shape == (2, 6)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("there", "back"), [
    (lambda x: x.flip(1), lambda x: x.flip(1)),
    (lambda x: x.roll(2, 1), lambda x: x.roll(-2, 1)),
    (lambda x: x[:, ORDER], lambda x: x[:, ORDER.argsort()]),
    (lambda x: x.gather(1, own(x)), lambda x: torch.zeros_like(x).scatter(1, own(x), x)),
    (lambda x: MATRIX @ x, lambda x: MATRIX.T @ x),
])  # fmt: skip
def test_an_order_that_is_undone_gives_the_axis_back(there, back, batch):
    with Trace({}, batch=batch) as trace:
        x = trace.input("x", X[:batch])
        moved = there(x)
        y = back(moved * 2)
    assert node_of(moved).axes != node_of(x).axes
    assert torch.equal(y.detach(), 2 * X[:batch])
    assert node_of(y).axes == node_of(x).axes


def test_the_same_order_twice_is_the_same_axis():
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        first, second = x[:, ORDER], (x * 2).index_select(1, ORDER)
    assert node_of(first).axes == node_of(second).axes != node_of(x).axes


def test_orders_of_two_operations_are_combined():
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        y = x[:, ORDER].flip(1)
    order = order_of(node_of(y).axes[1])
    assert order.source == node_of(x).axes[1]
    assert torch.equal(order.places, ORDER.flip(0))


@pytest.mark.parametrize("function", [
    lambda x: x[:, [0, 0, 1, 2, 3, 4]], lambda x: torch.cat([x[:, :3], x[:, :3]], 1), lambda x: x.cumsum(1),
    lambda x: (MATRIX + MATRIX.flip(0)) @ x, lambda x: x.flip(2), lambda x: x.sort(1).values,
])  # fmt: skip
def test_what_does_not_hold_every_token_once_has_no_order(function):
    with Trace({}, batch=2) as trace:
        y = function(trace.input("x", X))
    assert order_of(node_of(y).axes[1]) is None


def test_reordered_tokens_beside_a_class_token_are_a_part_that_can_be_cut_again():
    token = torch.zeros(2, 1, 4, dtype=torch.float64)
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        moved = x[:, ORDER]
        both = torch.cat([token, moved], 1)
        again = both[:, 1:]
        back = again[:, ORDER.argsort()]
    order = order_of(node_of(both).axes[1])
    assert [part.source for part in order.source[0].parts] == [None, node_of(x).axes[1]]
    assert torch.equal(order.places, torch.cat([torch.zeros(1).long(), ORDER + 1]))
    assert node_of(again).axes == node_of(moved).axes
    assert node_of(back).axes == node_of(x).axes


def test_integers_are_followed_before_they_are_embedded():
    embed = nn.Embedding(60, 4)
    for reorder in (lambda i: i.flip(1), lambda i: i[:, ORDER], lambda i: i.gather(1, OWN)):
        with Trace({}, batch=2) as trace:
            given = trace.input("input_ids", tiny.ids(2, 6))
            ids = reorder(given)
            x = embed(ids)
        order = order_of(node_of(x).axes[1])
        assert order.source == node_of(given).axes[1]
        assert torch.equal(embed(tiny.ids(2, 6).gather(1, order.places.expand(2, -1))), x)


# -- scores --------------------------------------------------------------------------------------------------------


class Reordered(nn.Module):
    """A classifier without positions, so that the order of its tokens changes nothing but their places."""

    def __init__(self, reorder, early: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reorder, self.early = reorder, early
        self.embed, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True) for _ in range(2))

    def forward(self, input_ids):
        x = self.embed(self.reorder(input_ids)) if self.early else self.reorder(self.embed(input_ids))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


SCORED = ["conservative-lrp", "attn-lrp", "rollout", "generic-attention", "attention"]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("method", SCORED)
def test_scores_are_in_the_order_of_the_input(method, early, batch):
    def mine(x):
        index = OWN[: len(x)]
        return x.gather(1, index if x.dim() == 2 else index[..., None].expand_as(x))

    ids = tiny.ids(batch, 6)
    usual, moved = (
        whence.explain(Reordered(f, early).double().eval(), ids, method, 1) for f in (lambda x: x.clone(), mine)
    )
    close(moved.scores, usual.scores, 1e-10)


class Patches(nn.Module):
    """A vision Transformer without positions that reads its patches in another order."""

    def __init__(self, order) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.order = order
        self.project, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)

    def forward(self, pixel_values):
        x = self.project(pixel_values).flatten(2).mT[:, self.order]
        return self.head(self.layer(torch.cat([self.token.expand(len(x), -1, -1), x], 1))[:, 0])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("method", ["conservative-lrp", "generic-attention"])
def test_permuted_patches_are_laid_out_where_they_are_in_the_image(method, batch):
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    pixels = tiny.pixels(batch).double()
    usual, moved = (
        whence.explain(Patches(order).double().eval(), pixels, method, 1) for order in (torch.arange(9), shuffled)
    )
    assert usual.patches.shape == (batch, 3, 3)
    close(moved.patches, usual.patches, 1e-10)
    close(moved.scores, usual.scores, 1e-10)
