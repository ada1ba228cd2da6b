"""Explain a text that is longer than the model takes, in overlapping windows.

The text is cut into blocks of whole words. A window is ``m`` consecutive blocks between the tokenizer's special tokens
([CLS], [SEP]); the first and last windows hold fewer blocks, so that every word is read by ``m`` windows and words near
an end count as much as others. The output for the whole text is the mean of the windows' outputs: for each of its ``n``
tokens over the ``m`` windows that read it, with weights ``w_k(t) = 1/m`` that sum to 1, then over all tokens. For
logits and target alike it is a mean weighted by the windows' lengths ``n_k``,

    ``z = 1/n sum_t sum_k w_k(t) z_k = sum_k a_k z_k``,  ``a_k = n_k / (m n)``,  ``sum_k a_k = 1``.

It is linear in the windows' outputs, so its attribution is the same sum of the windows' scores,

    ``R(t) = sum_k a_k R_k(t)``,

over the windows that hold token ``t``. Relevance is conserved as well as in each window: if each window's scores sum to
``z_k``, the scores sum to ``z``.
"""

from __future__ import annotations

import functools
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._utils.progress import track
from .._utils.type_checks import is_whole, require_positive
from ..errors import InputError, MethodError, ModelError, TargetError, WhenceWarning
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample, batches
from ..inputs.text import TextReader
from ..propagation.ledger import Ledger
from ..results.input_origin import TextOrigin
from ..targets.specs import Contrast, Target
from ..tracing.reductions import precise
from .explainer import Explainer

POSITIONS = ("span", "prompt", "token")  # options that name tokens of a text by their positions


