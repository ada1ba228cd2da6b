"""Attach the user's own input to an explanation: remove padding, and give each stream its origin."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from ..errors import WhenceWarning
from ..explanations.explanation import Explanation
from ..inputs.patch_layout import PatchLayout
from ..inputs.sample import Sample
from ..inputs.sentence_encoder import SECOND, joined
from ..results.input_origin import ImageOrigin, Origin, TextOrigin


def attach(one: Explanation, sample: Sample) -> Explanation:
    """Return the explanation of one sample without padding, with its input."""
    if sample.choices:
        one, sample = _of_choice(one, sample)
    own = own_tokens(one)
    one = _without_padding(one, sample, own)
    if sample.layout is not None and "image" in one.streams:
        one = with_layout(one, sample.layout)
    streams = dict(one.streams)
    origins: dict[str, Origin] = {}
    for kind, origin in _origins(sample, one).items():
        if kind not in streams and kind in ("audio", "series"):  # the model's only input
            main = next(iter(streams))
            streams = {kind if name == main else name: s for name, s in streams.items()}
        if kind not in streams:
            continue
        if isinstance(origin, TextOrigin) and kind == next(iter(streams)):
            origin = origin.after(own)
        if _fits(origin, one, streams[kind].shape[1]):
            origins[kind] = origin
    first, second = origins.get("text"), origins.get(SECOND)
    if isinstance(first, TextOrigin) and isinstance(second, TextOrigin):
        return _with_joined_texts(replace(one, streams=streams), first, second)
    one = replace(one, streams=streams, origins=(origins,) if origins else ())
    text = origins.get(next(iter(streams)))
    if isinstance(text, TextOrigin):
        special = one.special.clone()
        special[0, : len(text.tokens)] |= torch.tensor([s is None for s in text.spans], device=special.device)
        one = replace(one, special=special)
    return one


def _fits(origin: Origin, one: Explanation, positions: int) -> bool:
    """Return whether the scores of some positions can be put to an input; warn of a text with other tokens."""
    if isinstance(origin, TextOrigin) and len(origin.tokens) != positions:
        warnings.warn(
            f"The tokenizer gives {len(origin.tokens)} tokens and the model scores {positions} positions (it merges or "
            "adds some), so scores cannot be put to words.",
            WhenceWarning,
            stacklevel=3,
        )
        return False
    return not (isinstance(origin, ImageOrigin) and one.grid is None)


def _of_choice(one: Explanation, sample: Sample) -> tuple[Explanation, Sample]:
    """Return the explanation of a choice with the texts of the choices as names, and its own text as the input."""
    texts = {i: origin.texts[-1] for i, origin in enumerate(sample.choices)}
    chosen = 0 if one.target is None else int(one.target[0])
    predicted = () if one.prediction is None else (texts[int(one.prediction[0])],)
    named = replace(one, labels=texts, target_names=(texts[chosen],), prediction_names=predicted)
    return named, replace(sample, origins={"text": sample.choices[chosen]})


def _with_joined_texts(one: Explanation, first: TextOrigin, second: TextOrigin) -> Explanation:
    """Return the explanation of two texts, each in a stream of its own, as one of a pair of texts in one stream."""
    origin, scores = joined(one, first, second)
    streams = {"text": scores, **{name: s for name, s in one.streams.items() if name not in ("text", SECOND)}}
    special = torch.tensor([[span is None for span in origin.spans]], device=scores.device)
    inside: dict[str, Any] = {"layers": None, "branches": None, "pairs": None}  # of the first text alone
    return replace(one, scores=scores, special=special, streams=streams, origins=({"text": origin},), **inside)


def with_layout(one: Explanation, layout: PatchLayout) -> Explanation:
    """Return an explanation with the patches of its image on one grid, in the image's own geometry."""
    scores = one.streams["image"]
    if layout.order is not None and layout.grid is not None and scores.shape[1] == len(layout.order):
        patches, start, grid = scores[:, layout.order].unflatten(1, layout.grid), 0, layout.grid
    elif one.grid is not None and len(layout.tiles) > 1 and one.grid[0] % len(layout.tiles) == 0:
        start = one.patch_start
        tiles = scores[:, start : start + one.grid[0] * one.grid[1]].unflatten(1, (len(layout.tiles), -1, one.grid[1]))
        patches = layout.on_one_grid(tiles)
        grid = patches.shape[1], patches.shape[2]
    else:
        return one
    laid = torch.cat([scores[:, :start], patches.flatten(1)], 1)
    main = next(iter(one.streams)) == "image" and one.scores.shape == scores.shape
    changes: dict[str, Any] = {"streams": {**one.streams, "image": laid}, "grid": grid, "patch_start": start}
    if main:
        special = torch.zeros_like(laid, dtype=torch.bool)
        special[:, :start] = True
        changes |= {"scores": laid, "special": special, "layers": None, "branches": None, "pairs": None}
    return replace(one, **changes)


def own_tokens(one: Explanation) -> int:
    """Return how many tokens of its own (of a tuned prompt) a model has put before the user's text."""
    text = next(iter(one.streams)) in ("text", "encoder", "decoder")
    given = (~one.special[0]).nonzero()
    return int(given[0]) if text and len(given) else 0


def _without_padding(one: Explanation, sample: Sample, own: int) -> Explanation:
    """Remove the padding that the batch, or the model itself, added on the right."""
    name, main = next(iter(one.streams.items()))
    origin = _origins(sample, one).get(name)
    whole = main.shape == one.scores.shape
    if not isinstance(origin, TextOrigin) or not whole or own + len(origin.tokens) >= main.shape[1]:
        return one
    keep = own + len(origin.tokens)
    if bool((one.scores[:, keep:] != 0).any()):  # it is not padding
        return one
    return replace(
        one,
        scores=one.scores[:, :keep],
        special=one.special[:, :keep],
        streams={**one.streams, name: one.scores[:, :keep]},
        layers=None if one.layers is None else one.layers[:, :, :keep],
        branches=None if one.branches is None else one.branches[..., :keep],
        pairs=None if one.pairs is None else one.pairs[..., :keep, :keep],
    )


def _origins(sample: Sample, one: Explanation) -> dict[str, Origin]:
    """Return the origin of each stream; in an encoder-decoder, the text is the encoder's."""
    split = "text" not in one.streams and "encoder" in one.streams
    return {"encoder" if kind == "text" and split else kind: origin for kind, origin in sample.origins.items()}
