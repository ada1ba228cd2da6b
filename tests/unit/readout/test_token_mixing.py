"""Models whose tokens also meet outside attention: roll-ups say that they would miss it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.support.unusual import WIDTH, Attention

ROLLED = [
    "rollout",
    "generic-attention",
    "transformer-attribution",
    "attention-flow",
    "bi-attention",
    "token-tm",
    "legrad",
]
ANYWHERE = ["conservative-lrp", "gradient-x-input", "attention", "grad-cam", "partial-lrp"]


class Apart(nn.Module):
    """Each token by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Experts(Apart):
    """Tokens are gathered, transformed and put back: still each by itself."""

    def forward(self, x):
        rows = x.flatten(0, 1)
        out = torch.zeros_like(rows)
        for expert, chosen in ((self.up, rows[:, 0] > 0), (self.down, rows[:, 0] <= 0)):
            at = chosen.nonzero()[:, 0]
            out = out.index_add(0, at, expert(rows[at]))
        return out.view_as(x)


class Convolution(Apart):
    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return self.over(self.up(x).transpose(1, 2)).transpose(1, 2)


class RunningSum(Apart):
    def forward(self, x):
        return self.down(self.up(x).cumsum(1))


class Recurrence(Apart):
    def forward(self, x):
        state, out = torch.zeros_like(x[:, 0]), []
        for step in self.up(x).unbind(1):
            state = 0.5 * state + step
            out.append(self.down(state))
        return torch.stack(out, 1)


class Beside(Attention):
    """A convolution inside the block of the attention, which is not read by it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Convolution()

    def forward(self, x):
        return super().forward(x) + self.conv(x)


class Routed(Attention):
    """Experts beside the attention, in one branch: tokens meet in the attention alone."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts()

    def forward(self, x):
        return super().forward(x) + self.experts(x)


class Model(nn.Module):
    def __init__(self, *branches: nn.Module, signal: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(4, WIDTH) if signal else nn.Embedding(30, WIDTH)
        self.branches, self.head = nn.ModuleList(branches), nn.Linear(WIDTH, 3)

    def forward(self, inputs):
        x = self.embed(inputs)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x[:, 0])


def given(signal=False):
    torch.manual_seed(0)
    return torch.randn(2, 6, 4) if signal else torch.randint(0, 30, (2, 6))


MIXING = {
    "convolution": [Attention, Convolution, Attention],
    "running sum": [Attention, RunningSum],
    "recurrence": [Attention, Recurrence],
    "beside": [Beside, Apart],
    "before": [Convolution, Attention],
}


@pytest.mark.parametrize("method", ROLLED)
@pytest.mark.parametrize("name", MIXING)
def test_what_rolls_attention_up_refuses_what_it_would_miss(name, method):
    torch.manual_seed(1)
    model = Model(*(kind() for kind in MIXING[name]))
    with pytest.raises(whence.ModelError, match=r"read one another outside attention.*conservative-lrp"):
        whence.explain(model, given(), method)


@pytest.mark.parametrize("method", ANYWHERE)
def test_what_follows_every_operation_or_one_layer_applies(method):
    torch.manual_seed(1)
    model = Model(Attention(), Convolution(), Attention())
    assert torch.isfinite(whence.explain(model, given(), method).scores).all()


@pytest.mark.parametrize("method", ROLLED)
@pytest.mark.parametrize("kinds", [(Attention, Apart), (Attention, Experts), (Routed, Apart)])
def test_tokens_that_meet_in_attention_alone_are_rolled_up(kinds, method):
    torch.manual_seed(1)
    model = Model(*(kind() for kind in kinds * 2))
    assert torch.isfinite(whence.explain(model, given(), method).scores).all()


def test_a_signal_that_is_smoothed_before_the_first_attention_is_spoken_of():
    torch.manual_seed(1)
    model = Model(Convolution(), Attention(), signal=True)
    with pytest.warns(whence.WhenceWarning, match="Before its first attention"):
        whence.explain(model, given(signal=True), "rollout")
