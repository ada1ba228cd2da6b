"""All measures; importing this package registers them."""

from . import (
    activation,
    agreement,
    conservation,
    eraser,
    insertion,
    localisation,
    perturbation,
    randomisation,
    rationales,
    regions,
    saco,
    segmentation,
    sensitivity,
)

__all__ = [
    "activation",
    "agreement",
    "conservation",
    "eraser",
    "insertion",
    "localisation",
    "perturbation",
    "randomisation",
    "rationales",
    "regions",
    "saco",
    "segmentation",
    "sensitivity",
]
