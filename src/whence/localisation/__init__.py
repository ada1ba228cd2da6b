"""From heat to places: masks and boxes of what an explanation points at, and files of them."""

from .coco import Coco, decode, encode
from .connected_components import components, largest
from .detection import Detection, detect, finds_objects
from .locate import locate
from .region import Region, box_of
from .segment import segment
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
    "locate",
    "segment",
    "threshold_of",
]
