"""Images: read from a file, an array or PIL; and where each pixel of an image lies in a model's input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .._utils.atomic_files import is_file, shortened
from .._utils.image_files import open_image
from .._utils.optional_imports import need
from ..errors import InputError
from ..results.input_origin import ImageOrigin
from .sample import Sample

Process = Callable[[Any], dict[str, Tensor]]
Placement = tuple[tuple[float, float], tuple[float, float], tuple[int, int]]  # scale, shift, size


def read_image(raw: Any) -> tuple[Any, str]:
    """Return a PIL image in RGB, upright, and its name."""
    image = need("PIL.Image", "pictures", "vision")
    if isinstance(raw, str | Path):
        return _open(str(raw)), Path(raw).name
    if isinstance(raw, np.ndarray):
        return _upright(image.fromarray(_bytes(raw))), ""
    if isinstance(raw, image.Image):
        try:
            raw.load()
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(f"The picture cannot be read: {error}.") from error
        return _upright(raw), Path(getattr(raw, "filename", "") or "").name
    raise InputError(f"A picture is a path, a PIL image or an array, not {type(raw).__name__}.")


def _open(path: str) -> Any:
    image = need("PIL.Image", "pictures", "vision")
    if "://" in path:
        raise InputError(
            f"'{path}' is an address on the network, and Whence fetches nothing: what is explained must be what you "
            "have in hand. Download the picture and give its path."
        )
    if not is_file(path):
        raise InputError(f"There is no file '{shortened(path)}'.")
    try:
        with open_image(path) as opened:
            opened.load()
            return _upright(opened)
    except image.DecompressionBombError as error:
        raise InputError(
            f"'{path}' unpacks to more than {image.MAX_IMAGE_PIXELS:,} pixels and may be a decompression bomb: "
            "it was not read. Make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it."
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"'{path}' is not a picture that can be read: {error}.") from error


def _upright(opened: Any) -> Any:
    """Rotate an image as its EXIF data says, put transparency on white, convert 16 bits to 8."""
    image = need("PIL.Image", "pictures", "vision")
    turned = need("PIL.ImageOps", "pictures", "vision").exif_transpose(opened)
    if turned.mode.startswith("I;16") or turned.mode == "I":
        return image.fromarray((np.asarray(turned).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        turned = turned.convert("RGBA")
        white = image.new("RGBA", turned.size, (255, 255, 255, 255))
        turned = image.alpha_composite(white, turned)
    return turned.convert("RGB")


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return an array ``[h, w]`` or ``[h, w, channels]`` of bytes, or of floats from 0 to 1, as bytes."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or array.size == 0:
        raise InputError(
            f"An array of shape {list(array.shape)} is no picture: it must be [height, width] or [height, width, "
            "channels] with 1, 3 or 4 channels. Give a torch tensor to pass it to the model as it is."
        )
    array = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind != "f" or not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
        raise InputError(
            "A picture's array must hold bytes (uint8), or floats from 0 to 1. Give a torch tensor to pass it to the "
            "model as it is."
        )
    return (array * 255).round().astype(np.uint8)


class ImageReader:
    """A reader of images, by a HuggingFace image processor or any function from a PIL image to a tensor.

    Args:
        processor: the image processor.
        name: the model's argument, if the processor returns a bare tensor.
    """

    kind = "image"

    def __init__(self, processor: Any, name: str = "pixel_values") -> None:
        self.processor = processor
        self.name = name
        self.place = functools.lru_cache(maxsize=64)(self._place)

    def read(self, raw: Any) -> Sample:
        """Read a path, a PIL image or an array."""
        picture, name = read_image(raw)
        tensors = self.process(picture)
        return Sample(tensors, {"image": self.origin(picture, name)})

    def origin(self, picture: Any, name: str) -> ImageOrigin:
        """Return the image, and where it lies in the model's input."""
        scale, shift, size = self.place(*picture.size)
        return ImageOrigin(np.asarray(picture), scale, shift, size, name)

    def process(self, picture: Any) -> dict[str, Tensor]:
        """Return the model's arguments for one image."""
        if hasattr(self.processor, "image_mean") or hasattr(self.processor, "model_input_names"):
            out = self.processor(images=picture, return_tensors="pt")
        else:
            out = self.processor(picture)
        if isinstance(out, Tensor):
            return {self.name: out if out.dim() == 4 else out[None]}
        return {k: v for k, v in out.items() if isinstance(v, Tensor)}

    def _place(self, width: int, height: int) -> Placement:
        def process(picture: Any) -> Tensor:
            return self.process(picture)[self.name]

        larger = -(-64 // min(width, height))  # enlarged from a few pixels, an image is too coarse to locate them
        if larger > 4:
            scale, shift, size = find_placement(process, width * larger, height * larger)
            if scale != (1.0, 1.0):
                return (scale[0] * larger, scale[1] * larger), shift, size
        return find_placement(process, width, height)


def find_placement(process: Callable[[Any], Tensor], width: int, height: int) -> Placement:
    """Find where the pixels of an image of this size lie in a processor's output, by probing the processor.

    It processes a black and a white image, whose difference is the region that the image covers, and ramps, whose
    values give the source of each pixel: first over the whole image, then, finer, over the visible part. So any
    resizing, cropping and padding can be inverted, whatever the processor.

    Returns:
        ``scale`` and ``shift``, each ``(y, x)``, with output pixel = scale x pixel + shift, and the output's size.
    """
    black, white = (_plane(process, np.full((height, width), grey)) for grey in (0, 255))
    seen = (white - black).abs() > 0.5 * (white - black).abs().max()
    axes = []
    for axis, count in enumerate((height, width)):
        low = 0.0
        high = float(count)
        for _ in range(2):
            ramp = np.clip((np.arange(count) + 0.5 - low) / (high - low), 0, 1) * 255
            ramp = np.broadcast_to(ramp[:, None] if axis == 0 else ramp[None], (height, width))
            values = (_plane(process, ramp) - black) / torch.where(seen, white - black, 1.0)
            along = values.where(seen, torch.nan).nanmean(1 - axis) * (high - low) + low
            scale, shift = _fit(along, seen.any(1 - axis), count)
            ends = sorted((edge - shift) / scale for edge in (0, len(along)))
            margin = 0.1 * (ends[1] - ends[0]) + 2
            low = max(0.0, ends[0] - margin)
            high = min(float(count), ends[1] + margin)
        axes.append(_snap(scale, shift, count))
    (scale_y, shift_y), (scale_x, shift_x) = axes
    return (scale_y, scale_x), (shift_y, shift_x), (black.shape[0], black.shape[1])


def _plane(process: Callable[[Any], Tensor], grey: npt.NDArray[Any]) -> Tensor:
    """Return a processor's output for a grey image, ``[height, width]``."""
    image = need("PIL.Image", "pictures", "vision")
    out = process(image.fromarray(grey.round().astype(np.uint8)).convert("RGB"))
    if out.dim() != 4 or len(out) != 1:
        raise InputError(
            f"The processor makes {list(out.shape)} of a picture, which is not one picture [1, channels, height, "
            "width], so scores cannot be laid back on it. Give the processor's tensors instead of the picture."
        )
    return out[0].double().mean(0)


def _fit(pixels: Tensor, seen: Tensor, count: int) -> tuple[float, float]:
    """Fit the straight line from pixels of an image (0 to ``count``) to pixels of the output."""
    at = seen.nonzero().flatten().double()
    edge = max(1, len(at) // 20) if len(at) > 8 else 0  # resizing blurs borders differently
    at = at[edge : len(at) - edge]
    if count == 1 or len(at) < 2:
        return len(seen) / count, 0.0
    y, x = pixels[at.long()], at + 0.5
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    offset = float(y.mean()) - slope * float(x.mean())
    error = float((y - (slope * x + offset)).abs().max())
    if slope == 0 or error > 0.02 * count + 2:
        raise InputError(
            "The processor does not place the picture evenly in the model's input (it may cut it into tiles), so "
            "scores cannot be laid back on it. Give the processor's tensors instead of the picture."
        )
    return 1 / slope, -offset / slope


def _snap(scale: float, shift: float, count: int) -> tuple[float, float]:
    """Round to whole pixels where they are near: processors resize to and crop at whole pixels."""
    size = round(scale * count)
    if size != 0 and abs(scale * count - size) < 0.01 * abs(size) + 0.5:
        exact = size / count
        moved = shift + (scale - exact) * count / 2  # the middle stays where it was measured
        if abs(moved - round(moved)) < 0.35:
            return exact, float(round(moved))
        return exact, moved
    return scale, shift
