"""Roll-up of attention maps: what reaches the explained rows through all layers.

Only the rows that the target reads are needed ([CLS], the last token, all rows of a mean), so a few row vectors are
multiplied through the layers from the last to the first, ``v <- v + v A``, instead of a product of square matrices.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import MethodError, ModelError, WhenceWarning
from ..runs.run import Run
from ..tracing.tensor_info import node_of
from .token_mixing import mixing_branches


def has_several_streams(run: Run) -> bool:
    """Return whether some attention is between other tokens than those of the first."""
    tokens = run.tokens
    return any(r.axes[r.query] != tokens or r.axes[r.key] != tokens for r in run.trace.attentions)


def require_attention(run: Run, method: str, *layers: int | None) -> None:
    """Raise an error for a model without attention, with attention inside windows, or for layers out of range."""
    run.check_whole()
    choose_answer(run)
    records = run.trace.attentions
    if run.trace.coverage.opaque:
        raise ModelError(
            f"The model computes '{run.trace.coverage.opaque[0]}' in a kernel of its own, of which nothing can be seen "
            f"and which may be its attention, so '{method}' has no maps to read. Switch to attention in torch itself "
            '(HuggingFace: attn_implementation="sdpa" when the model is loaded); gradient-x-input works as it is.'
        )
    if not records:
        raise ModelError(
            f"The model has no attention that could be seen, so '{method}' has nothing to read. Input-level methods "
            "(conservative-lrp, gradient-x-input) work without attention."
        )
    if not run.boundaries:
        raise ModelError(
            "No input of the model and no residual connection could be followed to its attention, so which tokens the "
            f"maps of '{method}' are of is not known. Give the model its float inputs (inputs_embeds, pixel_values)."
        )
    if run.around:
        raise ModelError(
            "What the model reads goes partly round its attention: through convolutions, by sampling, or in sums that "
            f"are not followed. '{method}' would miss that. Input-level methods (conservative-lrp, gradient-x-input) "
            "work."
        )
    if run.windowed:
        raise ModelError(
            f"{_windows(run)}, which '{method}' does not roll up. Input-level methods (conservative-lrp, "
            "gradient-x-input) work."
        )
    if _has_further_samples(run):
        raise ModelError(
            "The model's blocks work on more samples than it was given: the batch is repeated, padded or joined with "
            f"others on the way. '{method}' would take their attention maps for heads. Input-level methods "
            "(conservative-lrp, gradient-x-input) work."
        )
    if run.trace.pieces or _has_parallel_attentions(run):
        raise ModelError(
            "The model's attention is in pieces that stand side by side (a sliding window, several attentions that are "
            f"added at once), which '{method}' does not roll up. Input-level methods (conservative-lrp, "
            "gradient-x-input) work."
        )
    for layer in layers:
        if layer is not None and not -len(records) <= layer < len(records):
            raise MethodError(f"Layer {layer} is out of range: the model has {len(records)} attention layers.")


def choose_answer(run: Run) -> None:
    """Let maps be those of the answer that the target reads, where each sample has several to choose from."""
    records = [record for record in run.trace.attentions if record.output is not None]
    sources = [node_of(source.tensor).token_axes for source in run.trace.sources if source.name]
    given = {atom for axes in sources for dim in axes for atom in dim} - {*run.tokens, run.trace.batch}
    axis = next((atom for record in records[-1:] for atom in record.own() if atom in given), None)
    if axis is None:
        return
    for record in records:
        record.choose(None, None)
    output = records[-1].output
    assert output is not None
    (gradient,) = run.backward([output], keep=True)
    run.forget()
    found = records[-1].by_head(gradient.abs(), node_of(output).axes)
    if found is None:
        return
    own = records[-1].own()
    apart = found.sum(-1).reshape(len(found), *(atom.size for atom in own)).movedim(1 + own.index(axis), 1)
    read = apart.flatten(2).sum(-1) > 0  # [batch, answers]
    if bool((read.sum(1) > 1).any()):
        raise ModelError(
            f"Each sample has {axis.size} answers to choose from, and the target reads several of them, whose "
            "attention maps are of different tokens. Explain the score of one answer (target=0, 1, ...), not a "
            "difference."
        )
    index = read.to(torch.long).argmax(1)
    for record in records:
        if axis in record.own():
            record.choose(axis, index)


def _has_parallel_attentions(run: Run) -> bool:
    """Return whether two attentions are added to the tokens at once, neither of which reads the other's output."""
    done: set[int] = set()
    for residual in run.trace.residuals:
        own = [run.trace.attentions[i] for i in residual.attentions if i not in done]
        done |= set(residual.attentions)
        nodes = [node_of(r.output) for r in own if r.output is not None]
        if any(b.between(a) is None for a, b in itertools.pairwise(nodes)):
            return True
    return False


def _windows(run: Run) -> str:
    """Return what the first attention reads that the tokens of its block are not."""
    if run.constant_keys:
        return (
            f"The model's attention reads {run.constant_keys} keys beside those of its tokens, the same for every "
            "input (a tuned prefix)"
        )
    return (
        "The model's attention is not between its tokens one by one, but inside windows of them, over merged ones or "
        f"over features ({run.trace.attentions[0].shape[2]} keys)"
    )


