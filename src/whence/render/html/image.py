"""An image with its patches shaded."""

from __future__ import annotations

import hashlib
import struct
import zlib
from base64 import b64encode
from io import BytesIO

import numpy as np
import numpy.typing as npt

from ...results.input_origin import ImageOrigin
from ..palette import shade
from ..view_model import Floats, Panel
from .markup import Markup, tag
from .medium import Medium, PanelMarkup, ScoredItem

Bytes = npt.NDArray[np.uint8]
Edges = list[tuple[int, int, int]]  # index, low and high of the patches along one side of the image

LARGEST = 1024  # pixels on the longer side
HEAT = 384  # the same for the overlay, which is smooth
STEPS = 127  # shades of each sign in the overlay


def draw_image(panel: Panel, limit: float, medium: Medium) -> PanelMarkup:
    """Return the image in its own shape, the scores laid over it."""
    origin = panel.origin
    assert isinstance(origin, ImageOrigin)
    height, width = origin.image.shape[:2]
    rows, columns = _edges(origin, panel)
    shapes: list[Markup] = []
    items: list[ScoredItem] = []
    for row, top, bottom in rows:
        for column, left, right in columns:
            assert panel.patches is not None
            number, sources = panel.sources_of(row * panel.patches.shape[1] + column)
            score = float(panel.patches[row, column])
            items.append(ScoredItem(f"row {row + 1}, column {column + 1}", score, number, sources))
            box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
            shapes.append(medium.rect(items[-1], not shapes, fill="#fff", fill_opacity=0, **box))
    drawing = tag(
        "svg",
        _picture(origin, medium),
        *_overlay(panel, rows, columns, limit, (height, width)),
        *shapes,
        class_="whence-picture",
        viewBox=f"0 0 {width} {height}",
        **medium.group_attributes("patches", len(items), len(columns)),
    )
    return PanelMarkup(drawing, items, "patches")


def _edges(origin: ImageOrigin, panel: Panel) -> tuple[Edges, Edges]:
    """Return where rows and columns of patches lie in the image; those outside it are left out."""
    if panel.grid is None or panel.patches is None:
        return [], []
    boxes = [origin.box(row, 0, panel.grid) for row in range(panel.grid[0])]
    rows = [(i, top, bottom) for i, (_, top, _, bottom) in enumerate(boxes) if bottom > top]
    boxes = [origin.box(0, column, panel.grid) for column in range(panel.grid[1])]
    columns = [(i, left, right) for i, (left, _, right, _) in enumerate(boxes) if right > left]
    return rows, columns


def _picture(origin: ImageOrigin, medium: Medium) -> Markup:
    """Return the image itself; a page holds it once, however many methods explain it."""
    height, width = origin.image.shape[:2]
    key = hashlib.sha256(origin.image.tobytes() + bytes(str(origin.image.shape), "ascii")).hexdigest()[:16]
    if medium.live and key in medium.pictures:
        return tag("use", href=f"#{medium.pictures[key]}")
    name = f"whence-{medium.name}-{key}" if medium.live else None
    if name:
        medium.pictures[key] = name
    return tag(
        "image",
        id=name,
        class_="whence-photo",
        href=photo(shrink(origin.image, LARGEST if medium.live else LARGEST // 2)),
        width=width,
        height=height,
        preserveAspectRatio="none",
    )


def _overlay(panel: Panel, rows: Edges, columns: Edges, limit: float, size: tuple[int, int]) -> list[Markup]:
    """Return the heat map over the whole image; without one, the patches over the part of it that they cover."""
    height, width = size
    heat = panel.heat
    box = {"x": 0, "y": 0, "width": width, "height": height}
    if heat is None and rows and columns and panel.patches is not None:
        first_row, top, _ = rows[0]
        last_row, _, bottom = rows[-1]
        first_column, left, _ = columns[0]
        last_column, _, right = columns[-1]
        heat = panel.patches[first_row : last_row + 1, first_column : last_column + 1]
        box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    if heat is None:
        return []
    return [tag("image", class_="whence-heat", href=heat_png(heat, limit), preserveAspectRatio="none", **box)]


def shrink(array: npt.NDArray[np.generic], most: int) -> npt.NDArray[np.float32]:
    """Average neighbouring pixels, so that neither side is longer than ``most``.

    Example:
        >>> shrink(np.array([[0, 2, 4, 6]]), 2)
        array([[1., 5.]], dtype=float32)
    """
    longest = max(array.shape[:2])
    out = array.astype(np.float32)
    for axis in (0, 1) if longest > most else ():
        count = array.shape[axis]
        edges = np.arange(size := max(count * most // longest, 1)) * count // size
        lengths = np.diff(edges, append=count).astype(np.float32)
        shape = [-1 if a == axis else 1 for a in range(out.ndim)]
        out = np.add.reduceat(out, edges, axis) / lengths.reshape(shape)
    return out


def photo(pixels: npt.NDArray[np.float32]) -> str:
    """Encode an image as a data address: JPEG where Pillow is installed, PNG where it is not."""
    image = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    try:
        from PIL import Image
    except ImportError:
        return _address("png", _png(image, 2))
    stream = BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=86, optimize=True)
    return _address("jpeg", stream.getvalue())


def heat_png(heat: Floats, limit: float) -> str:
    """Encode scores as a data address of a PNG in the shared palette, more opaque where the score is stronger."""
    strength = np.clip(shrink(heat, HEAT) / limit, -1, 1) if limit > 0 else np.zeros_like(heat)
    indices = (np.rint(strength * STEPS) + STEPS).astype(np.uint8)
    shades = [shade(step, STEPS) for step in range(-STEPS, STEPS + 1)]
    palette = bytes(channel for colour, _ in shades for channel in colour)
    opacity = bytes(round(255 * alpha) for _, alpha in shades)
    return _address("png", _png(indices, 3, (b"PLTE", palette), (b"tRNS", opacity)))


def _png(pixels: Bytes, colour: int, *extra: tuple[bytes, bytes]) -> bytes:
    """Encode a PNG: ``colour`` is 2 for red, green and blue, 3 for indices into a palette."""
    height, width = pixels.shape[:2]
    lines = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))  # every line begins with its filter, 0 for none
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
        *extra,
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ]
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{b64encode(content).decode()}"
