"""``whence locate``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..explainer.explainer import Explainer
from ..localisation import Coco, Region, finds_objects
from ..localisation.locate import locate as locate_region
from ..localisation.segment import segment
from ..results.input_origin import ImageOrigin
from . import options
from .exit_codes import report_errors
from .inputs import read_inputs
from .output import check_output_path
from .parsing import parse_options, parse_target

COCO_FILE = "coco.json"


def locate(
    inputs: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Pictures; patterns are expanded.")],
    model: options.Model,
    method: options.Method = "generic-attention",
    target: options.Target = None,
    threshold: Annotated[
        str | None,
        typer.Option(help="`mean`, `otsu`, or a number from 0 to 1. Default: `mean`, of a detector's objects `otsu`."),
    ] = None,
    largest: Annotated[bool, typer.Option("--largest", help="Keep only the largest part of each mask.")] = False,
    confidence: Annotated[float, typer.Option(help="Of a detector: the probability of an object.")] = 0.5,
    cut: Annotated[bool, typer.Option("--cut", help="Of a detector: cut masks at the boxes that it drew.")] = False,
    text: options.Text = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"A directory for masks (.png) and {COCO_FILE}, or a .json file alone. Default: print."),
    ] = None,
    option: options.MethodOptions = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures explained together.")] = 8,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
) -> None:
    """Say where in each picture a class is, or each object that a detector finds: masks and boxes.

    **Examples**

    `whence locate cat.jpg --model google/vit-base-patch16-224 --target "tabby cat" --out masks`

    `whence locate 'street/*.jpg' --model facebook/detr-resnet-50 --out objects.json`
    """
    with report_errors():
        writer = RegionWriter(out)
        masking = {"largest": largest, **_parse_threshold(threshold)}
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, True)
        items = read_inputs(inputs, explainer, text)
        target_class = parse_target(target)
        method_options = parse_options(option)
        if finds_objects(explainer, items[0]):
            for item in items:
                regions = segment(
                    explainer,
                    item,
                    method,
                    target=target_class,
                    confidence=confidence,
                    cut=cut,
                    **masking,
                    **method_options,
                )
                writer.add(item, regions, explainer)
        else:
            explanations = explainer.stream(items, method, target_class, batch_size=batch_size, **method_options)
            for item, e in zip(items, explanations, strict=True):
                writer.add(item, locate_region(e, **masking), explainer)
        writer.finish()


class RegionWriter:
    """Output of regions: printed, and written to a directory or a file.

    Args:
        out: a directory, or a ``.json`` file; ``None`` to print only.
    """

    def __init__(self, out: Path | None) -> None:
        json_only = out is None or out.suffix.lower() == ".json"
        if out is not None and not json_only and out.suffix and not out.is_dir():
            raise InputError(f"'{out.name}' is neither a directory nor a .json file: masks go to a directory.")
        self.folder = None if json_only else out
        self.path = out if out is None or json_only else out / COCO_FILE
        check_output_path(self.path)
        self.annotations = Coco()
        self.masks = Counter[str]()  # how many, by the name of the image

    def add(self, item: Any, regions: list[Region], explainer: Explainer) -> None:
        """Print and write the regions of one image."""
        name = str(item[0] if isinstance(item, tuple) else item)
        self.annotations.add(name, regions, None if regions else _image_size(explainer, item))
        if not regions:
            typer.echo(f"whence: nothing was found in {name}.", err=True)
        for region in regions:
            box = " ".join(map(str, region.box))
            typer.echo(f"{name}  {region.label}  {region.score:.2f}  box {box}  {region.share:.1%} of the picture")
            if self.folder is not None:
                stem = Path(name).stem
                self.masks[stem] += 1
                region.save(self.folder / f"{stem}-{self.masks[stem]}.png")

    def finish(self) -> None:
        """Write the COCO file."""
        if self.path is not None:
            typer.echo(f"whence: wrote {self.annotations.save(self.path)}", err=True)


def _image_size(explainer: Explainer, item: Any) -> tuple[int, int]:
    """Return the height and width of an image."""
    origin = next(o for o in explainer.read(item).origins.values() if isinstance(o, ImageOrigin))
    return origin.image.shape[0], origin.image.shape[1]


def _parse_threshold(word: str | None) -> dict[str, Any]:
    """Return the threshold as an argument, if one is given."""
    if word is None:
        return {}
    try:
        return {"threshold": float(word)}
    except ValueError:
        return {"threshold": word}
