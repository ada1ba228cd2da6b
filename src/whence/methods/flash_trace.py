"""FlashTrace: information-flow routes of a span of outputs (Pan et al., ICML 2026, arXiv 2602.01914).

A language model's answer has many tokens, which earlier methods explain one by one. Here the span is one target. What
an attention adds to the residual stream is a sum of vectors, one for each head ``h`` and each token ``j`` that it reads
(:mod:`whence.readout.head_routes`); the contribution of each to the stream after the attention is measured by their
proximity (Ferrando, Voita, EMNLP 2024),

    prox(a, y) = max(0, |y|_1 - |y - a|_1).

For a span ``S`` with weights ``w_i`` that sum to 1, with ``x`` the stream before an attention and ``x'`` after it,

    y = sum_i w_i x'_i,   r = sum_i w_i x_i,   a_jh = (sum_i w_i A_hij) v_jh W_h,
    e_j = sum_h prox(a_jh, y) / (sum_jh prox(a_jh, y) + prox(r, y) + 1e-12),

and a token's share is the sum of ``e_j`` over layers. Part of it falls on tokens that the model itself generated,
before the span (its reasoning) and in it. This part is traced further, ``hops`` times: a hop starts from all generated
tokens, from the first token after the prompt to the end of the span, with weights in proportion to their shares ``e``,
and is weighted by the fraction of ``e`` that fell on them,

    scores = e^0 + sum_k rho_k e^k,   rho_k = rho_{k-1} (sum of e^{k-1} over generated tokens) / (sum of e^{k-1}),

on the prompt; generated tokens score 0. The rows ``i`` of a span are its own positions, at which its tokens are read,
as in the published code (not those before them, at which they are predicted). ``stop`` tokens (punctuation) are
excluded: both their rows and their shares. The published code takes ",", "." and whitespace from the tokenizer; here
ids are given.

``variant="span"`` is ``e^0`` without ``stop`` ("ifr-span"), ``variant="matrix"`` the mean over the span of the shares
of each token by itself ("ifr-matrix", as in Ferrando and Voita), at ``|S|`` times the cost.

Where the published code differs:

- it reads the weights of Llama and Qwen by name. Here they are read from the traced operations, so that any single
  stream of residual blocks works: LayerNorm (with its mean subtracted, which the published code omits), fused
  projections, norms after the projection (Gemma 2), post-norm models, blocks that add attention and MLP at once (where
  ``x'`` has both);
- it leaves out the bias of values (as here with ``biases=False``), and fixes the epsilon of RMSNorm at 1e-6; here it is
  the model's;
- it subtracts norms in float32, whatever the model's precision. Here ``|y| - |y - a|`` is computed without that
  difference, as ``min(t, 2|y| - t)`` with ``t = a sign(y)``, which stays accurate for small ``a``.

Cost: one forward pass; for each hop and layer ``O(N D^2 + N H D + H |S| N)`` for ``N`` tokens of ``D`` features and
``H`` heads, without a backward pass through the model. Of a fused attention, only the rows of the span are recomputed,
in chunks, one layer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..propagation.rules.gradient import detach_deviation, show_map
from ..readout.head_routes import HeadRoutes, RouteRecorder, RouteRulebook, routes
from ..readout.map_walk import last_gradient
from ..readout.rollup import require_local, require_maps, stack_layers, target_rows
from ..runs.run import Run
from ..tracing.tensor_info import edge_of
from .base import Method, Reading
from .bi_attention import derivative
from .registry import method

VARIANTS = ("flash-trace", "span", "matrix")
TINY = 1e-12
CHUNK = 2**20  # the number of values that are processed at a time


class SpanMasks(NamedTuple):
    """The masks of a span, of the generated tokens up to its end, and of the prompt: ``[batch, tokens]``, 1 or 0.

    Attributes:
        span: the span; or the weight of each position that the target reads.
        written: the tokens that the model has generated, up to the end of the span.
        prompt: the tokens that get scores.
        rows: from the first to the last position of the span in any sample.
        reach: the same for the generated tokens.
    """

    span: Tensor
    written: Tensor
    prompt: Tensor
    rows: slice
    reach: slice


class Hop(NamedTuple):
    """The result of one hop.

    Attributes:
        ratio: ``[batch]``, its weight.
        shares: for each layer ``e_jh``, ``[batch, heads, tokens]``.
    """

    ratio: Tensor
    shares: list[Tensor]

    def tokens(self) -> Tensor:
        """Return the sum over layers and heads, ``[batch, tokens]``."""
        return torch.stack([share.sum(1) for share in self.shares]).sum(0)


@method("flash-trace")
@dataclass
class FlashTrace(Method):
    """Shares of a span of outputs, by what each attention adds to the residual stream.

    Attributes:
        span: the outputs that are explained as one target: ``(start, end)``, positions of the input as of a Python
            slice, for all samples, or a list with one for each. Padding is not counted. ``None``: the positions that
            the target reads; no token then counts as generated, so all positions score and there are no hops.
        prompt: the number of prompt tokens, for all samples or one for each; ``None``: those before the span. Tokens
            between prompt and span are the model's reasoning.
        hops: how often shares of generated tokens are traced further.
        variant: ``"flash-trace"``, ``"span"`` (without hops and stop tokens) or ``"matrix"`` (token by token).
        stop: ids of tokens that are excluded. (Only the tokenizer has the ids of "," and ".", so they are given as
            numbers. In the input they are found by their embeddings.)
        biases: count biases, of values and of the norm before them, for the token at which they are added; the
            published code leaves them out.
    """

    paper: ClassVar[str] = "Pan et al., ICML 2026"
    shows: ClassVar[str] = (
        "How strongly each token's own contribution reached the answer, layer by layer, made for long texts."
    )
    beware: ClassVar[str] = "It has no sign (for or against) and hardly differs between answers."
    class_specific: ClassVar[bool] = False
    backwards: ClassVar[int] = 0
    needs: ClassVar[str] = "attention inside residual blocks"

    span: tuple[int, int] | Sequence[tuple[int, int]] | None = None
    prompt: int | Sequence[int] | None = None
    hops: int = 1
    variant: str = "flash-trace"
    stop: Sequence[int] | None = None
    biases: bool = False

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise MethodError(f"`variant` must be 'flash-trace', 'span' or 'matrix', not {self.variant!r}.")
        if self.hops < 0:
            raise MethodError(f"`hops` must be 0 or more, not {self.hops}.")
        if self.span is None and self.prompt is not None:
            raise MethodError("`prompt` says what comes before a span: give `span`, too.")
        numbers = isinstance(self.stop, Sequence) and all(isinstance(i, Integral) for i in self.stop)
        if self.stop is not None and not numbers:
            raise MethodError(
                f"`stop` takes a list of token ids, such as [11, 13], not {self.stop!r}. The tokenizer knows them: "
                'tokenizer.convert_tokens_to_ids([",", "."]).'
            )
        if self.stop and self.variant != "flash-trace":
            raise MethodError(f"`stop` goes with variant='flash-trace': '{self.variant}' has no stop tokens.")

    def rulebook(self) -> Rulebook:
        """Return the rules: norms with constant deviations, fused attention kept fused, routes recorded."""
        recorder = RouteRecorder()
        book = {"attention": show_map, "norm": detach_deviation, "normalise": detach_deviation}
        return RouteRulebook(recorder.wrap_rules(book), books=False, heads=True, recorder=recorder)

    def read(self, run: Run) -> Reading:
        """Return shares of the prompt, ``[batch, tokens]``, also for each layer and each of its heads."""
        if run.rulebook.inside:
            raise MethodError(
                f"'{self.name}' has no backward in which to see what each block did: explain without `inside`, or by a "
                "method with one (conservative-lrp, attn-lrp, gradient-x-input)."
            )
        masks, hops = self.trace(run)
        ratios = torch.stack([hop.ratio for hop in hops])[..., None, None]
        every = zip(*(hop.shares for hop in hops), strict=True)
        shares = [(ratios * torch.stack(layer)).sum(0) * masks.prompt[:, None] for layer in every]
        layers = torch.stack([share.sum(1) for share in shares], 1)
        return Reading(layers.sum(1), layers, stack_layers([share.sum(-1) for share in shares]))

    def trace(self, run: Run) -> tuple[SpanMasks, list[Hop]]:
        """Return the masks of the span, and the shares of all tokens in each hop."""
        require_maps(run, self.name)
        require_local(run, self.name)
        assert isinstance(run.rulebook, RouteRulebook)
        found = routes(run, run.rulebook.recorder, self.name)
        masks = self.span_masks(run, found[0].rows)  # after the routes: its backward pass frees the graph of the head
        keep = 1 - stop_mask(run, self.stop, found[0].rows) if self.stop else torch.ones_like(found[0].rows)

        def hop(ratio: Tensor, weights: Tensor, rows: slice) -> Hop:
            return Hop(ratio, [self.layer(r, weights[:, rows], rows) * keep[:, None] for r in found])

        hops = [hop(torch.ones_like(keep[:, 0]), masks.span * keep, masks.rows)]
        further = self.hops if self.variant == "flash-trace" and masks.reach.stop else 0
        for _ in range(further):
            e = hops[-1].tokens()
            written = e * masks.written
            mass = written.sum(1)
            ratio = hops[-1].ratio * mass / (e.sum(1) + TINY)
            hops.append(hop(ratio, written / (mass[:, None] + TINY), masks.reach))
        return masks, hops

    def layer(self, route: HeadRoutes, weights: Tensor, rows: slice) -> Tensor:
        """Return ``e_jh`` of one layer, ``[batch, heads, tokens]``, for weights ``[batch, rows]`` of some rows."""
        v = self.values(route)
        before = route.before()[:, rows]
        after = route.after()[:, rows]
        attention = route.attention(rows)
        row_chunks = chunks(weights.shape[1], v[..., 0].numel())
        if self.variant == "matrix":
            A = torch.cat([attention(chunk) for chunk in row_chunks], 2)
            each = stream_shares(route, v, after, before, A * route.rows[:, None, rows, None])
            return (each * (weights / weights.sum(1, keepdim=True))[:, None, :, None]).sum(2)
        w = weights[:, None]
        scaled = (weights * route.rows[:, rows])[:, None, None]
        a = torch.stack([scaled[..., chunk] @ attention(chunk) for chunk in row_chunks]).sum(0)
        return stream_shares(route, v, w @ after, w @ before, a)[:, :, 0]

    def values(self, route: HeadRoutes) -> Tensor:
        """Return ``[batch, heads, tokens, features of a head]``; without biases, the derivative along the stream."""
        values = route.record.values
        trunk = route.residual.trunk
        assert values is not None
        if self.biases:
            return route.by_head(values.detach())
        along: Any = edge_of(trunk)
        return route.by_head(derivative(values, along, trunk.detach()))

    def span_masks(self, run: Run, like: Tensor) -> SpanMasks:
        """Return the masks of span and prompt, in the type of ``like``, ``[batch, tokens]``."""
        batch, tokens = like.shape
        if self.span is None:
            rows = target_rows(last_gradient(run))[:, 0]
            return SpanMasks(rows, torch.zeros_like(rows), torch.ones_like(rows), slice(0, tokens), slice(0, 0))
        padding = run.mask if run.mask is not None and run.mask.shape == like.shape else torch.zeros_like(like)
        real = padding.cpu() == 0
        spans = for_each_sample(self.span, batch, "span")
        prompts = (
            [start for start, _ in spans] if self.prompt is None else for_each_sample(self.prompt, batch, "prompt")
        )
        for i, ((start, end), prompt, length) in enumerate(zip(spans, prompts, real.sum(1).tolist(), strict=True)):
            if not 0 < prompt <= start < end <= length:
                raise MethodError(
                    f"Sample {i} has {length} tokens, so that a span ({start}, {end}) behind a prompt of {prompt} does "
                    f"not fit: it must be 0 < prompt <= start < end <= {length}, padding not counted."
                )
        at = real.cumsum(1) - 1
        starts = torch.tensor([start for start, _ in spans])[:, None]
        ends = torch.tensor([end for _, end in spans])[:, None]
        prompt_ends = torch.tensor(prompts)[:, None]
        in_span = (at >= starts) & (at < ends) & real
        written = (at >= prompt_ends) & (at < ends) & real
        in_prompt = (at < prompt_ends) & real
        return SpanMasks(
            span=in_span.to(like),
            written=written.to(like),
            prompt=in_prompt.to(like),
            rows=covering_slice(in_span),
            reach=covering_slice(written),
        )


def stream_shares(route: HeadRoutes, v: Tensor, y: Tensor, r: Tensor, a: Tensor) -> Tensor:
    """Return what each head adds from each token, as a share of the stream.

    Args:
        route: the routes of an attention.
        v: its values, ``[batch, heads, tokens, features of a head]``.
        y: the stream after the attention, ``[batch, rows, features]``.
        r: the stream before it, likewise.
        a: the attention to each token, ``[batch, heads, rows, tokens]``.

    Returns:
        ``[batch, heads, rows, tokens]``.
    """
    found = []
    for tokens in chunks(a.shape[-1], a[:, :, 0, 0].numel() * y.shape[-1]):
        added = (v[:, :, tokens] @ route.weight) * route.features[:, None, None]
        row_chunks = chunks(y.shape[1], added.numel())
        near = [
            proximity(a[:, :, rows, tokens, None] * added[:, :, None], y[:, None, rows, None]) for rows in row_chunks
        ]
        found.append(torch.cat(near, 2))
    every = torch.cat(found, -1)
    return every / (every.sum((1, 3)) + proximity(r, y) + TINY)[:, None, :, None]


def chunks(count: int, size: int) -> list[slice]:
    """Return slices of ``count`` entries of a size, so that at most :data:`CHUNK` values are processed at a time."""
    step = max(1, CHUNK // size)
    return [slice(i, i + step) for i in range(0, count, step)]


def proximity(a: Tensor, y: Tensor) -> Tensor:
    """Return ``max(0, |y|_1 - |y - a|_1)`` over features, as ``min(t, 2|y| - t)`` with ``t = a sign(y)``."""
    t = a * torch.ones_like(y).copysign(y)
    return torch.minimum(t, 2 * y.abs() - t).sum(-1).clamp(min=0)


def for_each_sample(given: Any, batch: int, what: str) -> list[Any]:
    """Return a number, or a pair of numbers, for each sample, given for all samples or one for each."""

    def fits(item: Any) -> bool:
        numbers = item if isinstance(item, tuple | list) else []
        if what == "span":
            return len(numbers) == 2 and all(isinstance(n, Integral) for n in numbers)
        return isinstance(item, Integral)

    each = [given] * batch if fits(given) else given if isinstance(given, tuple | list) else []
    if len(each) != batch or not all(map(fits, each)):
        wanted = "a pair (start, end) of positions" if what == "span" else "a number of tokens"
        raise MethodError(f"`{what}` must be {wanted}, or a list with one for each of {batch} samples, not {given!r}.")
    return list(each)


def covering_slice(places: Tensor) -> slice:
    """Return the slice from the first to the last token of a mask ``[batch, tokens]``."""
    (found,) = places.any(0).nonzero(as_tuple=True)
    return slice(int(found[0]), int(found[-1]) + 1)


def stop_mask(run: Run, ids: Sequence[int], like: Tensor) -> Tensor:
    """Return ``[batch, tokens]``: 1 at tokens with one of some ids, found by their rows in the embedding table."""
    rows = next((s.tensor.detach() for s in run.trace.sources if s.name and s.embedded and s.tensor.dim() == 3), None)
    if rows is not None and rows.shape[:2] == like.shape and min(ids) >= 0:
        tables = [p.detach() for p in run.model.parameters() if p.dim() == 2 and p.shape[1] == rows.shape[2]]
        for table in tables:
            near = table[table[:, 0] == rows[0, 0, 0]]
            if len(table) > max(ids) and bool((near == rows[0, 0]).all(1).any()):
                return torch.stack([(rows == table[i]).all(-1) for i in ids]).any(0).to(like)
    raise MethodError(
        f"`stop` tokens are found by their embeddings, but this input is not made of rows of a table that has the ids "
        f"{list(ids)}. Give `input_ids`, and ids of the model's own vocabulary."
    )
