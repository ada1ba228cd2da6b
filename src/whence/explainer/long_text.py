"""A text that is longer than the model takes, explained in windows that overlap.

The text is cut into blocks of whole words. A window is ``m`` blocks that follow each other, and begins and ends as a
text of its own does ([CLS], [SEP]); the first windows and the last hold fewer blocks, so that every word is read by
``m`` windows and none counts less for standing near an end. The answer to the whole is, for each of its ``n`` tokens,
the mean of the answers of the ``m`` windows that read it, with weights ``w_k(t) = 1/m`` that sum to 1; and of that the
mean over all tokens. So it is the mean of the windows' answers, logits and target alike, by their lengths ``n_k``,

    ``z = 1/n sum_t sum_k w_k(t) z_k = sum_k a_k z_k``,  ``a_k = n_k / (m n)``,  ``sum_k a_k = 1``.

It is linear in the windows' answers, so what explains it is the same sum of the windows' scores,

    ``R(t) = sum_k a_k R_k(t)``,

over the windows that hold token ``t``. The scores add up to ``z`` as well as those of each window add up to ``z_k``.
"""

from __future__ import annotations

import copy
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._utils.progress import track
from .._utils.type_checks import counts, is_whole
from ..errors import InputError, MethodError, ModelError, TargetError, WhenceWarning
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample, batches
from ..inputs.text import TextReader
from ..propagation.ledger import Ledger
from ..results.input_origin import TextOrigin
from ..targets.specs import Contrast, Target
from ..tracing.reductions import precise
from .explainer import Explainer

POSITIONS = ("span", "prompt", "token")  # options that name tokens of a text by their places


