"""The columns of a row: one per sample and method. They are documented in ``docs/run.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .._utils.optional_imports import need
from ..explanations.explanation import Explanation
from ..results.input_origin import TextOrigin
from .dataset_parts import JobSample

Row = dict[str, Any]


def schema() -> Any:
    """Return the Arrow schema."""
    arrow = need("pyarrow", "runs over datasets", "data")
    word = arrow.struct([("text", arrow.string()), ("score", arrow.float32())])
    span = arrow.struct([("start", arrow.int32()), ("end", arrow.int32()), ("part", arrow.int8())])
    types = {
        "id": arrow.string(), "input": arrow.string(), "second": arrow.string(), "label": arrow.string(),
        "tokens": arrow.list_(arrow.string()), "offsets": arrow.list_(span), "scores": arrow.list_(arrow.float32()),
        "words": arrow.list_(word), "truncated": arrow.bool_(),
        "map": arrow.list_(arrow.float16()), "height": arrow.int32(), "width": arrow.int32(), "scale": arrow.float32(),
        "prediction": arrow.string(), "prediction_index": arrow.int64(), "probability": arrow.float32(),
        "target": arrow.string(), "target_index": arrow.int64(), "target_probability": arrow.float32(),
        "value": arrow.float32(), "kept": arrow.float32(),
        "method": arrow.string(), "options": arrow.string(), "model": arrow.string(), "whence": arrow.string(),
        "error": arrow.string(),
    }  # fmt: skip
    return arrow.schema(list(types.items()))


def sample_columns(sample: JobSample) -> Row:
    """Return the columns that identify a sample."""
    texts = list(sample.input) if isinstance(sample.input, tuple) else [sample.input]
    if isinstance(sample.input, dict):
        texts = [sample.input.get("image"), sample.input.get("text")]
    inputs = [str(t) if isinstance(t, str | Path) else None for t in (*texts, None)[:2]]
    label = None if sample.label is None else str(sample.label)
    return {"id": sample.id, "input": inputs[0], "second": inputs[1], "label": label, "error": sample.error}


def explanation_columns(e: Explanation) -> Row:
    """Return the columns of an explanation (a batch of one)."""
    row: Row = {
        "scores": e.scores[0].float().numpy(), "value": float(e.value[0]), "target": e.target_names[0],
        "truncated": False,
    }  # fmt: skip
    probabilities = e.probabilities
    for name, index in (("prediction", e.prediction), ("target", e.target)):
        if index is not None:
            row[f"{name}_index"] = int(index[0])
        if index is not None and probabilities is not None:
            row["probability" if name == "prediction" else "target_probability"] = float(
                probabilities[0, int(index[0])]
            )
    row["prediction"] = e.prediction_names[0] if e.prediction_names else None
    if e.ledger is not None and e.ledger.sums.shape[1]:
        row["kept"] = float(e.ledger.sums[0, 0] / e.ledger.total[0])
    text = next((o for o in (e.origins[0].values() if e.origins else ()) if isinstance(o, TextOrigin)), None)
    if text is not None:
        length = len(text.tokens)
        row |= {
            "tokens": list(text.tokens), "scores": row["scores"][:length], "truncated": bool(text.unread),
            "offsets": [None if s is None else {"start": s.start, "end": s.end, "part": s.part} for s in text.spans],
            "words": [{"text": w.text, "score": w.score} for w in e.words[0]],
        }  # fmt: skip
    if e.grid is not None:
        patches = e.patches[0].float()
        scale = float(patches.abs().max()) or 1.0
        row |= {"map": (patches / scale).flatten().numpy().astype(np.float16), "scale": scale}
        row |= {"height": e.grid[0], "width": e.grid[1]}
    return row
