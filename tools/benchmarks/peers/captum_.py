"""Captum: gradients and integrated gradients of embeddings and pixels, and occlusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tools.benchmarks.peers.cases import Case, Logits
from tools.benchmarks.peers.comparison import Comparison, Scores

STEPS = 32
PATCH = 16
AT_ONCE = "Captum runs all steps as one batch, Whence as many as make a thousand rows"


def over_features(scores: Tensor) -> Tensor:
    """``[1, tokens, features]`` to ``[tokens]``."""
    return scores.sum(-1)[0]


def over_channels(scores: Tensor) -> Tensor:
    """``[1, channels, height, width]`` to ``[height, width]``."""
    return scores.sum(1)[0]


def word_embeddings(case: Case) -> nn.Module:
    """The table of the words' embeddings."""
    return case.model.get_input_embeddings()


def padding(case: Case) -> Tensor:
    """``[1, tokens]``: padding in place of every word."""
    return torch.full_like(case.inputs["input_ids"], case.tokenizer.pad_token_id)


def gradient_x_words(case: Case) -> Scores:
    """Of the words' embeddings."""
    return gradient_x_activation(case, word_embeddings(case))


def gradient_x_embeddings(case: Case) -> Scores:
    """Of all that enters BERT's first block."""
    return gradient_x_activation(case, case.model.bert.embeddings)


def gradient_x_activation(case: Case, layer: nn.Module) -> Scores:
    """Of what a layer returns."""
    from captum.attr import LayerGradientXActivation

    made = LayerGradientXActivation(Logits(case.model, *case.inputs), layer)
    return lambda: over_features(made.attribute(tuple(case.inputs.values()), target=case.target))


def integrated_words(case: Case) -> Scores:
    """Along the line from padding to the words."""
    from captum.attr import LayerIntegratedGradients

    names = list(case.inputs)
    made = LayerIntegratedGradients(Logits(case.model, *names), word_embeddings(case))
    others = tuple(case.inputs[name] for name in names[1:])
    return lambda: over_features(
        made.attribute(
            case.inputs["input_ids"],
            baselines=padding(case),
            additional_forward_args=others,
            target=case.target,
            n_steps=STEPS,
        )
    )


def of_pixels(name: str, **options: Any) -> Callable[[Case], Scores]:
    """A method of Captum that explains pixels."""

    def theirs(case: Case) -> Scores:
        import captum.attr

        made = getattr(captum.attr, name)(Logits(case.model, *case.inputs))
        return lambda: over_channels(made.attribute(case.pixels, target=case.target, **options))

    return theirs


def from_padding(case: Case) -> dict[str, Any]:
    """Integrated gradients on the same line."""
    begin = word_embeddings(case)(padding(case)).detach()
    return {"at": "token", "steps": STEPS, "baseline": begin}


COMPARISONS = [
    Comparison(
        "captum",
        "LayerGradientXActivation, word embeddings",
        "bert",
        gradient_x_words,
        "gradient-x-input",
        lambda case: {"at": "token"},
    ),
    Comparison(
        "captum",
        "LayerGradientXActivation, all embeddings",
        "bert",
        gradient_x_embeddings,
        "gradient-x-input",
    ),
    Comparison(
        "captum",
        f"LayerIntegratedGradients, {STEPS} steps",
        "bert",
        integrated_words,
        "integrated-gradients",
        from_padding,
        note=f"from the embedding of padding; {AT_ONCE}",
    ),
    Comparison(
        "captum",
        "LayerGradientXActivation, all embeddings",
        "bert_base",
        gradient_x_embeddings,
        "gradient-x-input",
    ),
    Comparison(
        "captum",
        f"LayerIntegratedGradients, {STEPS} steps",
        "bert_base",
        integrated_words,
        "integrated-gradients",
        from_padding,
        note=f"from the embedding of padding; {AT_ONCE}",
    ),
    Comparison(
        "captum",
        "LayerGradientXActivation, word embeddings",
        "decoder",
        gradient_x_words,
        "gradient-x-input",
        lambda case: {"at": "token"},
    ),
    Comparison(
        "captum",
        f"LayerIntegratedGradients, {STEPS} steps",
        "decoder",
        integrated_words,
        "integrated-gradients",
        from_padding,
        note=f"from the embedding of padding; {AT_ONCE}",
    ),
    Comparison(
        "captum",
        "InputXGradient",
        "vit",
        of_pixels("InputXGradient"),
        "gradient-x-input",
        lambda case: {"at": "pixel"},
    ),
    Comparison(
        "captum",
        "Saliency",
        "vit",
        of_pixels("Saliency"),
        "saliency",
        lambda case: {"at": "pixel", "norm": "l1"},
        note="absolute values summed over channels",
    ),
    Comparison(
        "captum",
        f"IntegratedGradients, {STEPS} steps",
        "vit",
        of_pixels("IntegratedGradients", n_steps=STEPS),
        "integrated-gradients",
        lambda case: {"at": "pixel", "steps": STEPS},
        note=f"from zero; {AT_ONCE}",
    ),
    Comparison(
        "captum",
        f"Occlusion, windows of {PATCH} by {PATCH}",
        "vit",
        of_pixels("Occlusion", sliding_window_shapes=(3, PATCH, PATCH), strides=(3, PATCH, PATCH)),
        "occlusion",
        lambda case: {"at": "pixel"},
        finish=lambda scores: scores * 3 * PATCH**2,
        note="Whence runs Captum here; its scores times 3 · 16², as Captum gives a patch's score to each of its values",
    ),
]
