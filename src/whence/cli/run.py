"""``whence run`` and ``whence summarize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..inputs.pretrained import quiet
from ..jobs import run as explained
from ..jobs import summarize as summed
from .evaluate import names, pairs
from .options import (
    FAILED,
    Device,
    Dtype,
    Model,
    Option,
    Pickle,
    Remote,
    Target,
    Truncate,
    guarded,
    options_of,
    target_of,
)


def run(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A path, or a name (sst2, imdb, pets, ...).")],
    model: Model,
    out: Annotated[Path, typer.Option(help="Directory of the rows.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="A name from `whence methods`; several with commas. Default: conservative-lrp."),
    ] = None,
    target: Target = None,
    option: Option = None,
    engine: Annotated[str, typer.Option(help="`local`: processes on this machine; or `ray`.")] = "local",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the directory holds.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes, each with the model. Default: cores.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster that is running; `auto`: on this machine.")
    ] = None,
    cpus: Annotated[float, typer.Option(min=0, help="Of Ray: CPUs for each worker.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="Of Ray: GPUs for each worker.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first samples.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs explained together, at most.")] = 32,
    shard_size: Annotated[int, typer.Option(min=1, help="Samples in one file.")] = 512,
    data: Annotated[Path | None, typer.Option(help="Directory of the named datasets. Default: $WHENCE_DATA.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of the dataset.")] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Of a file: text=..., label=..., id=..., if not found by name.")
    ] = None,
    allow_failures: Annotated[bool, typer.Option("--allow-failures", help="End with 0 although rows failed.")] = False,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
    truncate: Truncate = False,
) -> None:
    """Explain every sample of a dataset, into parquet files; stopped in whatever way, it goes on with --resume.

    **Examples**

    `whence run reviews.jsonl --model my-model --out why`

    `whence run photos/ --model google/vit-base-patch16-224 --method generic-attention --out why --resume`

    `whence run sst2 --data datasets --model my-model --out why --engine ray --address auto`
    """  # fmt: skip
    with guarded():
        quiet()
        try:
            job = explained(
                dataset, model, names(method) or "conservative-lrp", out, target=target_of(target),
                options=options_of(option), engine=engine, workers=workers, address=address, cpus=cpus, gpus=gpus,
                resume=resume, limit=limit, batch_size=batch_size, shard_size=shard_size, root=data, split=split,
                columns=pairs(column), device=device, dtype=dtype, trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle, truncate=truncate,
            )  # fmt: skip
        except KeyboardInterrupt:
            typer.echo(
                f"whence: what is done is in {out}; the same command with --resume goes on from there.", err=True
            )
            raise
        for message, times in job.warned.most_common():
            typer.echo(f"whence: {message} ({times} times)", err=True)
        rate = f" ({job.new / job.seconds:.3g} a second)" if job.new else ""
        typer.echo(f"whence: {job.samples:,} samples in {out}, {job.failed:,} rows failed{rate}.", err=True)
        if job.failed and not allow_failures:
            typer.echo(
                "whence: their reasons are in the column 'error'; --allow-failures ends with 0 all the same.", err=True
            )
            raise typer.Exit(FAILED)


def summarize(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where `whence run` wrote.")],
    min_count: Annotated[int, typer.Option(min=1, help="Samples that a word must be in.")] = 5,
    top: Annotated[int, typer.Option(min=1, help="Words of each class that are printed.")] = 10,
) -> None:
    """What drives each class over a whole dataset: its words with intervals, mean maps, samples to look at.

    Writes `DIR/summary/report.html`, and the tables beside it as parquet.

    **Example**

    `whence summarize why`
    """
    with guarded():
        found = summed(directory, min_count)
        for group in found.groups():
            method, name = group
            for against in (False, True):
                rows = found.top(group, top, against)
                if rows:
                    typer.echo(f"{'against' if against else 'for'} {name} ({method})")
                for row in rows:
                    told = f"{row['mean']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g})"
                    typer.echo(f"  {row['word']:<20} {told:<32} {row['count']:,} samples")
        typer.echo(f"whence: wrote {directory / 'summary' / 'report.html'}", err=True)
