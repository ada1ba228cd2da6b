"""The shared directory, and the golden cases: what published code answers, and the models that it was asked of."""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "goldens" / "cases"
SHARED = Path(os.environ.get("WHENCE_SHARED", ROOT.parent / "shared"))

# A float32 run is one draw of rounding errors, and relevance divides by sums that come near to zero, so the errors have
# a heavy tail. The published code's own error (its float32 run against its float64 run) is known from a single draw for
# each array. A correct implementation that rounds elsewhere (other kernels, another order of sums) draws again: up to
# 3.3 times as much is seen, so ten times is allowed, which is at most 6e-3. The rules themselves are held to EXACT in
# float64. The floor is about 80 float32 roundings.
FLOAT32_FACTOR, FLOAT32_FLOOR = 10, 1e-5


def shared(*parts):
    """A file of the shared directory; the test is skipped where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"The shared file {'/'.join(parts)} is absent (set WHENCE_SHARED to the directory that holds it).")
    return path


@functools.cache
def arrays(path):
    """The arrays of an npz file, by name."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def golden(case, variant="", dtype="float64"):
    """Final maps: the compact copy in the repository."""
    return arrays(GOLDEN / case / f"golden_{dtype}{variant and '_' + variant}.npz")


def full_golden(case, variant="", dtype="float64"):
    """Everything, arrays inside the model included: the shared directory."""
    return arrays(shared("golden", case, f"golden_{dtype}{variant and '_' + variant}.npz"))


def float32_tolerance(case, variant, name):
    """How far a float32 map may be from the float64 one."""
    noise = json.loads((GOLDEN / "float32_noise.json").read_text())
    own = noise[f"{case}/golden_float64{variant and '_' + variant}.npz"].get(name, 0.0)
    return max(FLOAT32_FACTOR * own, FLOAT32_FLOOR)


def load_vit(attn_implementation="sdpa", dtype=torch.float64):
    """The ViT of cases 01 and 03a."""
    return load("ViTForImageClassification", "01_cvpr21_vit", attn_implementation, dtype)


def load_bert(attn_implementation="sdpa", dtype=torch.float64):
    """The BERT of cases 02 and 03b."""
    return load("BertForSequenceClassification", "02_cvpr21_bert", attn_implementation, dtype)


def load_attention_only_bert(attn_implementation="sdpa", dtype=torch.float64):
    """The model of case 04, as a BERT whose feed-forward layers are zero."""
    return load("BertForSequenceClassification", "04_icml22_ali", attn_implementation, dtype)


@functools.cache  # an explanation leaves the model as it was
def load(architecture, case, attn_implementation="sdpa", dtype=torch.float64):
    """The model of a golden case."""
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, architecture).from_pretrained(
        GOLDEN / case / "hf", attn_implementation=attn_implementation, dtype=dtype
    )
    return model.eval()