@dataclass(frozen=True)
class WindowLayout:
    """The windows that a text is cut into.

    Attributes:
        origin: the whole text and its tokens.
        positions: for each window, the positions of the whole text that it holds, in order.
        weights: ``[windows]``: the weight of each window in the output; they sum to 1.
    """

    origin: TextOrigin
    positions: tuple[Tensor, ...]
    weights: Tensor

    @classmethod
    def of(cls, origin: TextOrigin, length: int, stride: int | None) -> WindowLayout:
        """Cut the longest of the texts; the other text of a pair, [CLS] and [SEP] are repeated in each window.

        Args:
            origin: the whole text, and its tokens.
            length: positions of a window, at most.
            stride: tokens of a block, at most; ``None``: half of what fits.
        """
        parts = [None if span is None else span.part for span in origin.spans]
        longest = max(range(len(origin.texts)), key=parts.count)
        cut = [i for i, part in enumerate(parts) if part == longest]
        repeated = [i for i, part in enumerate(parts) if part != longest]
        room = length - len(repeated)
        if room < 1:
            raise InputError(
                f"Windows of {length} tokens have no room for the text: {len(repeated)} tokens are the same in each "
                "window ([CLS], [SEP], the other text of a pair). Give a larger length, or shorten the other text."
            )
        stride = max(1, room // 2) if stride is None else stride
        if not is_whole(stride) or not 1 <= stride <= room:
            raise InputError(
                f"The stride is a whole number from 1 to {room}, the tokens of the text in a window, not {stride!r}."
            )
        pieces = [p for p in origin.pieces([0.0] * len(parts)) if p.part == longest and p.positions]
        edges = [0, *_block_ends(len(cut), stride, sorted(bisect_left(cut, p.positions[0]) for p in pieces))]
        blocks = room // stride  # of a window
        pairs = [(edges[max(0, k - blocks)], edges[min(k, len(edges) - 1)]) for k in range(1, len(edges) + blocks - 1)]
        positions = tuple(torch.tensor(sorted([*repeated, *cut[start:end]])) for start, end in pairs)
        sizes = torch.tensor([end - start for start, end in pairs], dtype=torch.float64)
        return cls(origin, positions, sizes / sizes.sum())

    def samples(self, whole: Sample) -> list[Sample]:
        """Return each window as a sample of its own."""
        out = []
        for positions in self.positions:
            held = positions.tolist()
            tokens = tuple(self.origin.tokens[i] for i in held)
            spans = tuple(self.origin.spans[i] for i in held)
            tensors = {name: t[:, positions] for name, t in whole.tensors.items()}
            origin = replace(self.origin, tokens=tokens, spans=spans)
            out.append(replace(whole, tensors=tensors, origins={"text": origin}))
        return out

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """Return the weighted mean of the windows' values, ``[1, ...]`` each."""
        every = precise(torch.cat(list(values)))
        mean: Tensor = torch.tensordot(self.weights.to(every), every, 1)
        return mean.to(values[0].dtype)[None]

    def overlap_add(self, values: Sequence[Tensor], dims: int = 1) -> Tensor:
        """Sum the windows' weighted scores, ``[1, ..., positions]`` each, on the positions of the whole text.

        Args:
            values: the scores of each window.
            dims: how many of the last dimensions are positions.
        """
        shape = [*values[0].shape[:-dims], *[len(self.origin.tokens)] * dims]
        out = precise(values[0].new_zeros(shape))
        for weight, positions, value in zip(self.weights.tolist(), self.positions, values, strict=True):
            at = (..., positions) if dims == 1 else (..., positions[:, None], positions)
            out[at] += weight * precise(value)
        return out.to(values[0].dtype)


def _block_ends(count: int, most: int, words: Sequence[int]) -> Iterator[int]:
    """Yield where blocks of similar length end: at the beginning of a word, unless a word is longer than a block.

    Args:
        count: tokens of the text.
        most: tokens of a block.
        words: the tokens at which words begin, in order.
    """
    start = 0
    while start < count:
        left = -(-(count - start) // most)  # blocks, rounded up
        end = start - (-(count - start) // left)
        inside = words[bisect_right(words, start) : bisect_right(words, end)]
        start = inside[-1] if inside and end < count else end
        yield start


def windows(
    explainer: Explainer,
    text: str | tuple[str, str],
    method: str = "conservative-lrp",
    target: Target = None,
    *,
    length: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    progress: bool | None = None,
    **options: Any,
) -> Explanation:
    """Explain all of a text that is longer than the model takes, in overlapping windows.

    Args:
        explainer: of a model with one prediction per text.
        text: a text, or a pair of texts, of which the longer is cut and the other read with each window.
        method: a name from :func:`whence.list_methods`.
        target: a class, a label, a contrast or a function, for all windows; ``None``: the class predicted for the
            whole text.
        length: tokens of a window, [CLS] and [SEP] included; ``None``: as many as the model takes.
        stride: tokens from one window to the next, at most; ``None``: half of what fits into one, so that every word
            is read twice.
        batch_size: windows explained together.
        progress: show a bar on stderr; ``None``: if there is a terminal and more than one batch.
        options: the method's options, except those that name positions: each window has other tokens there.

    Returns:
        The explanation of the whole text: ``scores`` is ``[1, tokens]``, ``logits`` and ``value`` are the means of the
        windows', and ``options["windows"]`` is their number. A text that fits is explained without windows.

    Example:
        >>> e = whence.windows(explainer, open("review.txt").read())
        >>> e.options["windows"]
        3
    """
    _check_target(target)
    require_positive(batch_size=batch_size)
    whole, room = _read(explainer, text, length)
    origin = whole.origins["text"]
    assert isinstance(origin, TextOrigin)
    if room is None or len(origin.tokens) <= room:
        plain: Explanation = explainer(text, method, target, **options)
        return plain
    _refuse_positions(method, options)
    layout = WindowLayout.of(origin, room, stride)
    count = len(layout.positions)
    warnings.warn(
        f"The text has {len(origin.tokens)} tokens, more than the {room} of a window: it was read in {count} windows, "
        "and the answer is their mean by length.",
        WhenceWarning,
        stacklevel=2,
    )
    explain = functools.partial(_explain_samples, explainer, method, options, batch_size, progress)
    found = _explain_windows(layout, layout.samples(whole), target, explain)
    each = [_without_padding(explainer, e, len(held)) for e, held in zip(found, layout.positions, strict=True)]
    settings = {"windows": count, "length": room, **({} if stride is None else {"stride": stride})}
    return _merge(layout, each, settings)


def _check_target(target: Target) -> None:
    if not (target is None or is_whole(target) or isinstance(target, str | Contrast) or callable(target)):
        raise TargetError(
            "Windows are merged for one target of the whole text (a class number, a label, a contrast or a function), "
            f"not for {type(target).__name__}."
        )


def _read(explainer: Explainer, text: Any, length: int | None) -> tuple[Sample, int | None]:
    """Return the whole text as a sample, whatever its length, and the length of a window."""
    if not isinstance(explainer.reader, TextReader):
        raise InputError(f"Windows are cut from texts, and this model reads {explainer.modality}.")
    limit = explainer.reader.limit
    whole = explainer.reader.read_whole(text)
    if whole.position is not None:
        raise ModelError(
            "The model answers at a position of its text, so its answers to several windows are to different "
            "questions. Windows are for models that give one answer to a text."
        )
    if length is not None and (not is_whole(length) or not 1 <= length <= (limit or length)):
        most = f"from 1 to {limit}, the tokens that the model takes" if limit else "of at least 1"
        raise InputError(f"The length of a window is a whole number {most}, not {length!r}.")
    return whole, length or limit


def _refuse_positions(method: str, options: Mapping[str, Any]) -> None:
    """Raise an error for options that name positions: each window has other tokens there."""
    named = [name for name in POSITIONS if options.get(name) is not None]
    if named:
        raise MethodError(
            f"Option '{named[0]}' of the method '{method}' names positions, and in each window another token stands "
            "there: leave it out, or explain a text that fits without windows."
        )


def _explain_samples(
    explainer: Explainer,
    method: str,
    options: dict[str, Any],
    batch_size: int,
    progress: bool | None,
    samples: list[Sample],
    target: Any,
) -> list[Explanation]:
    """Explain samples in batches; return their explanations in order."""
    out: dict[int, Explanation] = {}
    chosen = batches(samples, batch_size)
    for indices in track(chosen, len(chosen), "Explaining", progress):
        out |= zip(indices, explainer.batch([samples[i] for i in indices], method, target, options), strict=True)
    return [out[i] for i in range(len(samples))]


def _explain_windows(
    layout: WindowLayout, samples: list[Sample], target: Any, explain: Callable[[list[Sample], Any], list[Explanation]]
) -> list[Explanation]:
    """Explain every window for the same target; the predicted class is that of the whole text.

    Windows are first explained for the class that each predicts, then again if the whole text has another.
    """
    contrast = isinstance(target, Contrast)
    of_prediction = target is None or (contrast and None in (target.target, target.other))
    each = explain(samples, None if of_prediction else target)
    if not of_prediction or each[0].prediction is None:
        return each
    predicted = int(layout.mean([e.logits for e in each]).argmax(-1))
    common: Any = predicted
    if contrast:
        common = Contrast(*(predicted if one is None else one for one in (target.target, target.other)))
    again = [i for i, e in enumerate(each) if contrast or e.target is None or int(e.target[0]) != predicted]
    for i, e in zip(again, explain([samples[i] for i in again], common), strict=True):
        each[i] = e
    return each


def _without_padding(explainer: Explainer, e: Explanation, tokens: int) -> Explanation:
    """Return a window's explanation without the padding of its batch; raise an error if it cannot be merged."""
    if e.prediction is not None and e.logits.shape[-1] == getattr(explainer.reader, "vocabulary_size", None):
        raise ModelError(
            "The model answers with the token that comes next, and after each window another does. Windows are for "
            "models that give one answer to a text."
        )
    streams = {name: s if bool(s[:, tokens:].any()) else s[:, :tokens] for name, s in e.streams.items()}
    if not e.origins or any(s.shape[1] != tokens for s in streams.values()):
        raise ModelError(
            f"The model scores {[s.shape[1] for s in streams.values()]} positions for {tokens} tokens, so it is not "
            "known which token of the whole text each of them is."
        )
    return replace(e, streams=streams)


def _merge(layout: WindowLayout, each: list[Explanation], settings: Mapping[str, Any]) -> Explanation:
    """Merge the explanations of the windows into one of the whole text."""
    first = each[0]
    logits = layout.mean([e.logits for e in each])
    prediction = None if first.prediction is None else logits.argmax(-1)

    def merged(name: str, join: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
        found = [getattr(e, name) for e in each]
        return None if any(f is None for f in found) else join(found)

    return replace(
        first,
        scores=layout.overlap_add([e.scores for e in each]),
        special=torch.tensor([[span is None for span in layout.origin.spans]], device=first.special.device),
        options={**first.options, **settings},
        logits=logits,
        value=layout.mean([e.value for e in each]),
        prediction=prediction,
        streams={name: layout.overlap_add([e.streams[name] for e in each]) for name in first.streams},
        ledger=_merge_ledgers(layout, each),
        layers=merged("layers", layout.overlap_add),
        heads=merged("heads", layout.mean),
        branches=merged("branches", layout.overlap_add),
        pairs=merged("pairs", lambda found: layout.overlap_add(found, 2)),
        prediction_names=(_prediction_name(first, logits),),
        origins=(dict.fromkeys(first.origins[0], layout.origin),),
    )


def _prediction_name(first: Explanation, logits: Tensor) -> str:
    """Return the prediction for the whole text, in words."""
    if first.prediction is None or first.task == "regression":
        return f"{float(logits.flatten()[0]):.4g}"
    true = (logits[0] > 0).nonzero().flatten().tolist() if first.task == "multi-label" else []
    return ", ".join(first.labels.get(i, str(i)) for i in true or [int(logits[0].argmax())])


def _merge_ledgers(layout: WindowLayout, each: list[Explanation]) -> Ledger | None:
    """Merge the ledgers of all windows: every amount is linear in the target, too."""
    ledgers = [e.ledger for e in each if e.ledger is not None]
    if len(ledgers) < len(each):
        return None
    record = Ledger.join(ledgers).record()
    entries = [{**entry, "amount": layout.mean(list(entry["amount"].split(1)))} for entry in record["entries"]]
    total, sums = (layout.mean(list(record[name].split(1))) for name in ("total", "sums"))
    return Ledger.of({**record, "total": total, "sums": sums, "entries": entries})
