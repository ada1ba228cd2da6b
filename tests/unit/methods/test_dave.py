"""DAVE: the published numbers of its parts, movements against plain ones, the same map in any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import golden, load
from tests.support.runs import traced
from tests.support.snapshot import snapshot
from whence.methods.dave import Pose, contribution, input_image, robust_mean, smooth_map

NOTHING = torch.zeros(1, dtype=torch.float64)


@pytest.fixture(scope="module")
def case():
    arrays = {name: torch.from_numpy(array) for name, array in golden("19_dave_vit_parts").items()}
    inputs = {"pixel_values": arrays["pixel_values"].double()}
    _, run = traced(load("ViTForImageClassification", "19_dave_vit_parts"), inputs, "dave", arrays["targets"].tolist())
    return arrays, run


def test_the_effective_gradient_is_the_published_one(case):
    arrays, run = case
    found = contribution(run, input_image(run), None, 0.0, NOTHING)
    assert relative(found, arrays["effective_gradient_x_input"]) < EXACT


def test_maps_under_noise_and_their_mean_are_the_published_ones(case):
    arrays, run = case
    noisy = zip(arrays["noise_schedule_5"].tolist(), arrays["noise"], strict=True)
    maps = torch.stack([contribution(run, input_image(run), None, level, noise) for level, noise in noisy])
    assert relative(maps, arrays["noise_maps"]) < EXACT
    mean = robust_mean(maps)
    assert relative(mean, arrays["mad_aggregate"]) < EXACT
    assert relative(smooth_map(mean.sum(1)), arrays["post_processed"][:, 0]) < EXACT


def image(*size):
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_movements_are_what_they_are_called():
    square, wide = image(6, 6), image(4, 8)
    close = {"rtol": 0, "atol": 1e-12}
    assert torch.allclose(Pose()(wide), wide, **close)
    assert torch.allclose(Pose(mirrored=True)(wide), wide.flip(3), **close)
    assert torch.allclose(Pose(angle=90)(square), square.rot90(1, (2, 3)), **close)
    assert torch.allclose(Pose(angle=180)(wide), wide.flip(2, 3), **close)
    assert torch.allclose(Pose(mirrored=True, angle=90)(square), square.flip(3).rot90(1, (2, 3)), **close)
    shifted = Pose(shift=(0.25, -0.25))(wide)
    assert torch.allclose(shifted[..., :-1, 2:], wide[..., 1:, :-2], **close)
    assert (shifted[..., :2] == 0).all()
    turned = Pose(angle=90, shift=(0.5, 0.0))(square)  # turned first, then shifted
    assert torch.allclose(turned[..., 3:], square.rot90(1, (2, 3))[..., :3], **close)


def test_a_quarter_turn_of_a_wide_picture():
    """In pixels, whatever the picture's shape: the middle square turns, the rest is gone."""
    wide = image(4, 8)
    turned = Pose(angle=90)(wide)
    assert torch.allclose(turned[..., 2:6], wide[..., 2:6].rot90(1, (2, 3)), rtol=0, atol=1e-12)
    assert turned[..., [0, 1, 6, 7]].abs().max() < 1e-12


def test_scaling_is_about_the_centre():
    ramp = torch.arange(8.0, dtype=torch.float64).expand(1, 1, 8, 8)
    larger = Pose(scale=2.0)(ramp)
    assert torch.allclose(larger[0, 0, 4], 3.5 + (ramp[0, 0, 4] - 3.5) / 2)


class Linear(nn.Module):
    """A model whose gradient is the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 6, 6, 2))

    def forward(self, pixels):
        return torch.einsum("bchw,chwk->bk", pixels, self.weight)


@given(st.integers(0, 2**32 - 1))
def test_the_gradient_goes_back_to_where_pixels_were(seed):
    """``<x, c> = (1 - t) <w, T(x)>``, and the gradient of a moved picture is the derivative with respect to it."""
    pose = Pose.random(np.random.default_rng(seed))
    model, pixels = Linear().double(), image(6, 6)
    _, run = traced(model, {"pixels": pixels}, "dave", 1)
    found = contribution(run, input_image(run), pose, 0.25, NOTHING)
    (gradient,) = torch.autograd.grad((0.75 * model(pose(pixels.requires_grad_()))[:, 1]).sum(), pixels)
    assert relative(found, gradient * pixels) < EXACT
    assert torch.allclose(found.sum((1, 2, 3)), 0.75 * model(pose(pixels))[:, 1])


def test_an_outlier_does_not_count():
    maps = torch.tensor([[1.0, 1.0], [1.1, 1.0], [0.9, 1.0], [1.0, 1.0], [50.0, 1.0]])
    assert torch.allclose(robust_mean(maps), torch.tensor([1.0, 1.0]))


def test_an_empty_map_stays_empty():
    assert (smooth_map(torch.zeros(2, 8, 8)) == 0).all()
    assert smooth_map(torch.rand(2, 8, 8)).amax((1, 2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("smooth", [True, False])
def test_a_batch_changes_nothing_and_the_model_is_left_as_found(smooth):
    model, pixels = tiny.vit().double(), tiny.pixels().double()
    before = snapshot(model)
    e = whence.explain(model, {"pixel_values": pixels}, "dave", samples=3, smooth=smooth)
    assert snapshot(model) == before
    assert e.patches.shape == (3, 12, 12)
    for i in range(3):
        one = whence.explain(model, {"pixel_values": pixels[i : i + 1]}, "dave", samples=3, smooth=smooth)
        assert torch.allclose(e.scores[i], one.scores[0], rtol=0, atol=1e-12)
    other = whence.explain(model, {"pixel_values": pixels}, "dave", samples=3, smooth=smooth, seed=1)
    assert not torch.allclose(other.scores, e.scores)
    assert torch.equal(other.target, e.target)


def test_without_changes_it_is_conservative_lrp():
    model, pixels = tiny.vit().double(), tiny.pixels().double()
    e = whence.explain(model, {"pixel_values": pixels}, "dave", 1, samples=2, alpha=0.0, augment=False, smooth=False)
    same = whence.explain(model, {"pixel_values": pixels}, "conservative-lrp", 1, at="pixel")
    assert relative(e.scores, same.scores) < EXACT


def test_half_precision():
    model, pixels = tiny.vit(), tiny.pixels()
    full = whence.explain(model, {"pixel_values": pixels}, "dave", 1, samples=2)
    half = whence.explain(tiny.vit().bfloat16(), {"pixel_values": pixels.bfloat16()}, "dave", 1, samples=2)
    assert half.scores.dtype == torch.float32
    assert float((half.scores - full.scores).abs().max()) < 0.1


def test_what_it_cannot_do_is_said():
    with pytest.raises(whence.ModelError, match="explains pictures"):
        whence.explain(tiny.bert(), tiny.ids(1), "dave")
    for options in ({"samples": 0}, {"alpha": 1.5}, {"alpha": -0.1}):
        with pytest.raises(whence.MethodError, match="must be"):
            whence.explain(tiny.vit(), tiny.pixels(1), "dave", **options)