def _has_further_samples(run: Run) -> bool:
    """Return whether the residual stream has an axis of repeated or added entries that maps have beside tokens."""
    records = run.trace.attentions
    for residual in run.trace.residuals:
        stream = {atom for dim in node_of(residual.trunk).token_axes for atom in dim if atom.grown}
        if any(stream.intersection(records[i].own()) for i in residual.attentions):
            return True
    return False


def require_maps(run: Run, method: str, *layers: int | None) -> None:
    """Apply :func:`require_attention`, and raise an error if attentions are not all over the same tokens."""
    require_attention(run, method, *layers)
    if has_several_streams(run):
        sizes = sorted({r.shape[1:] for r in run.trace.attentions})
        raise ModelError(
            f"The model's attentions are between different sets of tokens (queries and keys: {sizes}), which "
            f"'{method}' does not roll up. Methods for several streams (generic-attention, rollout) and input-level "
            "methods (conservative-lrp, gradient-x-input) work."
        )


def require_one_text(run: Run, method: str) -> None:
    """Raise an error for a multiple-choice model: a method that also reads token vectors would mix those of choices."""
    if any(record.choice is not None for record in run.trace.attentions):
        raise ModelError(
            f"'{method}' reads the tokens of all choices of this multiple-choice model, and the attention maps of one "
            "of them. Input-level methods (conservative-lrp, gradient-x-input) and rollout work."
        )


def require_local(run: Run, method: str) -> None:
    """Raise an error if tokens mix outside attention, too, which a method that rolls layers up would miss."""
    found = mixing_branches(run)
    if not found:
        return
    first = next(i for i, r in enumerate(run.trace.residuals) if r.attentions)
    inside = any(r is mixer for r in run.trace.residuals[first:] for mixer in found)
    if inside or run.source(None).embedded:
        raise ModelError(
            f"Tokens read one another outside attention, too (in {len(found)} of the model's "
            f"{len(run.trace.residuals)} residual branches: convolutions, recurrences, state spaces), which '{method}' "
            "does not follow. Input-level methods (conservative-lrp, gradient-x-input) work."
        )
    warnings.warn(
        f"Before its first attention the model lets positions read one another (a convolution): '{method}' tells of "
        "positions as they enter that attention, not of the signal before.",
        WhenceWarning,
        stacklevel=3,
    )


def target_rows(gradient: Tensor) -> Tensor:
    """Return weights of the last attention's rows that the target depends on, ``[batch, 1, queries]``, summing to 1.

    Args:
        gradient: ``[batch, heads, queries, keys]``, of the last attention's probabilities.
    """
    return row_weights((gradient != 0).any(-1).any(1).to(gradient.dtype))


def row_weights(read: Tensor) -> Tensor:
    """Return equal weights ``[batch, 1, queries]``, summing to 1, for rows ``[batch, queries]`` that are not 0."""
    rows = (read != 0).to(read.dtype)
    return (rows / rows.sum(-1, keepdim=True).clamp(min=1))[:, None]


def roll_layer(rows: Tensor, A: Tensor, normalise: bool = False) -> Tensor:
    """Return one layer of a roll-up: ``rows . (I + A)``.

    Args:
        rows: ``[batch, rows, queries]``, the product of the layers above.
        A: its map, ``[batch, queries, keys]``.
        normalise: divide each row of ``I + A`` by its sum.

    Returns:
        ``[batch, rows, keys]``.
    """
    if normalise:
        rows = rows / (1 + A.sum(-1))[:, None]
    return rows + rows @ A


def roll_up(maps: Sequence[Tensor], rows: Tensor, normalise: bool = False) -> Tensor:
    """Return ``rows . (I + A_L) ... (I + A_1)``, of all layers' maps, first layer first: see :func:`roll_layer`."""
    for A in reversed(maps):
        rows = roll_layer(rows, A, normalise)
    return rows


def positive_mean(maps: Tensor) -> Tensor:
    """Return ``E_h(.)^+``: the mean over heads of the positive part, ``[batch, queries, keys]``."""
    return maps.clamp(min=0).mean(1)


def attended_pairs(maps: Tensor) -> Tensor:
    """Return ``[batch, 1, queries, keys]``: true where some head attends, false under an attention mask."""
    return (maps > 0).any(1, keepdim=True)


def stack_layers(layers: Sequence[Tensor]) -> Tensor | None:
    """Return ``[batch, layers, ...]``, or ``None`` where the layers differ in shape."""
    return torch.stack(list(layers), 1) if len({t.shape for t in layers}) == 1 else None


def column_sums(total: Tensor, padding: Tensor | None) -> Tensor:
    """Return the sum over all rows that are not padding, ``[batch, keys]``."""
    if padding is not None and padding.shape[-1] == total.shape[-2]:
        total = total.masked_fill(padding[:, :, None], 0.0)
    return total.sum(-2)


def all_rows(like: Tensor) -> Tensor:
    """Return the identity ``[batch, queries, queries]``, to roll up all rows instead of ``[batch, rows, queries]``."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand(len(like), -1, -1)
