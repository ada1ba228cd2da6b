"""``whence run`` and ``whence summarize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..inputs.pretrained import quiet
from ..jobs import Job, Summary
from ..jobs import run as run_job
from ..jobs import summarize as summarize_job
from . import options
from .exit_codes import EXIT_FAILED, announce_resumable, report_errors
from .parsing import parse_names, parse_options, parse_pairs, parse_target


def run(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A path, or a name (sst2, imdb, pets, ...).")],
    model: options.Model,
    out: Annotated[Path, typer.Option(help="Directory of the rows.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="A name from `whence methods`; several with commas. Default: conservative-lrp."),
    ] = None,
    target: options.Target = None,
    option: options.MethodOptions = None,
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
    data: options.DataRoot = None,
    split: options.Split = None,
    column: options.Columns = None,
    allow_failures: Annotated[bool, typer.Option("--allow-failures", help="End with 0 although rows failed.")] = False,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    truncate: options.Truncate = False,
    no_capture: Annotated[
        bool, typer.Option("--no-capture", help="Compute each explanation anew: slower, for comparison.")
    ] = False,
) -> None:
    """Explain every sample of a dataset, into parquet files; stopped in whatever way, it goes on with --resume.

    **Examples**

    `whence run reviews.jsonl --model my-model --out why`

    `whence run photos/ --model google/vit-base-patch16-224 --method generic-attention --out why --resume`

    `whence run sst2 --data datasets --model my-model --out why --engine ray --address auto`
    """  # fmt: skip
    with report_errors():
        quiet()
        with announce_resumable(out, "the same command with --resume"):
            job = run_job(
                dataset, model, parse_names(method) or options.DEFAULT_METHOD, out, target=parse_target(target),
                options=parse_options(option), engine=engine, workers=workers, address=address, cpus=cpus, gpus=gpus,
                resume=resume, limit=limit, batch_size=batch_size, shard_size=shard_size, root=data, split=split,
                columns=parse_pairs(column), device=device, dtype=dtype, trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle, truncate=truncate, capture=not no_capture,
            )  # fmt: skip
        _print_job(job, out, allow_failures)


def _print_job(job: Job, out: Path, allow_failures: bool) -> None:
    """Print what a job did; exit with an error if rows failed and that is not allowed."""
    for message, times in job.warned.most_common():
        typer.echo(f"whence: {message} ({times} times)", err=True)
    rate = f" ({job.new / job.seconds:.3g} a second)" if job.new else ""
    typer.echo(f"whence: {job.samples:,} samples in {out}, {job.failed:,} rows failed{rate}.", err=True)
    if job.failed and not allow_failures:
        typer.echo(
            "whence: their reasons are in the column 'error'; --allow-failures ends with 0 all the same.", err=True
        )
        raise typer.Exit(EXIT_FAILED)


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
    with report_errors():
        summary = summarize_job(directory, min_count)
        for group in summary.groups():
            for against in (False, True):
                _print_top_words(summary, group, top, against)
        typer.echo(f"whence: wrote {directory / 'summary' / 'report.html'}", err=True)


def _print_top_words(summary: Summary, group: tuple[str, str], top: int, against: bool) -> None:
    """Print the words with the most relevance for a class, or against it, with their intervals."""
    method, name = group
    rows = summary.top(group, top, against)
    if rows:
        typer.echo(f"{'against' if against else 'for'} {name} ({method})")
    for row in rows:
        interval = f"{row['mean']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g})"
        typer.echo(f"  {row['word']:<20} {interval:<32} {row['count']:,} samples")
