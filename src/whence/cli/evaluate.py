"""``whence evaluate`` and ``whence measures``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..datasets import load as load_dataset
from ..evaluation.curve_plot import save_curves
from ..evaluation.evaluate import evaluate as run_evaluation
from ..evaluation.measure import list_measures
from . import options
from .exit_codes import announce_resumable, report_errors
from .parsing import parse_names, parse_pairs, parse_target

NAMES = "Names with commas between"


def evaluate(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A name (sst2, imdb, pets, ...), or a path.")],
    model: options.Model,
    methods: Annotated[
        list[str] | None,
        typer.Option(help=f"{NAMES}, or several times `label=method:option=value`. Default: all that apply."),
    ] = None,
    metrics: Annotated[str, typer.Option(help=f"{NAMES}, from `whence measures`.")] = "auac,au-mse",
    out: options.ResultsDirectory = None,
    data: options.DataRoot = None,
    split: options.Split = None,
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
    column: options.Columns = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs run together.")] = 16,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
) -> None:
    """Measure how far a model's explanations can be trusted, on a dataset.

    Stopped half-way, the same command goes on where it was.

    **Examples**

    `whence evaluate sst2 --data datasets --model my-model --methods conservative-lrp,rollout,random --out results`

    `whence evaluate reviews.jsonl --model my-model --metrics comprehensiveness,sufficiency --limit 100`
    """
    with report_errors():
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, True)
        with announce_resumable(out, "the same command"):
            items = load_dataset(dataset, root=data, split=split, **parse_pairs(column))
            labels = {name: parse_target(value) for name, value in parse_pairs(label).items()}
            results = run_evaluation(
                explainer, items, parse_names(methods), parse_names([metrics]) or (), target=target, baseline=baseline,
                unit=unit, special=special, limit=limit, seed=seed, labels=labels, batch_size=batch_size, out=out,
            )  # fmt: skip
        typer.echo(results.table())
        if out is not None:
            plots = save_curves(results, out)
            typer.echo(f"whence: wrote {', '.join(str(path) for path in [out, *plots])}", err=True)


def measures() -> None:
    """List what can be measured of an explanation, which way is better, and the paper."""
    better = {True: "higher", False: "lower", None: "-"}
    rows = [(name, better[m.higher], " ".join(sorted(m.needs)) or "-", m.paper) for name, m in list_measures().items()]
    head = ("measure", "better", "needs", "paper")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        typer.echo("  ".join(map(str.ljust, row, widths)).rstrip())
