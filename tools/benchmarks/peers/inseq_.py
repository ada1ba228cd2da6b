"""Inseq: one more token of a language model, by gradients, integrated gradients and attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from tools.benchmarks.peers.cases import Case
from tools.benchmarks.peers.comparison import Comparison, Scores

STEPS = 32


def attribution(method: str, **options: Any) -> Callable[[Case], Scores]:
    """It takes the text before and after the token is added, and calls the tokenizer."""

    def theirs(case: Case) -> Scores:
        import inseq

        model = copy.deepcopy(case.model)  # Inseq puts a module of its own in place of the embeddings
        if method == "attention":
            model.set_attn_implementation("eager")  # the only one that gives its attention away
        made = inseq.load_model(model, method, tokenizer=case.tokenizer)
        longer = f"{case.text} {case.tokenizer.convert_ids_to_tokens(case.target)}"

        def run() -> torch.Tensor:
            found = made.attribute(case.text, longer, show_progress=False, **options).sequence_attributions[0]
            return found.target_attributions[: case.inputs["input_ids"].shape[1], 0].flatten(1)

        return run

    return theirs


def summed(method: str, **options: Any) -> Callable[[Case], Scores]:
    """Scores of features, summed for each token."""
    made = attribution(method, attributed_fn="logit", **options)

    def theirs(case: Case) -> Scores:
        run = made(case)
        return lambda: run().sum(-1)

    return theirs


def last_attention(case: Case) -> Scores:
    """``[tokens, layers, heads]`` of attention: the mean over heads of the last layer."""
    run, heads = attribution("attention")(case), case.model.config.num_attention_heads
    return lambda: run()[:, -heads:].mean(-1)


def from_unknown(case: Case) -> dict[str, Any]:
    """Integrated gradients on the same line."""
    begin = torch.full_like(case.inputs["input_ids"], case.tokenizer.unk_token_id)
    return {"at": "token", "steps": STEPS, "baseline": case.model.get_input_embeddings()(begin).detach()}


COMPARISONS = [
    Comparison(
        "inseq",
        "input_x_gradient",
        "decoder",
        summed("input_x_gradient"),
        "gradient-x-input",
        lambda case: {"at": "token"},
        note="of the logit",
    ),
    Comparison(
        "inseq",
        f"integrated_gradients, {STEPS} steps",
        "decoder",
        summed("integrated_gradients", n_steps=STEPS),
        "integrated-gradients",
        from_unknown,
        note="of the logit, from the embedding of `<unk>`; all steps as one batch, as in Captum",
    ),
    Comparison(
        "inseq",
        "attention",
        "decoder",
        last_attention,
        "attention",
        note="Inseq gives all layers and heads; here the last layer, the mean over heads",
    ),
]
