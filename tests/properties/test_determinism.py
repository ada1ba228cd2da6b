"""Same seed, same bits: for every method, twice in one process, and in two processes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import whence
from tools.fuzz.case import case_of

HERE = Path(__file__).resolve().parent
#: more than the quick ones, where chance plays a part
OPTIONS = {
    "kernel-shap": {"samples": 12}, "lime": {"samples": 12}, "smooth-grad": {"samples": 3}, "dave": {"samples": 2},
    "integrated-gradients": {"steps": 3}, "occlusion": {"window": 1},
}  # fmt: skip
CASES = {
    "text": ["padding=right", "depth=2", "places=learned", "dtype=float32", "length=6"],
    "picture": ["reads=pixels", "pool=class", "depth=2", "dtype=float32", "heads=4"],
}


def digest(kind: str, method: str, **more) -> str:
    """A hash of all that an explanation says; of a refusal, its sentence."""
    case = case_of(CASES[kind])
    options = {**whence.list_methods()[method].quick, **OPTIONS.get(method, {}), **more}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            e = whence.explain(case.model(), case.inputs(), method, 1, **options)
    except whence.EngineError:
        raise
    except whence.WhenceError as error:
        return f"refused: {error}"
    parts = [e.logits, *e.streams.values(), *(t for t in (e.layers, e.heads) if t is not None)]
    parts += [] if e.ledger is None else [e.ledger.sums, *(entry.amount for entry in e.ledger.entries)]
    found = hashlib.sha256()
    for tensor in parts:
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def digests() -> dict[str, str]:
    """Of every method, for a text and a picture."""
    torch.set_num_threads(1)
    return {f"{kind} {method}": digest(kind, method) for kind in CASES for method in sorted(whence.list_methods())}


@functools.cache
def here() -> dict[str, str]:
    return digests()


@functools.cache
def elsewhere() -> dict[str, str]:
    """In another process, whose sets and dictionaries of strings are in another order."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, sys.path)])
    made = subprocess.run(
        [sys.executable, "-c", "import json, test_determinism as t; print(json.dumps(t.digests()))"],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "12345"}, capture_output=True, text=True, check=True,
        timeout=600,
    )  # fmt: skip
    found: dict[str, str] = json.loads(made.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("method", sorted(whence.list_methods()))
@pytest.mark.parametrize("kind", CASES)
def test_the_same_question_has_the_same_bits(kind, method):
    torch.manual_seed(len(method))  # what the user does with torch's own generator changes nothing
    assert digest(kind, method) == here()[f"{kind} {method}"]
    assert elsewhere()[f"{kind} {method}"] == here()[f"{kind} {method}"]


@pytest.mark.parametrize("method", ["random", "smooth-grad", "kernel-shap", "dave"])
def test_another_seed_has_other_bits(method):
    kind = "picture" if method == "dave" else "text"
    assert digest(kind, method, seed=1) != digest(kind, method, seed=0) == here()[f"{kind} {method}"]


def test_no_method_refuses_both():
    refused = [name for name, found in here().items() if found.startswith("refused")]
    assert len({name.split()[1] for name in refused}) == len(refused)
    assert refused == ["text dave"]
