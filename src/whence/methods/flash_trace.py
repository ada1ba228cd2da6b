"""FlashTrace: information-flow routes of a span of outputs (Pan et al., ICML 2026, arXiv 2602.01914).

A language model's answer is many tokens, and each was explained by itself before. Here the span is one target. What an
attention adds to the residual stream is a sum of vectors, one for each head ``h`` and each token ``j`` that it reads
(:mod:`whence.readout.head_routes`); how much of the stream behind the attention each of them is, is measured by
their proximity (Ferrando, Voita, EMNLP 2024),

    prox(a, y) = max(0, |y|_1 - |y - a|_1).

For a span ``S`` with weights ``w_i`` that sum to 1, with ``x`` the stream before an attention and ``x'`` behind it,

    y = sum_i w_i x'_i,   r = sum_i w_i x_i,   a_jh = (sum_i w_i A_hij) v_jh W_h,
    e_j = sum_h prox(a_jh, y) / (sum_jh prox(a_jh, y) + prox(r, y) + 1e-12),

and a token's share is the sum of ``e_j`` over layers. Part of it is on what the model wrote itself before the span (its
reasoning) and in it. This is traced on, ``hops`` times: a hop starts from all that was written, from the first token
behind the prompt to the end of the span, with weights in proportion to the shares ``e`` there, and counts by the part
of ``e`` that was there,

    scores = e^0 + sum_k rho_k e^k,   rho_k = rho_{k-1} (sum of e^{k-1} over what was written) / (sum of e^{k-1}),

on the prompt; what was written scores 0. The rows ``i`` of a span are its own positions, at which its tokens are read,
as in the published code (not those before them, at which they are predicted). ``stop`` tokens (punctuation) take no
part: neither their rows nor their shares. The published code asks the tokenizer for ",", "." and whitespace; here ids
are given.

``variant="span"`` is ``e^0`` without ``stop`` ("ifr-span"), ``variant="matrix"`` the mean over the span of what each
token has by itself ("ifr-matrix", Ferrando and Voita's own), at ``|S|`` times the cost.

Where the published code differs:

- it reads the weights of Llama and Qwen by name. Here the parts are those of operations, so that any single stream of
  residual blocks will do: LayerNorm (its mean taken off, which the published code forgets), fused projections, norms
  behind the projection (Gemma 2), post-norm models, blocks that add attention and MLP at once (where ``x'`` has both);
- it leaves the bias of values out (as here with ``biases=False``), and fixes the epsilon of RMSNorm at 1e-6; here it is
  the model's;
- it subtracts norms in float32, whatever the model's precision. Here ``|y| - |y - a|`` is computed without that
  difference, as ``min(t, 2|y| - t)`` with ``t = a sign(y)``: a thousandth of ``y`` still has its digits.

Cost: one forward; for each hop and layer ``O(N D^2 + N H D + H |S| N)`` for ``N`` tokens of ``D`` features and ``H``
heads, without a backward through the model. Of a fused attention, rows of the span alone are made, a piece of one
layer's at a time.
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
from ..tracing.node import edge_of
from .base import Method, Reading
from .bi_attention import derivative
from .registry import method

VARIANTS = ("flash-trace", "span", "matrix")
TINY = 1e-12
PIECE = 2**20  # how many numbers are worked on at a time


class SpanMasks(NamedTuple):
    """Where a span, what was written up to its end, and the prompt are: each ``[batch, tokens]``, 1 there and else 0.

    Attributes:
        span: the span; or how much each position counts that the target reads.
        written: what the model has written, up to the end of the span.
        prompt: what scores.
        rows: from the first to the last position of the span in any sample, and
        reach: the same of what was written.
    """

    span: Tensor
    written: Tensor
    prompt: Tensor
    rows: slice
    reach: slice


class Hop(NamedTuple):
    """What one hop found.

    Attributes:
        ratio: ``[batch]``, how much it counts.
        shares: for each layer ``e_jh``, ``[batch, heads, tokens]``.
    """

    ratio: Tensor
    shares: list[Tensor]

    def tokens(self) -> Tensor:
        """``[batch, tokens]``: the sum over layers and heads."""
        return torch.stack([share.sum(1) for share in self.shares]).sum(0)


@method("flash-trace")
@dataclass
class FlashTrace(Method):
    """Shares of a span of outputs, by what each attention brings to the residual stream.

    Attributes:
        span: the outputs that are explained as one: ``(start, end)``, positions of the input as of a Python slice, for
            all samples, or a list with one for each. Padding is not counted. ``None``: the positions that the target
            reads; nothing is then taken to be written by the model, so all positions score and there are no hops.
        prompt: how many tokens are the prompt, for all samples or one for each; ``None``: those before the span. What
            lies between is the model's reasoning.
        hops: how often shares of what the model has written are traced on.
        variant: ``"flash-trace"``, ``"span"`` (without hops and stop tokens) or ``"matrix"`` (token by token).
        stop: ids of tokens that take no part. (Which ids "," and "." have is known to the tokenizer alone, so they are
            given as numbers. In the input they are found by their embeddings.)
        biases: count biases, of values and of the norm before them, with the token that brings them; the published
            code leaves them out.
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
        """Norms with constant deviations; fused attention stays fused, and routes are looked at."""
        recorder = RouteRecorder()
        book = {"attention": show_map, "norm": detach_deviation, "normalise": detach_deviation}
        return RouteRulebook(recorder.wrap_rules(book), books=False, recorder=recorder)

    def read(self, run: Run) -> Reading:
        """Shares of the prompt, ``[batch, tokens]``; of each layer, and of each head of it, besides."""
        if run.rulebook.inside:
            raise MethodError(
                f"'{self.name}' has no backward in which to see what each block did: explain without `inside`, or by a "
                "method with one (conservative-lrp, attn-lrp, gradient-x-input)."
            )
        where, hops = self.trace(run)
        ratios = torch.stack([hop.ratio for hop in hops])[..., None, None]
        every = zip(*(hop.shares for hop in hops), strict=True)
        shares = [(ratios * torch.stack(layer)).sum(0) * where.prompt[:, None] for layer in every]
        layers = torch.stack([share.sum(1) for share in shares], 1)
        return Reading(layers.sum(1), layers, stack_layers([share.sum(-1) for share in shares]))

    def trace(self, run: Run) -> tuple[SpanMasks, list[Hop]]:
        """Where the span is, and what each hop from there finds, on all tokens."""
        require_maps(run, self.name)
        require_local(run, self.name)
        assert isinstance(run.rulebook, RouteRulebook)
        found = routes(run, run.rulebook.recorder, self.name)
        where = self.places(run, found[0].rows)  # behind the routes: its backward lets go of what is behind the blocks
        keep = 1 - stopped(run, self.stop, found[0].rows) if self.stop else torch.ones_like(found[0].rows)

        def hop(ratio: Tensor, weights: Tensor, rows: slice) -> Hop:
            return Hop(ratio, [self.layer(r, weights[:, rows], rows) * keep[:, None] for r in found])

        hops = [hop(torch.ones_like(keep[:, 0]), where.span * keep, where.rows)]
        again = self.hops if self.variant == "flash-trace" and where.reach.stop else 0
        for _ in range(again):
            e = hops[-1].tokens()
            written = e * where.written
            mass = written.sum(1)
            ratio = hops[-1].ratio * mass / (e.sum(1) + TINY)
            hops.append(hop(ratio, written / (mass[:, None] + TINY), where.reach))
        return where, hops

    def layer(self, route: HeadRoutes, weights: Tensor, rows: slice) -> Tensor:
        """``e_jh`` of one layer, ``[batch, heads, tokens]``, for weights ``[batch, rows]`` of some rows."""
        v, behind, before = self.values(route), route.after()[:, rows], route.before()[:, rows]
        attention, w = route.attention(rows), weights[:, None]
        pieces = cut(weights.shape[1], v[..., 0].numel())
        if self.variant == "matrix":
            A = torch.cat([attention(piece) for piece in pieces], 2)
            each = shares(route, v, behind, before, A * route.rows[:, None, rows, None])
            return (each * (weights / weights.sum(1, keepdim=True))[:, None, :, None]).sum(2)
        gained = (weights * route.rows[:, rows])[:, None, None]
        a = torch.stack([gained[..., piece] @ attention(piece) for piece in pieces]).sum(0)
        return shares(route, v, w @ behind, w @ before, a)[:, :, 0]

    def values(self, route: HeadRoutes) -> Tensor:
        """``[batch, heads, tokens, features of a head]``; without biases, the derivative along the stream itself."""
        values, trunk = route.record.values, route.residual.trunk
        assert values is not None
        if self.biases:
            return route.by_head(values.detach())
        along: Any = edge_of(trunk)
        return route.by_head(derivative(values, along, trunk.detach()))

    def places(self, run: Run, like: Tensor) -> SpanMasks:
        """Where the span and the prompt are, as numbers of the kind of ``like``, ``[batch, tokens]``."""
        batch, tokens = like.shape
        if self.span is None:
            rows = target_rows(last_gradient(run))[:, 0]
            return SpanMasks(rows, torch.zeros_like(rows), torch.ones_like(rows), slice(0, tokens), slice(0, 0))
        padding = run.mask if run.mask is not None and run.mask.shape == like.shape else torch.zeros_like(like)
        real = padding.cpu() == 0
        spans = one_each(self.span, batch, "span")
        prompts = [start for start, _ in spans] if self.prompt is None else one_each(self.prompt, batch, "prompt")
        for i, ((start, end), prompt, length) in enumerate(zip(spans, prompts, real.sum(1).tolist(), strict=True)):
            if not 0 < prompt <= start < end <= length:
                raise MethodError(
                    f"Sample {i} has {length} tokens, so that a span ({start}, {end}) behind a prompt of {prompt} does "
                    f"not fit: it must be 0 < prompt <= start < end <= {length}, padding not counted."
                )
        at, ends = real.cumsum(1) - 1, torch.tensor([list(span) for span in spans])
        first, start, end = torch.tensor(prompts)[:, None], ends[:, :1], ends[:, 1:]
        span, written, prompt = (
            inside & real for inside in ((at >= start) & (at < end), (at >= first) & (at < end), at < first)
        )
        return SpanMasks(span.to(like), written.to(like), prompt.to(like), extent(span), extent(written))


