"""What was found on models of timm (``make conformance-timm``), each told again on a small model of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support.checks import EXACT, relative

# -- activations that overwrite what they read (MobileViT, MaxViT, LeViT) ----------------------------------------------


class Convolved(nn.Module):
    """Two blocks of attention, and between them a convolution behind a norm and an activation."""

    def __init__(self, activation, width=8):
        super().__init__()
        self.patch, self.norm, self.conv = nn.Conv2d(3, width, 4, 4), nn.BatchNorm2d(width), nn.Conv2d(width, width, 1)
        self.qkv, self.head, self.activation = nn.Linear(width, 3 * width), nn.Linear(width, 3), activation
        self.norm.running_mean.copy_(torch.linspace(-1, 1, width))
        self.norm.running_var.copy_(torch.linspace(0.5, 2, width))

    def attend(self, x):
        return x + F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))

    def forward(self, x):
        x = self.attend(self.patch(x).flatten(2).mT)
        y = self.activation(self.norm(x.mT.unflatten(2, (4, 4))))
        return self.head(self.attend(x + self.conv(y).flatten(2).mT).mean(1))


def hard_sigmoid(x):
    return x.add(3.0).clamp(0.0, 6.0).div(6.0)


def hard_sigmoid_(x):
    return x.add_(3.0).clamp_(0.0, 6.0).div_(6.0)


ACTIVATIONS = {
    "silu": (nn.SiLU(), nn.SiLU(inplace=True)),
    "relu": (nn.ReLU(), nn.ReLU(inplace=True)),
    "hardswish": (nn.Hardswish(), nn.Hardswish(inplace=True)),
    "elu": (nn.ELU(), nn.ELU(inplace=True)),
    "dropout": (nn.Dropout(0.5), nn.Dropout(0.5, inplace=True)),
    "tanh": (torch.tanh, torch.tanh_),
    "swish": (lambda x: x * x.sigmoid(), lambda x: x.mul_(x.sigmoid())),
    "hard sigmoid": (hard_sigmoid, hard_sigmoid_),
}


def explained(activation, method):
    torch.manual_seed(0)
    model = Convolved(activation).double().eval()
    return whence.explain(model, torch.randn(2, 3, 16, 16, dtype=torch.float64), method, 1)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "res-lrp", "gradient-x-input", "lrp"])
def test_an_activation_that_overwrites_its_input_is_explained_as_one_that_does_not(name, method):
    new, written = (explained(activation, method) for activation in ACTIVATIONS[name])
    assert relative(written.value, new.value) < EXACT
    assert relative(written.scores, new.scores) < EXACT
    assert set(written.coverage.plain) == set(new.coverage.plain)
    for e in (new, written):
        off = e.ledger.imbalance.abs().amax() / e.ledger.sums.abs().amax()
        assert float(off) < 1e-6


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
def test_a_part_may_be_overwritten_before_the_whole_is_read(method):
    class Half(Convolved):
        def forward(self, x):
            x = self.attend(self.patch(x).flatten(2).mT)
            y = self.conv(x.mT.unflatten(2, (4, 4)))
            if self.activation:
                y[:, :4].tanh_()
            else:
                y = torch.cat([y[:, :4].tanh(), y[:, 4:]], 1)
            return self.head(self.attend(x + y.flatten(2).mT).mean(1))

    x, found = torch.randn(2, 3, 16, 16, dtype=torch.float64), []
    for inplace in (False, True):
        torch.manual_seed(0)
        found.append(whence.explain(Half(inplace).double().eval(), x, method, 1))
        assert float(found[-1].ledger.imbalance.abs().amax()) < EXACT
    assert relative(found[1].scores, found[0].scores) < EXACT


def test_what_is_overwritten_is_overwritten_for_all_who_read_it():
    class Overwriting(Convolved):
        def forward(self, x):
            x = self.attend(self.patch(x).flatten(2).mT)
            y = self.activation(x)  # the trunk, too
            return self.head(self.attend(x + y).mean(1))

    torch.manual_seed(0)
    model, x = Overwriting(nn.SiLU(inplace=True)).double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    plain = model(x).detach()
    assert relative(whence.explain(model, x, "conservative-lrp", 1).value, plain[:, 1]) < EXACT


# -- a bias that the model computes once and keeps (TinyViT, LeViT) ----------------------------------------------------


class Keeping(Convolved):
    """The bias of attention scores is gathered from a parameter in the first evaluation, and kept."""

    def __init__(self):
        super().__init__(nn.GELU())
        self.biases, self.kept = nn.Parameter(torch.linspace(-1, 1, 31)), {}

    def bias(self):
        if "all" not in self.kept:
            places = torch.arange(16)
            self.kept["all"] = self.biases[places[:, None] - places + 15]
        return self.kept["all"]

    def attend(self, x):
        return x + F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), attn_mask=self.bias())


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "attention"])
def test_a_bias_kept_from_one_run_is_a_constant_in_the_next(method):
    torch.manual_seed(0)
    model, x = Keeping().double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    once, again = (whence.explain(model, x, method, 1) for _ in range(2))
    assert relative(again.scores, once.scores) < EXACT


# -- pictures, read by a function, for a model that calls them by another name -----------------------------------------


def test_a_picture_goes_to_the_first_argument_of_a_model_that_knows_no_pixel_values():
    def transform(picture):  # as timm's and torchvision's: from PIL to [channels, height, width]
        return torch.from_numpy(np.asarray(picture.resize((16, 16)), dtype=np.float64)).permute(2, 0, 1) / 255

    torch.manual_seed(0)
    model = Convolved(nn.GELU()).double().eval()
    picture = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    e = whence.Explainer(model, transform, labels=["cat", "dog", "fish"])(picture, target="dog")
    assert (e.grid, e.scores.shape) == ((4, 4), (1, 16))
    assert e.heatmap().shape[-2:] == (48, 64)


# -- features first, then rows and columns (CoAtNet, Visformer) --------------------------------------------------------


class FeaturesFirst(nn.Module):
    """The stream is ``[batch, features, rows, columns]``; only attention sees tokens in a row."""

    def __init__(self, width=6):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, width, 4, 4), nn.BatchNorm2d(width)
        self.qkv, self.out, self.head = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1), nn.Linear(width, 3)

    def forward(self, x):
        x = self.patch(x)
        for _ in range(2):
            q, k, v = (part.flatten(2).mT for part in self.qkv(self.norm(x)).chunk(3, 1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).mT.unflatten(2, x.shape[-2:]))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
def test_tokens_are_rows_and_columns_not_features(method):
    torch.manual_seed(0)
    model, x = FeaturesFirst().double().eval(), torch.randn(2, 3, 16, 20, dtype=torch.float64)
    e = whence.explain(model, x, method, 1)
    assert e.grid == (4, 5)
    # a patch that is read by its own pixels alone has no score where they are 0 and the patches' bias is none
    model.patch.bias.data.zero_()
    x[:, :, 4:8, 8:12] = 0
    assert whence.explain(model, x, method, 1).patches[:, 1, 2].abs().max() < 1e-12
