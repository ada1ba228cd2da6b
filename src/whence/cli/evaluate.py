"""``whence evaluate`` and ``whence measures``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..datasets import load as load_dataset
from ..errors import InputError
from ..evaluation.curve_plot import save_curves
from ..evaluation.evaluate import evaluate as measured
from ..evaluation.measure import list_measures
from .options import Device, Dtype, Model, Pickle, Remote, guarded, load, target_of

LIST = "Names with commas between"


def evaluate(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A name (sst2, imdb, pets, ...), or a path.")],
    model: Model,
    methods: Annotated[
        list[str] | None,
        typer.Option(help=f"{LIST}, or several times `label=method:option=value`. Default: all that apply."),
    ] = None,
    metrics: Annotated[str, typer.Option(help=f"{LIST}, from `whence measures`.")] = "auac,au-mse",
    out: Annotated[Path | None, typer.Option(help="Directory of the results. Default: print the table only.")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the named datasets. Default: $WHENCE_DATA.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of the dataset.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many samples, drawn by the seed. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw, of ties, of random weights and of the intervals.")] = 0,
    target: Annotated[str, typer.Option(help="Explain the `prediction` or the `label`.")] = "prediction",
    baseline: Annotated[
        str | None, typer.Option(help="In place of what is removed: unk mask pad hide; for pictures zero mean blur.")
    ] = None,
    unit: Annotated[str, typer.Option(help="Of pictures, remove each `patch` or each `pixel`.")] = "patch",
    special: Annotated[bool, typer.Option("--special", help="Remove [CLS] and [SEP], too.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="dataset's label=model's class, where their names differ.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Of a file: text=..., label=..., id=..., if not found by name.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs run together.")] = 16,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
) -> None:
    """Measure how far a model's explanations can be trusted, on a dataset.

    Stopped half-way, the same command goes on where it was.

    **Examples**

    `whence evaluate sst2 --data datasets --model my-model --methods conservative-lrp,rollout,random --out results`

    `whence evaluate reviews.jsonl --model my-model --metrics comprehensiveness,sufficiency --limit 100`
    """
    with guarded():
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, True)
        try:
            found = measured(
                explainer, load_dataset(dataset, root=data, split=split, **pairs(column)), names(methods),
                names([metrics]) or (), target=target, baseline=baseline, unit=unit, special=special, limit=limit,
                seed=seed, labels={k: target_of(v) for k, v in pairs(label).items()}, batch_size=batch_size, out=out,
            )  # fmt: skip
        except KeyboardInterrupt:
            if out is not None:
                typer.echo(f"whence: what is done is in {out}; the same command goes on from there.", err=True)
            raise
        typer.echo(found.table())
        if out is not None:
            drawn = save_curves(found, out)
            typer.echo(f"whence: wrote {', '.join(str(path) for path in [out, *drawn])}", err=True)


def names(words: list[str] | None) -> list[str] | None:
    """Names with commas between; what has options is one name, as options have commas of their own."""
    if words is None:
        return None
    return [name.strip() for word in words for name in ([word] if ":" in word else word.split(",")) if name.strip()]


def pairs(words: list[str] | None) -> dict[str, str]:
    """``name=value``, as they are."""
    for word in words or []:
        if "=" not in word:
            raise InputError(f"'{word}' is no pair: write name=value.")
    return {name: value for name, _, value in (word.partition("=") for word in words or [])}


def measures() -> None:
    """List what can be measured of an explanation, which way is better, and the paper."""
    better = {True: "higher", False: "lower", None: "-"}
    rows = [(name, better[m.higher], " ".join(sorted(m.needs)) or "-", m.paper) for name, m in list_measures().items()]
    head = ("measure", "better", "needs", "paper")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        typer.echo("  ".join(map(str.ljust, row, widths)).rstrip())