@dataclass(frozen=True)
class Cut:
    """A text cut into windows.

    Attributes:
        origin: the whole text and its tokens.
        places: for each window, the positions of the whole text that it holds, in order.
        shares: ``[windows]``: what each counts in the answer; they sum to 1.
    """

    origin: TextOrigin
    places: tuple[Tensor, ...]
    shares: Tensor

    @classmethod
    def of(cls, origin: TextOrigin, length: int, stride: int | None) -> Cut:
        """Cut the longest of the texts; what else is read (the other text of a pair, [CLS], [SEP]) is in each window.

        Args:
            origin: the whole text, and its tokens.
            length: positions of a window, at most.
            stride: tokens of a block, at most; ``None``: half of what fits.
        """
        parts = [None if span is None else span.part for span in origin.spans]
        longest = max(range(len(origin.texts)), key=parts.count)
        own, kept = ([i for i, part in enumerate(parts) if (part == longest) is mine] for mine in (True, False))
        room = length - len(kept)
        if room < 1:
            raise InputError(
                f"Windows of {length} tokens have no room for the text: {len(kept)} tokens are the same in each window "
                "([CLS], [SEP], the other text of a pair). Give a larger length, or shorten the other text."
            )
        stride = max(1, room // 2) if stride is None else stride
        if not is_whole(stride) or not 1 <= stride <= room:
            raise InputError(
                f"The stride is a whole number from 1 to {room}, the tokens of the text in a window, not {stride!r}."
            )
        pieces = [p for p in origin.pieces([0.0] * len(parts)) if p.part == longest and p.positions]
        edges = [0, *_edges(len(own), stride, sorted(bisect_left(own, p.positions[0]) for p in pieces))]
        blocks = room // stride  # of a window
        pairs = [(edges[max(0, k - blocks)], edges[min(k, len(edges) - 1)]) for k in range(1, len(edges) + blocks - 1)]
        places = tuple(torch.tensor(sorted([*kept, *own[start:end]])) for start, end in pairs)
        sizes = torch.tensor([end - start for start, end in pairs], dtype=torch.float64)
        return cls(origin, places, sizes / sizes.sum())

    def samples(self, whole: Sample) -> list[Sample]:
        """Each window as the model reads it."""
        out = []
        for place in self.places:
            tokens, spans = (tuple(x[i] for i in place.tolist()) for x in (self.origin.tokens, self.origin.spans))
            origin = replace(self.origin, tokens=tokens, spans=spans)
            tensors = {name: t[:, place] for name, t in whole.tensors.items()}
            out.append(replace(whole, tensors=tensors, origins={"text": origin}))
        return out

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """What the windows answered, ``[1, ...]`` each, as the answer to the whole."""
        every = precise(torch.cat(list(values)))
        mean: Tensor = torch.tensordot(self.shares.to(every), every, 1)
        return mean.to(values[0].dtype)[None]

    def laid(self, values: Sequence[Tensor], dims: int = 1) -> Tensor:
        """What the windows say of their positions, ``[1, ..., positions]`` each, on the positions of the whole.

        Args:
            values: of each window.
            dims: how many of the last dimensions are positions.
        """
        shape = [*values[0].shape[:-dims], *[len(self.origin.tokens)] * dims]
        out = precise(values[0].new_zeros(shape))
        for share, place, value in zip(self.shares.tolist(), self.places, values, strict=True):
            at = (..., place) if dims == 1 else (..., place[:, None], place)
            out[at] += share * precise(value)
        return out.to(values[0].dtype)


def _edges(count: int, most: int, words: Sequence[int]) -> Iterator[int]:
    """Where blocks of like length end: where a word begins, unless one is longer than a block.

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
    """Explain a text that is longer than the model takes: all of it, in windows that overlap.

    Args:
        explainer: of a model that gives one answer to a text.
        text: a text, or a pair of texts, of which the longer is cut and the other read with each window.
        method: a name from :func:`whence.list_methods`.
        target: a class, a label, a contrast or a function, for all windows; ``None``: the class of the answer to the
            whole text.
        length: tokens of a window, [CLS] and [SEP] included; ``None``: as many as the model takes.
        stride: tokens from one window to the next, at most; ``None``: half of what fits into one, so that every word
            is read twice.
        batch_size: windows explained together.
        progress: show a bar on stderr; ``None``: if there is a terminal and more than one batch.
        options: the method's options, but none that names positions: they would be others in each window.

    Returns:
        The explanation of the whole text: ``scores`` is ``[1, tokens]``, ``logits`` and ``value`` are the means of the
        windows', and ``options`` say how many windows there were. Of a text that fits, what the explainer gives.

    Example:
        >>> e = whence.windows(explainer, open("review.txt").read())
        >>> e.options["windows"]
        3
    """
    if not (target is None or is_whole(target) or isinstance(target, str | Contrast) or callable(target)):
        raise TargetError(
            "Windows are merged for one target of the whole text (a class number, a label, a contrast or a function), "
            f"not for {type(target).__name__}."
        )
    counts(batch_size=batch_size)
    whole, room = _read(explainer, text, length)
    origin = whole.origins["text"]
    assert isinstance(origin, TextOrigin)
    if room is None or len(origin.tokens) <= room:
        plain: Explanation = explainer(text, method, target, **options)
        return plain
    _refuse_positions(method, options)
    cut = Cut.of(origin, room, stride)
    count = len(cut.places)
    warnings.warn(
        f"The text has {len(origin.tokens)} tokens, more than the {room} of a window: it was read in {count} windows, "
        "and the answer is their mean by length.",
        WhenceWarning,
        stacklevel=2,
    )

    def ask(samples: list[Sample], asked: Any) -> list[Explanation]:
        out: dict[int, Explanation] = {}
        parts = batches(samples, batch_size)
        for some in track(parts, len(parts), "Explaining", progress):
            out |= zip(some, explainer.batch([samples[i] for i in some], method, asked, options), strict=True)
        return [out[i] for i in range(len(samples))]

    found = _asked(cut, cut.samples(whole), target, ask)
    each = [_fitted(explainer, e, len(place)) for e, place in zip(found, cut.places, strict=True)]
    asked = {"windows": count, "length": room, **({} if stride is None else {"stride": stride})}
    return _merged(cut, each, asked)


def _read(explainer: Explainer, text: Any, length: int | None) -> tuple[Sample, int | None]:
    """The whole text as if the model took it, and the length of a window."""
    if not isinstance(explainer.reader, TextReader):
        raise InputError(f"Windows are cut from texts, and this model reads {explainer.modality}.")
    reader = copy.copy(explainer.reader)
    limit, reader.limit = reader.limit, None
    whole = reader.read(text)
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
    """Refuse options that name places in a text: each window would take them for its own."""
    named = [name for name in POSITIONS if options.get(name) is not None]
    if named:
        raise MethodError(
            f"Option '{named[0]}' of the method '{method}' names positions, and in each window another token stands "
            "there: leave it out, or explain a text that fits without windows."
        )


def _asked(
    cut: Cut, samples: list[Sample], target: Any, ask: Callable[[list[Sample], Any], list[Explanation]]
) -> list[Explanation]:
    """Each window explained for the same target: of what is predicted, what is predicted for the whole."""
    contrast = isinstance(target, Contrast)
    predicted = target is None or (contrast and None in (target.target, target.other))
    each = ask(samples, None if predicted else target)
    if not predicted or each[0].prediction is None:
        return each
    said = int(cut.mean([e.logits for e in each]).argmax(-1))
    settled: Any = said
    if contrast:
        settled = Contrast(*(said if one is None else one for one in (target.target, target.other)))
    again = [i for i, e in enumerate(each) if contrast or e.target is None or int(e.target[0]) != said]
    for i, e in zip(again, ask([samples[i] for i in again], settled), strict=True):
        each[i] = e
    return each


def _fitted(explainer: Explainer, e: Explanation, tokens: int) -> Explanation:
    """A window's explanation without the padding of its batch; or why it cannot be merged with others."""
    if e.prediction is not None and e.logits.shape[-1] == getattr(explainer.reader, "known", None):
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


def _merged(cut: Cut, each: list[Explanation], asked: Mapping[str, Any]) -> Explanation:
    """One explanation of the whole."""
    first = each[0]
    logits = cut.mean([e.logits for e in each])
    prediction = None if first.prediction is None else logits.argmax(-1)

    def of_all(name: str, join: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
        found = [getattr(e, name) for e in each]
        return None if any(f is None for f in found) else join(found)

    return replace(
        first,
        scores=cut.laid([e.scores for e in each]),
        special=torch.tensor([[span is None for span in cut.origin.spans]], device=first.special.device),
        options={**first.options, **asked},
        logits=logits,
        value=cut.mean([e.value for e in each]),
        prediction=prediction,
        streams={name: cut.laid([e.streams[name] for e in each]) for name in first.streams},
        ledger=_ledger(cut, each),
        layers=of_all("layers", cut.laid),
        heads=of_all("heads", cut.mean),
        branches=of_all("branches", cut.laid),
        pairs=of_all("pairs", lambda found: cut.laid(found, 2)),
        prediction_names=(_said(first, logits),),
        origins=(dict.fromkeys(first.origins[0], cut.origin),),
    )


def _said(first: Explanation, logits: Tensor) -> str:
    """The answer to the whole, in words."""
    if first.prediction is None or first.task == "regression":
        return f"{float(logits.flatten()[0]):.4g}"
    true = (logits[0] > 0).nonzero().flatten().tolist() if first.task == "multi-label" else []
    return ", ".join(first.labels.get(i, str(i)) for i in true or [int(logits[0].argmax())])


def _ledger(cut: Cut, each: list[Explanation]) -> Ledger | None:
    """The books of all windows as one: every amount is linear in the target, too."""
    books = [e.ledger for e in each if e.ledger is not None]
    if len(books) < len(each):
        return None
    record = Ledger.join(books).record()
    entries = [{**entry, "amount": cut.mean(list(entry["amount"].split(1)))} for entry in record["entries"]]
    total, sums = (cut.mean(list(record[name].split(1))) for name in ("total", "sums"))
    return Ledger.of({**record, "total": total, "sums": sums, "entries": entries})
