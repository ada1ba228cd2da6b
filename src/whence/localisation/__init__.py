"""Localisation: masks and boxes of the objects that an explanation points at, and COCO files of them."""

from .coco import Coco, decode, encode
from .connected_components import components, largest
from .detection import Detection, detect, finds_objects
from .region import Region, box_of
from .threshold import threshold_of

__all__ = [
    "Coco",
    "Detection",
    "Region",
    "box_of",
    "components",
    "decode",
    "detect",
    "encode",
    "finds_objects",
    "largest",
    "threshold_of",
]
