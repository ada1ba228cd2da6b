"""Build the view model of results: cards, views and panels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..render.view_model import Card, Panel, View
from ..results.input_origin import AudioOrigin, ImageOrigin, Origin, SeriesOrigin, TextOrigin
from ..results.result import Result
from ..results.word_segmentation import Piece

SOURCES = 5  # words or patches that are listed as attended to, at most
FAINT = 0.1  # of the strongest source: weaker ones are left out


def cards(results: Iterable[Result]) -> list[Card]:
    """Return a card per input; consecutive results of the same input share one."""
    out: list[Card] = []
    before: object = None
    for result in results:
        for i, one in enumerate(result):
            given = one.origins
            seen = view(one)
            if out and given and before == given:
                out[-1] = Card(out[-1].title, (*out[-1].views, seen))
            else:
                out.append(Card(_title(given[0].values() if given else (), i), (seen,)))
            before = given
    return out


def view(one: Result) -> View:
    """Return the view of a batch of one."""
    origins = one.origins[0] if one.origins else {}
    panels = tuple(_panel(one, name, origins.get(name)) for name in one.streams)
    probability, target_probability = probabilities(one)
    block_relevance, absorbed = ledger_shares(one)
    return View(
        method=one.method,
        options=", ".join(f"{k}={v}" for k, v in one.options.items()),
        target=one.target_names[0] if one.target_names else "the target",
        prediction=one.prediction_names[0] if one.prediction_names else "",
        probability=probability,
        target_probability=target_probability,
        value=float(one.value[0]),
        panels=panels,
        limit=max((float(np.abs(_shown(p)).max(initial=0.0)) for p in panels), default=0.0),
        signed=any(bool((_shown(p) < 0).any()) for p in panels),
        block_relevance=block_relevance,
        absorbed=absorbed,
        notes=tuple(notes(one, origins.values())),
    )


def _panel(one: Result, name: str, origin: Origin | None) -> Panel:
    scores = one.streams[name][0].double().cpu().numpy()
    special = one.special_of(name)[0].cpu().numpy()
    grid = one.grid if name == "image" or len(one.streams) == 1 else None
    if isinstance(origin, TextOrigin):
        special = np.array([span is None for span in origin.spans])
    if isinstance(origin, AudioOrigin) and grid is not None:  # frequency by time
        patches = one.patches[0].double().cpu().numpy()
        return Panel(name, patches.sum(0), np.zeros(grid[1], bool), origin, grid=grid, patches=patches)
    if isinstance(origin, SeriesOrigin):
        own = scores[~special]
        return Panel(name, scores, special, origin, grid=(len(own), 1), patches=own[:, None])
    has_picture = isinstance(origin, ImageOrigin)
    pieces = tuple(origin.pieces(scores.tolist())) if isinstance(origin, TextOrigin) else ()
    return Panel(
        stream=name,
        scores=scores,
        special=special,
        origin=origin,
        pieces=pieces,
        tokens=origin.tokens if isinstance(origin, TextOrigin) else (),
        heat=one.heatmap()[0].double().cpu().numpy() if has_picture and grid is not None else None,
        grid=grid,
        patches=None if grid is None else one.patches[0].double().cpu().numpy(),
        sources=_sources(one, name, pieces, grid),
    )


def _sources(
    one: Result, name: str, pieces: Sequence[Piece], grid: tuple[int, int] | None
) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the words or patches that each attended to most, summed over layers: see ``Result.pairs``."""
    if one.pairs is None or name != next(iter(one.streams)):
        return ()
    if pieces:
        places = [piece.positions for piece in pieces if piece.score is not None]
    else:
        places = [(one.patch_start + i,) for i in range(grid[0] * grid[1])] if grid is not None else []
    members = np.zeros((len(places), one.pairs.shape[-1]))
    for row, positions in zip(members, places, strict=True):
        row[list(positions)] = 1.0
    moved = members @ one.pairs[0].sum(0).double().cpu().numpy() @ members.T
    np.fill_diagonal(moved, 0.0)
    strongest = np.argsort(-np.abs(moved), axis=1, kind="stable")[:, :SOURCES]
    return tuple(
        tuple((int(j), float(row[j])) for j in best if abs(row[j]) > FAINT * np.abs(row).max())
        for row, best in zip(moved, strongest, strict=True)
    )


def _shown(panel: Panel) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the scores that are shown: of words, of patches, of positions."""
    if panel.pieces:
        return np.array([p.score for p in panel.pieces if p.score is not None])
    if panel.patches is not None:
        return panel.patches
    return panel.scores[~panel.special]


def probabilities(one: Result) -> tuple[float | None, float | None]:
    """Return the probabilities of the predicted class (of several, none) and of the target, where there are any."""
    chances = one.probabilities
    if chances is None or one.prediction is None:
        return None, None
    several = one.task == "multi-label" and int((one.logits[0] > 0).sum()) > 1
    predicted = None if several else float(chances[0, int(one.prediction[0])])
    return predicted, None if one.target is None else float(chances[0, int(one.target[0])])


def ledger_shares(one: Result) -> tuple[tuple[float, ...], tuple[tuple[str, float], ...]]:
    """Return shares of the target's relevance: entering each block, and absorbed by the largest operations."""
    ledger = one.ledger
    if ledger is None or not ledger.sums.shape[1] or float(ledger.total[0]) == 0:
        return (), ()
    total = float(ledger.total[0])
    block_relevance = tuple(float(x) / total for x in ledger.sums[0])
    largest = ledger.largest(5)
    return block_relevance, tuple((f"{kind} {name}".strip(), amount / total) for kind, name, _, amount in largest)


def notes(one: Result, origins: Iterable[Origin]) -> Iterable[str]:
    """Yield the caveats of a batch of one: truncated text, operations without a rule."""
    for origin in origins:
        if isinstance(origin, TextOrigin) and origin.unread:
            left = sum(s.end - s.start for s in origin.unread)
            yield f"The model takes no more than {len(origin.tokens)} tokens: {left:,} characters were not read."
    if "windows" in one.options:
        yield f"The text was read in {one.options['windows']} windows; the answer is their mean by length."
    plain = one.coverage.plain
    has_rules = any(rule != "gradient (linear)" for rule in one.coverage.ruled.values())
    if plain and has_rules:  # of a gradient method, plain gradients are not worth a note
        names = [name for name, _ in plain.most_common(4)]
        if len(plain) > len(names):
            names.append(f"{len(plain) - len(names)} more")
        total = sum(one.coverage.seen.values())
        with_rule = total - sum(plain.values())
        verb = "uses its" if len(plain) == 1 else "use their"
        yield f"Coverage: {with_rule} of {total} operations have a rule; {', '.join(names)} {verb} plain gradient."


def _title(origins: Iterable[Origin], i: int) -> str:
    """Return a short name of the input."""
    for origin in origins:
        if isinstance(origin, TextOrigin):
            text = " | ".join(" ".join(t.split()) for t in origin.texts)
            return text if len(text) <= 60 else text[:59] + "…"
        if isinstance(origin, ImageOrigin | AudioOrigin) and origin.name:
            return origin.name
        if isinstance(origin, SeriesOrigin):
            return f"Series {i + 1}"
    return f"Input {i + 1}"
