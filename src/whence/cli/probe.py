"""``whence probe``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from .._utils.atomic_files import is_file
from ..bias_probe.probe import probe as probed
from ..datasets import load as load_dataset
from ..errors import InputError
from .evaluate import pairs
from .options import (
    Device,
    Dtype,
    Model,
    Option,
    Pickle,
    Remote,
    Target,
    Truncate,
    guarded,
    load,
    options_of,
    target_of,
)


def probe(
    templates: Annotated[
        list[str],
        typer.Argument(
            metavar="TEMPLATES|DATASET...",
            help="Texts with a slot, files of them (one a line), or a dataset: a path, or a name (sst2, imdb, ...).",
        ),
    ],
    model: Model,
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
    target: Target = None,
    method: Annotated[str, typer.Option(help="A name from `whence methods`.")] = "conservative-lrp",
    option: Option = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the results. Default: print the table only.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many templates, the first ones. Default: all.")] = None,
    min_count: Annotated[int, typer.Option(min=1, help="With fewer templates results are marked.")] = 5,
    data: Annotated[Path | None, typer.Option(help="Directory of the named datasets. Default: $WHENCE_DATA.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of the dataset.")] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Of a file: text=..., label=..., id=..., if not found by name.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts explained together.")] = 16,
    device: Device = None,
    dtype: Dtype = "float32",
    trust_remote_code: Remote = False,
    allow_pickle: Pickle = False,
    truncate: Truncate = False,
) -> None:
    """Swap names or terms in texts, and say how the prediction and its explanation change.

    **Examples**

    `whence probe "{name} gave a moving performance." --model my-model --terms women=Anna,Emma --terms men=John,Paul`

    `whence probe sst2 --data datasets --split train --model my-model --terms names.txt --out names`
    """
    with guarded():
        groups = terms_of(terms)

        def opened(word: str) -> Iterable[Any]:
            if slot in word and not is_file(word):
                return [word]
            return load_dataset(word, root=data, split=split, **pairs(column))

        texts = [opened(word) for word in templates]
        explainer = load(model, device, dtype, trust_remote_code, allow_pickle, truncate)
        found = probed(
            explainer, chain.from_iterable(texts), groups, target_of(target), method, slot=slot, neutral=neutral,
            limit=limit, min_count=min_count, batch_size=batch_size, **options_of(option),
        )  # fmt: skip
        typer.echo(found.table())
        if out is not None:
            written = found.save(out)
            typer.echo(f"whence: wrote {', '.join(map(str, written))}", err=True)


def terms_of(words: Sequence[str]) -> dict[str, list[str]]:
    """Terms by group: ``group=a,b``, or ``a,b``, each a group of its own; as they are, or in files."""
    out: dict[str, list[str]] = {}
    for word in words:
        for group, own in _listed(Path(word)) if is_file(word) else [_entry(word)]:
            for term in own:
                out.setdefault(group or term, []).append(term)
    return out


def _entry(line: str) -> tuple[str, list[str]]:
    group, _, listed = line.rpartition("=")
    return group.strip(), [term.strip() for term in listed.split(",") if term.strip()]


def _listed(path: Path) -> list[tuple[str, list[str]]]:
    """The groups of a file: an entry a line, or JSON, an object of lists or one list."""
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix.lower() != ".json":
            return [_entry(line) for line in content.splitlines()]
        found = json.loads(content)
        return [
            (name, list(map(str, own))) for name, own in (found if isinstance(found, dict) else {"": found}).items()
        ]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"'{path}' has no terms that can be read ({error}): write group=a,b,c a line, or JSON of groups and terms."
        ) from error
