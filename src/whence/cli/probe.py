"""``whence probe``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from .._utils.atomic_files import is_file
from ..bias_probe.probe import probe as run_probe
from ..datasets import load as load_dataset
from ..errors import InputError
from . import options
from .exit_codes import report_errors
from .parsing import parse_options, parse_pairs, parse_target


def probe(
    templates: Annotated[
        list[str],
        typer.Argument(
            metavar="TEMPLATES|DATASET...",
            help="Texts with a slot, files of them (one a line), or a dataset: a path, or a name (sst2, imdb, ...).",
        ),
    ],
    model: options.Model,
    terms: Annotated[
        list[str],
        typer.Option(help="`a,b,c`, or several times `group=a,b,c`; or a file of such lines, or of JSON."),
    ],
    slot: Annotated[str, typer.Option(help="What marks the gap in a template.")] = "{name}",
    neutral: Annotated[
        str | None,
        typer.Option(
            help="The word to compare with. Default: the mask token (of a model that fills it in: the unknown one)."
        ),
    ] = None,
    target: options.Target = None,
    method: options.Method = options.DEFAULT_METHOD,
    option: options.MethodOptions = None,
    out: options.ResultsDirectory = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many templates, the first ones. Default: all.")] = None,
    min_count: Annotated[int, typer.Option(min=1, help="With fewer templates results are marked.")] = 5,
    data: options.DataRoot = None,
    split: options.Split = None,
    column: options.Columns = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts explained together.")] = 16,
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    truncate: options.Truncate = False,
) -> None:
    """Swap names or terms in texts, and say how the prediction and its explanation change.

    **Examples**

    `whence probe "{name} gave a moving performance." --model my-model --terms women=Anna,Emma --terms men=John,Paul`

    `whence probe sst2 --data datasets --split train --model my-model --terms names.txt --out names`
    """
    with report_errors():
        groups = parse_terms(terms)
        texts = [_read_templates(word, slot, data, split, column) for word in templates]
        explainer = options.load_explainer(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        result = run_probe(
            explainer, chain.from_iterable(texts), groups, parse_target(target), method, slot=slot, neutral=neutral,
            limit=limit, min_count=min_count, batch_size=batch_size, **parse_options(option),
        )  # fmt: skip
        typer.echo(result.table())
        if out is not None:
            written = result.save(out)
            typer.echo(f"whence: wrote {', '.join(map(str, written))}", err=True)


def _read_templates(
    word: str, slot: str, data: Path | None, split: str | None, column: list[str] | None
) -> Iterable[Any]:
    """Return a template, or the texts of a file or dataset."""
    if slot in word and not is_file(word):
        return [word]
    return load_dataset(word, root=data, split=split, **parse_pairs(column))


def parse_terms(words: Sequence[str]) -> dict[str, list[str]]:
    """Return terms by group, from words or files: ``group=a,b``, or ``a,b`` where each term is its own group."""
    groups: dict[str, list[str]] = {}
    for word in words:
        for group, terms in _read_terms(Path(word)) if is_file(word) else [_parse_group(word)]:
            for term in terms:
                groups.setdefault(group or term, []).append(term)
    return groups


def _parse_group(line: str) -> tuple[str, list[str]]:
    group, _, terms = line.rpartition("=")
    return group.strip(), [term.strip() for term in terms.split(",") if term.strip()]


def _read_terms(path: Path) -> list[tuple[str, list[str]]]:
    """Return the groups of a file: one per line, or JSON with an object of lists or one list."""
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix.lower() != ".json":
            return [_parse_group(line) for line in content.splitlines()]
        parsed = json.loads(content)
        groups = parsed if isinstance(parsed, dict) else {"": parsed}
        return [(name, list(map(str, terms))) for name, terms in groups.items()]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"'{path}' has no terms that can be read ({error}): write group=a,b,c a line, or JSON of groups and terms."
        ) from error
