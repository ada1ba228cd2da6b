"""Datasets by name, from a directory of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import FileError, InputError
from .archives import digits, parallel_lines, reviews, trimap
from .dataset import Dataset
from .formats import open_path, read
from .item import Item


@dataclass(frozen=True)
class DatasetSpec:
    """The specification of a dataset: its files, labels and source.

    Attributes:
        read: reads the samples of a split from its first file and its name.
        splits: the first file of each, as a pattern; the last split is the one that results are reported on.
        labels: names of the classes.
        source: where it was published.
        licence: under which terms.
    """

    read: Callable[[Path, str], Iterator[Item]]
    splits: Mapping[str, str]
    labels: tuple[str, ...] | None
    source: str
    licence: str


def load(
    name: str | Path, *, root: str | Path | None = None, split: str | None = None, **columns: str | Sequence[str] | None
) -> Dataset:
    """Load a dataset by its name, or any file or directory that :func:`whence.datasets.read` takes.

    Args:
        name: one of :data:`NAMED`, or a path; ``./sst2`` is a path even if a dataset has the same name.
        root: the directory of the named datasets; by default the environment variable ``WHENCE_DATA``.
        split: for a named dataset by default the one that results are reported on.
        columns: for a path, ``text``, ``label``, ``image`` and ``id``, as for :func:`whence.datasets.read`.

    Example:
        >>> dataset = load("sst2", root="datasets")
        >>> dataset.split, dataset.labels
        ('dev', ('negative', 'positive'))
        >>> some = load("reviews.csv", text="comment").sample(100)
    """
    named = NAMED.get(str(name))
    if named is None:
        return _path(name, split, columns)
    if columns:
        raise InputError(f"The columns of '{name}' are known; {', '.join(columns)} can be given for a path only.")
    split = list(named.splits)[-1] if split is None else split
    if split not in named.splits:
        raise InputError(f"'{name}' has the splits {', '.join(named.splits)}, not '{split}'.")
    items = partial(named.read, _found(str(name), named, root, named.splits[split]), split)
    return Dataset(str(name), split, named.labels, named.source, named.licence, items)


def _path(name: str | Path, split: str | None, columns: Mapping[str, Any]) -> Dataset:
    unknown = sorted(columns.keys() - {"text", "label", "image", "id"})
    if unknown:
        raise InputError(f"'{unknown[0]}' is no kind of column: give text, label, image or id.")
    if not Path(name).expanduser().exists():
        raise FileError(f"'{name}' is neither a file or directory nor the name of a dataset: {', '.join(NAMED)}.")
    return open_path(name, split=split, **columns)


def _found(name: str, named: DatasetSpec, root: str | Path | None, pattern: str) -> Path:
    """Return the only file that matches a pattern."""
    given = root or os.environ.get("WHENCE_DATA")
    found = sorted(Path(given).expanduser().glob(pattern)) if given else []
    if len(found) > 1:
        raise FileError(f"'{found[0]}' and '{found[1]}' may both be '{name}': keep one of them there.")
    if not found:
        where = f"is not in '{given}'" if given else "is looked for in a directory of datasets, and none was given"
        files = ", ".join(dict.fromkeys(named.splits.values()))
        raise FileError(
            f"'{name}' {where}. Get it ({named.source}), put it there as {files}, and give the directory: root=..., "
            "--data on the command line, or the environment variable WHENCE_DATA."
        )
    return found[0]


# -- readers -----------------------------------------------------------------------------------------------------------

#: quotes and dashes of cp1252 that were decoded as control characters
MISREAD = {code: bytes([code]).decode("cp1252", "ignore") for code in range(0x80, 0xA0)}


def _sentences(path: Path, split: str) -> Iterator[Item]:
    return map(partial(_classified, ("negative", "positive")), read(path))


def _classified(names: Sequence[str], item: Item) -> Item:
    """Return the item with its text stripped, and its label as a class name."""
    label = names[item.label] if isinstance(item.label, int) else item.label
    return replace(item, input=item.input.strip(), label=label)


def _bace(path: Path, split: str) -> Iterator[Item]:
    """Split by a hash of the SMILES: eight tenths train, one validation, one test."""
    molecules = read(path, text="smiles", label="Class", id="CID")
    return filter(partial(_in_part, split), map(partial(_classified, ("inactive", "active")), molecules))


def _in_part(split: str, item: Item) -> bool:
    part = int.from_bytes(hashlib.sha256(item.input.encode()).digest()[:8], "big") % 10
    return split == {8: "val", 9: "test"}.get(part, "train")


def _mnist(path: Path, split: str) -> Iterator[Item]:
    return digits(path, path.with_name(path.name.replace("images-idx3", "labels-idx1")))


def _tweets(path: Path, split: str, names: Sequence[str]) -> Iterator[Item]:
    return parallel_lines(path, path.with_name(f"{split}_labels.txt"), names)


def _meld(path: Path, split: str) -> Iterator[Item]:
    return map(_fix_encoding, read(path, text="Utterance", label="Sentiment", id=""))


def _fix_encoding(item: Item) -> Item:
    return replace(item, input=item.input.translate(MISREAD))


def _pets(path: Path, split: str) -> Iterator[Item]:
    rows = read(path, image="name", label="imagenet_index", id="name")
    return map(partial(_pet, path.parent), rows)


def _pet(directory: Path, item: Item) -> Item:
    mask = partial(trimap, directory / "masks" / f"{item.id}.png")
    return replace(item, input=str(directory / "images" / f"{item.id}.jpg"), mask=mask)


# -- specifications ----------------------------------------------------------------------------------------------------


def _tweeteval(task: str, splits: Sequence[str], labels: tuple[str, ...], from_: str) -> DatasetSpec:
    files = {split: f"tweeteval/{task}/{split}_text.txt" for split in splits}
    source = f"TweetEval (Barbieri et al., Findings of EMNLP 2020), task {task}: {from_}"
    return DatasetSpec(partial(_tweets, names=labels), files, labels, source, "terms of the task and of Twitter")


NAMED: dict[str, DatasetSpec] = {
    "sst2": DatasetSpec(
        _sentences,
        {"train": "sst2/train.tsv*", "heldout": "sst2/heldout_from_train.tsv*", "dev": "sst2/dev.tsv*"},
        ("negative", "positive"),
        "SST-2 of GLUE (Socher et al., EMNLP 2013)",
        "research use",
    ),
    "imdb": DatasetSpec(
        _sentences,
        {split: f"imdb/{split}*.jsonl*" for split in ("train", "test")},
        ("negative", "positive"),
        "Large Movie Review Dataset (Maas et al., ACL 2011)",
        "research use",
    ),
    "bace": DatasetSpec(
        _bace,
        dict.fromkeys(("train", "val", "test"), "moleculenet/bace.csv"),
        ("inactive", "active"),
        "BACE of MoleculeNet (Wu et al., Chemical Science 2018)",
        "MIT",
    ),
    "mnist": DatasetSpec(
        _mnist,
        {"train": "mnist/train-images-idx3-ubyte.gz", "test": "mnist/t10k-images-idx3-ubyte.gz"},
        tuple("0123456789"),
        "MNIST (LeCun et al., 1998)",
        "CC BY-SA 3.0",
    ),
    "tweeteval-emotion": _tweeteval(
        "emotion", ("train", "val", "test"), ("anger", "joy", "optimism", "sadness"), "Mohammad et al., SemEval 2018"
    ),
    "tweeteval-hate": _tweeteval("hate", ("train", "val", "test"), ("not-hate", "hate"), "Basile et al., SemEval 2019"),
    "tweeteval-sentiment": _tweeteval(
        "sentiment", ("val", "test"), ("negative", "neutral", "positive"), "Rosenthal et al., SemEval 2017"
    ),
    "meld-sentiment": DatasetSpec(
        _meld,
        {split: f"meld/{split}_sent_emo.csv" for split in ("train", "dev", "test")},
        ("negative", "neutral", "positive"),
        "MELD (Poria et al., ACL 2019)",
        "GPL-3.0",
    ),
    "eraser-movies": DatasetSpec(
        reviews,
        dict.fromkeys(("train", "val", "test"), "*movies.tar.gz"),
        ("NEG", "POS"),
        "Movie Reviews of ERASER (DeYoung et al., ACL 2020; Zaidan & Eisner, EMNLP 2008)",
        "research use",
    ),
    "pets": DatasetSpec(
        _pets,
        {"all": "pets_seg/index.csv"},
        None,
        "Oxford-IIIT Pet (Parkhi et al., CVPR 2012), breeds that are classes of ImageNet, 256x256, with an index of "
        "name and imagenet_index, folders images and masks",
        "CC BY-SA 4.0",
    ),
}
