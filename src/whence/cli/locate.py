"""``whence locate``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..explainer.explainer import Explainer
from ..localisation import Coco, Region, finds_objects
from ..localisation.locate import locate as located
from ..localisation.segment import segment
from ..results.input_origin import ImageOrigin
from .inputs import read
from .options import Device, Dtype, Model, Option, Pickle, Remote, Target, Text, guarded, load, options_of, target_of
from .output import check_out

BOOK = "coco.json"


def locate(
    inputs: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Pictures; patterns are expanded.")],
    model: Model,
    method: Annotated[str, typer.Option(help="A name from `whence methods`.")] = "generic-attention",
    target: Target = None,
    threshold: Annotated[
        str | None,
        typer.Option(help="`mean`, `otsu`, or a number from 0 to 1. Default: `mean`, of a detector's objects `otsu`."),
    ] = None,
    largest: Annotated[bool, typer.Option("--largest", help="Keep only the largest part of each mask.")] = False,
    confidence: Annotated[float, typer.Option(help="Of a detector: the probability of an object.")] = 0.5,
    cut: Annotated[bool, typer.Option("--cut", help="Of a detector: cut masks at the boxes that it drew.")] = False,
    text: Text = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"A directory for masks (.png) and {BOOK}, or a .json file alone. Default: print."),
    ] = None,
    option: Option = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures explained together.")] = 8,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
) -> None:
    """Say where in each picture a class is, or each object that a detector finds: masks and boxes.

    **Examples**

    `whence locate cat.jpg --model google/vit-base-patch16-224 --target "tabby cat" --out masks`

    `whence locate 'street/*.jpg' --model facebook/detr-resnet-50 --out objects.json`
    """
    with guarded():
        writer, cutting = Writer(out), {"largest": largest, **_threshold(threshold)}
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, True)
        items, wanted, options = read(inputs, explainer, text), target_of(target), options_of(option)
        if finds_objects(explainer, items[0]):
            for item in items:
                regions = segment(
                    explainer, item, method, target=wanted, confidence=confidence, cut=cut, **cutting, **options
                )
                writer.add(item, regions, explainer)
        else:
            explained = explainer.stream(items, method, wanted, batch_size=batch_size, **options)
            for item, e in zip(items, explained, strict=True):
                writer.add(item, located(e, **cutting), explainer)
        writer.finish()


class Writer:
    """Where regions go: told on stdout, and written to a directory or a file.

    Args:
        out: a directory, or a ``.json`` file; ``None``: nothing is written.
    """

    def __init__(self, out: Path | None) -> None:
        alone = out is None or out.suffix.lower() == ".json"
        if out is not None and not alone and out.suffix and not out.is_dir():
            raise InputError(f"'{out.name}' is neither a directory nor a .json file: masks go to a directory.")
        self.folder = None if alone else out
        self.path = out if out is None or alone else out / BOOK
        check_out(self.path)
        self.book = Coco()
        self.masks = Counter[str]()  # of each name

    def add(self, item: Any, regions: list[Region], explainer: Explainer) -> None:
        """The regions of one picture."""
        name = str(item[0] if isinstance(item, tuple) else item)
        self.book.add(name, regions, None if regions else _size(explainer, item))
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
            typer.echo(f"whence: wrote {self.book.save(self.path)}", err=True)


def _size(explainer: Explainer, item: Any) -> tuple[int, int]:
    """Height and width of a picture."""
    origin = next(o for o in explainer.read(item).origins.values() if isinstance(o, ImageOrigin))
    return origin.image.shape[0], origin.image.shape[1]


def _threshold(word: str | None) -> dict[str, Any]:
    """The threshold, if one is given."""
    if word is None:
        return {}
    try:
        return {"threshold": float(word)}
    except ValueError:
        return {"threshold": word}
