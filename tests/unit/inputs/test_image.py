"""Where each pixel of a picture ends up in a model's input, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from whence.errors import InputError
from whence.inputs.image import find_placement, read_image
from whence.results.input_origin import ImageOrigin


def tensor(picture):
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1


def resized(size):
    return lambda picture: tensor(picture.resize(size[::-1], Image.Resampling.BICUBIC))


def cropped(edge, size):
    """The shorter side to ``edge``, then the middle ``size`` x ``size``: what most image processors do."""

    def process(picture):
        w, h = picture.size
        scale = edge / min(w, h)
        w, h = round(w * scale), round(h * scale)
        left, top = (w - size) // 2, (h - size) // 2
        return tensor(picture.resize((w, h), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size)))

    return process


def letterboxed(size):
    """The whole picture, its aspect kept, on a grey square: what detectors do."""

    def process(picture):
        w, h = picture.size
        scale = size / max(w, h)
        small = picture.resize((round(w * scale), round(h * scale)), Image.Resampling.BICUBIC)
        canvas = Image.new("RGB", (size, size), (114, 114, 114))
        canvas.paste(small, (0, 0))
        return tensor(canvas)

    return process


def mirrored(picture):
    return tensor(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT))


@pytest.mark.parametrize("size", [(500, 300), (64, 64), (37, 91), (1600, 900)])
def test_resizing_is_found_exactly(size):
    scale, shift, out = find_placement(resized((48, 32)), *size)
    assert out == (48, 32)
    assert scale == (48 / size[1], 32 / size[0])
    assert shift == (0, 0)


@given(st.integers(40, 400), st.integers(40, 400))
@settings(max_examples=30, deadline=None)
def test_the_middle_of_a_picture_is_found_where_it_was_cut(width, height):
    edge, size = 40, 32
    scale, shift, _ = find_placement(cropped(edge, size), width, height)
    whole = [round(n * edge / min(width, height)) for n in (height, width)]
    for axis, n in enumerate((height, width)):
        middle = n / 2 * scale[axis] + shift[axis]
        assert abs(middle - (whole[axis] / 2 - (whole[axis] - size) // 2)) < 0.5
        assert abs(scale[axis] * n - whole[axis]) < 0.01 * n


def test_padding_is_found():
    scale, shift, out = find_placement(letterboxed(64), 200, 100)
    assert out == (64, 64)
    assert scale == pytest.approx((64 / 200, 64 / 200), rel=1e-2)
    assert shift == pytest.approx((0, 0), abs=0.5)


def test_a_mirror_image_is_found():
    scale, shift, _ = find_placement(mirrored, 50, 40)
    assert scale[1] == pytest.approx(-1, rel=1e-2)
    assert shift[1] == pytest.approx(50, abs=0.6)
    assert scale[0] == pytest.approx(1)


def test_tiles_are_refused_with_a_reason():
    with pytest.raises(InputError, match="not one picture"):
        find_placement(lambda p: tensor(p)[None].expand(1, 2, -1, -1, -1), 20, 20)
    with pytest.raises(InputError, match="evenly"):
        find_placement(lambda p: torch.cat([tensor(p)] * 2, -1), 20, 20)


# -- laying scores back --------------------------------------------------------------------------------------------


def origin(size, scale, shift, out):
    return ImageOrigin(np.zeros((*size, 3), np.uint8), scale, shift, out)


def test_a_map_of_the_models_own_input_is_bilinear_interpolation():
    patches = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    laid = origin((32, 32), (1.0, 1.0), (0.0, 0.0), (32, 32)).lay(patches)
    expected = torch.nn.functional.interpolate(patches[None, None], size=(32, 32), mode="bilinear")[0, 0]
    assert torch.allclose(laid, expected, atol=1e-12)


def test_what_was_cut_off_scores_zero_and_the_rest_does_not():
    laid = origin((20, 40), (1.0, 1.0), (0.0, -10.0), (20, 20)).lay(torch.ones(2, 2))
    assert bool((laid[:, :10] == 0).all())
    assert bool((laid[:, 30:] == 0).all())
    assert torch.allclose(laid[:, 10:30], torch.ones(20, 20))


@given(st.integers(20, 120), st.integers(20, 120), st.integers(0, 15))
@settings(max_examples=40, deadline=None)
def test_a_patch_lights_up_its_own_place_in_the_picture(width, height, patch):
    """End to end: a picture with one bright patch, through a processor; the brightest place is found again."""
    row, column = divmod(patch, 4)
    scale, shift, out = find_placement(resized((32, 32)), width, height)
    patches = torch.zeros(4, 4)
    patches[row, column] = 1.0
    there = ImageOrigin(np.zeros((height, width, 3), np.uint8), scale, shift, out)
    at = there.lay(patches).argmax()
    y, x = divmod(int(at), width)
    left, top, right, bottom = there.box(row, column, (4, 4))
    assert left - 1 <= x <= right
    assert top - 1 <= y <= bottom


def test_boxes_of_patches_tile_the_picture():
    there = origin((60, 90), (64 / 60, 64 / 90), (0.0, 0.0), (64, 64))
    boxes = [there.box(r, c, (4, 4)) for r in range(4) for c in range(4)]
    assert sum((right - left) * (bottom - top) for left, top, right, bottom in boxes) == 60 * 90


# -- reading -------------------------------------------------------------------------------------------------------


def test_a_photograph_is_turned_as_the_camera_meant(tmp_path):
    picture = Image.new("RGB", (30, 20))
    exif = picture.getexif()
    exif[0x0112] = 6  # rotate by 90 degrees
    picture.save(tmp_path / "turned.jpg", exif=exif)
    read, name = read_image(tmp_path / "turned.jpg")
    assert read.size == (20, 30)
    assert name == "turned.jpg"


def test_transparency_lies_on_white():
    read, _ = read_image(Image.new("RGBA", (2, 2), (0, 0, 0, 0)))
    assert read.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "array",
    [
        np.full((4, 5), 128, np.uint8),
        np.full((4, 5, 1), 0.5),
        np.full((4, 5, 3), 0.5, np.float32),
        np.ones((4, 5), bool),
    ],
)
def test_arrays_of_bytes_and_of_floats_are_pictures(array):
    read, _ = read_image(array)
    assert read.size == (5, 4)
    assert read.mode == "RGB"
    assert read.getpixel((0, 0))[0] in (128, 255)
