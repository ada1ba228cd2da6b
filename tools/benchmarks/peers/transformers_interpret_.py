"""Transformers Interpret: integrated gradients of a text classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tools.benchmarks.peers.cases import Case
from tools.benchmarks.peers.comparison import Comparison, Scores

STEPS = 50  # its default


def explainer(case: Case) -> Scores:
    """It takes the text itself, and calls the tokenizer."""
    from transformers_interpret import SequenceClassificationExplainer

    made = SequenceClassificationExplainer(case.model, case.tokenizer)
    return lambda: torch.tensor([score for _, score in made(case.text, index=case.target, n_steps=STEPS)])


def same_line(case: Case) -> dict[str, Any]:
    """It explains the probability, from padding between [CLS] and [SEP]."""

    def probability(outputs: Any) -> Tensor:
        return outputs.logits.softmax(-1)[:, case.target]

    begin = torch.full_like(case.inputs["input_ids"], case.tokenizer.pad_token_id)
    begin[:, 0], begin[:, -1] = case.tokenizer.cls_token_id, case.tokenizer.sep_token_id
    baseline = case.model.get_input_embeddings()(begin).detach()
    return {"target": probability, "at": "token", "steps": STEPS, "baseline": baseline}


COMPARISONS = [
    Comparison(
        "transformers-interpret",
        f"SequenceClassificationExplainer, {STEPS} steps",
        "bert",
        explainer,
        "integrated-gradients",
        same_line,
        note="of the probability, from padding between [CLS] and [SEP]; our scores divided by their length, as its are",
        finish=lambda scores: scores / scores.norm(),
    )
]