def shares(route: HeadRoutes, v: Tensor, y: Tensor, r: Tensor, a: Tensor) -> Tensor:
    """What each head brings from each token, as a share of all that the stream is made of.

    Args:
        route: the routes of an attention.
        v: its values, ``[batch, heads, tokens, features of a head]``.
        y: what is explained, ``[batch, rows, features]``.
        r: what was there before, likewise.
        a: how much each token is looked at, ``[batch, heads, rows, tokens]``.

    Returns:
        ``[batch, heads, rows, tokens]``.
    """
    found = []
    for piece in cut(a.shape[-1], a[:, :, 0, 0].numel() * y.shape[-1]):
        brought = (v[:, :, piece] @ route.weight) * route.features[:, None, None]
        rows = cut(y.shape[1], brought.numel())
        some = [proximity(a[:, :, i, piece, None] * brought[:, :, None], y[:, None, i, None]) for i in rows]
        found.append(torch.cat(some, 2))
    near = torch.cat(found, -1)
    return near / (near.sum((1, 3)) + proximity(r, y) + TINY)[:, None, :, None]


def cut(count: int, size: int) -> list[slice]:
    """Pieces of so many entries of a size that no more is worked on at a time than there is room for."""
    step = max(1, PIECE // size)
    return [slice(i, i + step) for i in range(0, count, step)]


def proximity(a: Tensor, y: Tensor) -> Tensor:
    """``max(0, |y|_1 - |y - a|_1)`` over features, as ``min(t, 2|y| - t)`` with ``t = a sign(y)``."""
    t = a * torch.ones_like(y).copysign(y)
    return torch.minimum(t, 2 * y.abs() - t).sum(-1).clamp(min=0)


def one_each(given: Any, batch: int, what: str) -> list[Any]:
    """A number, or a pair of them, for each sample: given for all, or one for each."""

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


def extent(places: Tensor) -> slice:
    """From the first to the last of some places, ``[batch, tokens]``."""
    (found,) = places.any(0).nonzero(as_tuple=True)
    return slice(int(found[0]), int(found[-1]) + 1)


def stopped(run: Run, ids: Sequence[int], like: Tensor) -> Tensor:
    """``[batch, tokens]``: 1 at tokens with one of some ids, which are told by their rows in the embedding table."""
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
