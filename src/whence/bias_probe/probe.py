"""Whether names or terms sway a model: the same texts, filled with one term after the other.

Ali et al. (ICML 2022) looked for a bias of names in SST-2 by relevance. Relevance says what a name counts where it
stands; a swap says what the model would have said had another stood there. Both are reported, with intervals.

Of ``y_it``, measured of template ``i`` filled with term ``t``, a difference is a contrast ``sum_t c_t y_it``: a group's
mean minus that of all other terms, or minus a neutral word. Other templates could have been written and other names
listed, so both are draws (Clark 1973, "The language-as-fixed-effect fallacy"): the variance of the mean is that over
templates plus that over the terms of each group, its degrees of freedom are Satterthwaite's, the interval is Student's.
A group of one term is that term, no draw. Differences are corrected for the number of groups (Bonferroni).
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._utils.atomic_files import write
from .._utils.optional_imports import need
from .._utils.progress import track
from .._utils.type_checks import counts
from ..errors import InputError, TargetError
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from .templates import Filled, Groups, Template, Terms, groups_of, templates_of

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]
MEASURES = ("probability", "logit", "relevance", "others", "moved")
ERROR = 0.05  # the chance that any interval of a column misses


@dataclass(frozen=True)
class Effect:
    """What was measured of a group.

    Attributes:
        group, texts: its name, and how many texts it is of.
        measure: ``probability`` and ``logit`` of the target, ``relevance`` of the term, ``others``: that of all other
            words, ``moved``: how far theirs, word by word, is from the mean over all terms (magnitudes summed).
        against: ``""``: as it is; ``"rest"``: minus all other terms; ``"neutral"``: minus the neutral word.
        mean, low, high: with its interval.
        few: too few templates to rely on.
    """

    group: str
    measure: str
    against: str
    mean: float
    low: float
    high: float
    texts: int
    few: bool

    @property
    def sure(self) -> float:
        """The end of the interval that is nearer to zero, or zero if it is inside: how much it is at least."""
        return 0.0 if self.low <= 0 <= self.high else min(self.low, self.high, key=abs)

    def __str__(self) -> str:
        mark = "?" if self.few else "*" if self.against and self.sure else ""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]{mark}"


@dataclass
class Probe:
    """What was found.

    Attributes:
        settings: target, method, neutral word, counts of templates and of comparisons, terms unknown to the tokenizer.
        effects: of every group by every measure, as it is and as differences.
        texts: a row for each filled text: ``template``, ``found``, ``group``, ``term``, ``text``, ``tokens`` (of the
            term), ``prediction``, ``flip`` (it is not what most terms give in this template; not where the model gives
            a value, which no two texts share), and the measures.
    """

    settings: Mapping[str, Any]
    effects: list[Effect]
    texts: list[Row]

    @property
    def against(self) -> list[str]:
        """What groups are compared with."""
        return list(dict.fromkeys(e.against for e in self.effects if e.against))

    @property
    def groups(self) -> list[str]:
        """Those that surely differ most come first, so that what is measured badly does not lead."""
        ranked = [e for e in self.effects if (e.measure, e.against) == ("logit", self.against[0])]
        return [e.group for e in sorted(ranked, key=lambda e: -abs(e.sure))]

    def effect(self, group: str, measure: str = "logit", against: str = "rest") -> Effect:
        """One of the effects.

        Example:
            >>> found.effect("women", "relevance").sure
        """
        for e in self.effects:
            if (e.group, e.measure, e.against) == (group, measure, against):
                return e
        raise InputError(f"There is no '{measure}' of '{group}' against '{against}' among the effects of this probe.")

    def table(self) -> str:
        """The groups, one a line, as Markdown."""
        level = [("probability", "")] if self.effects[0].measure == "probability" else []
        kinds = [*level, *(("logit", a) for a in self.against), *(("relevance", a) for a in ("", self.against[0]))]
        kinds.append(("moved", ""))
        counted = ["terms", "tokens", "texts", *(["flips"] if "flip" in self.texts[0] else [])]
        head = ["group", *counted, *(f"{m} - {a}" if a else m for m, a in kinds)]
        rows = [[group, *self._counts(group), *(str(self.effect(group, *k)) for k in kinds)] for group in self.groups]
        rows = [[cell.replace("|", r"\|") for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [" | ".join(map(str.ljust, row, widths)) for row in [head, ["-" * w for w in widths], *rows]]
        return "\n".join([*(f"| {line} |" for line in lines), "", *self.notes()])

    def _counts(self, group: str) -> list[str]:
        rows = [row for row in self.texts if row["group"] == group]
        tokens = sum(len(row["tokens"].split()) for row in rows)
        flips = [f"{sum(row['flip'] for row in rows):,}"] if "flip" in rows[0] else []
        return [str(len({row["term"] for row in rows})), f"{tokens / len(rows):.1f}", f"{len(rows):,}", *flips]

    def notes(self) -> Iterator[str]:
        """What a reader of the table must know."""
        s, n = self.settings, self.settings["comparisons"]
        real = f", {s['real']:,} of them real texts in which one of the terms stood" if s["real"] else ""
        yield f"{s['templates']:,} templates{real}. Target: {s['target']}. Neutral word: {s['neutral']}. {s['method']}."
        many = f" each, so that the {n} of a column hold together in 95 % (Bonferroni)" if n > 1 else ""
        yield f"Intervals of differences: {100 * (1 - ERROR / n):.4g} %{many}; * marks those without zero."
        yield "Templates are taken as draws, and so are the terms of a group of several."
        if any(effect.few for effect in self.effects):
            yield f"? marks fewer than {s['min_count']} templates: too few to say."
        if s["unknown"]:
            yield f"The tokenizer does not know {', '.join(s['unknown'])}: to the model these are the same."

    def save(self, directory: str | Path) -> list[Path]:
        """Write ``report.md``, ``effects.csv``, ``texts.csv``, ``differences.png`` and ``differences.svg``.

        Example:
            >>> found.save("names")
        """
        content = {
            "report.md": f"# Swapped terms\n\n{self.table()}\n\n![Differences](differences.svg)\n".encode(),
            "effects.csv": _comma_separated([{**vars(effect), "sure": effect.sure} for effect in self.effects]),
            "texts.csv": _comma_separated(self.texts),
            **{f"differences.{kind}": _drawn(self, kind) for kind in ("png", "svg")},
        }
        for name, written in content.items():
            write(Path(directory) / name, written)
        return [Path(directory) / name for name in content]


def probe(
    explainer: Explainer, templates: Iterable[Any], terms: Terms, target: int | str | None = None,
    method: str = "conservative-lrp", *, slot: str = "{name}", neutral: str | None = None, limit: int | None = None,
    min_count: int = 5, batch_size: int = 16, progress: bool | None = None, **options: Any,
) -> Probe:  # fmt: skip
    """Swap names or terms in texts, and report how prediction and relevance change.

    Args:
        explainer: of a model that reads texts.
        templates: texts with a slot, ``"{name} gave a moving performance"``; or real texts (also a dataset), of which
            those are taken in which one of the terms stands as a word of its own (in a script without spaces: in which
            its characters stand). Where a text has small letters only, terms are looked for and put in small letters.
            Of texts that are part of another only that one is taken.
        terms: groups, ``{"women": ["Anna", "Emma"], "men": ["John", "Paul"]}``; or a list, each a group of its own.
        target: one class for all texts, a number or a label; ``None``: what is predicted most often.
        method: a name from :func:`whence.list_methods`.
        slot: what marks the gap in a template.
        neutral: the word to compare with; ``None``: the tokenizer's mask token, or its unknown token. A model that
            fills in a mask would fill in this one instead, and is given the unknown token.
        limit: how many templates, the first ones; ``None``: all.
        min_count: with fewer templates results are marked.
        batch_size: texts explained together.
        progress: show a bar on stderr; ``None``: if there is a terminal.
        options: the method's options.

    Example:
        >>> found = whence.probe(explainer, ["{name} is superb."], {"women": ["Anna", "Emma"], "men": ["John", "Paul"]})
        >>> print(found.table())
    """
    if explainer.modality != "text":
        raise InputError(f"Terms are swapped in texts, and this model reads {explainer.modality}.")
    if not (target is None or isinstance(target, int | str)):
        raise TargetError(f"All texts are compared by one class, a number or a label, not by {type(target).__name__}.")
    counts(batch_size=batch_size, min_count=min_count, **({} if limit is None else {"limit": limit}))
    groups = groups_of(terms)
    gaps = list(islice(templates_of(templates, [term for own in groups.values() for term in own], slot), limit))
    if not gaps:
        raise InputError(f"None of the texts has the slot '{slot}', or one of the terms as a word of its own.")
    tokenizer = getattr(explainer.reader, "tokenizer", None)
    special, unknown = getattr(tokenizer, "all_special_tokens", ()), getattr(tokenizer, "unk_token", None)
    neutral = neutral or _neutral(explainer)
    if len(groups) == 1 and not neutral:
        raise InputError("There is one group of terms and no neutral word: give something to compare it with.")
    columns = [(name, term) for name, own in groups.items() for term in own] + ([("", neutral)] if neutral else [])
    _check_masks(explainer, [term for _, term in columns])
    filled = [[gap.fill(term, term in special) for _, term in columns] for gap in gaps]

    def ask(texts: list[str], wanted: int | str | None = None) -> Iterator[Explanation]:
        return explainer.stream(texts, method, wanted, batch_size=batch_size, **options)

    if target is None:
        first = ask([each[-1].text for each in filled])
        said = Counter(int(e.prediction[0]) for e in first if e.prediction is not None)
        target = said.most_common(1)[0][0] if said else None
    texts = [one.text for each in filled for one in each]
    rows = list(_rows(gaps, columns, filled, track(ask(texts, target), len(texts), "Probing", progress)))
    comparisons = len(groups) if len(groups) > 2 else 1
    settings = {
        "target": rows[0]["target"], "method": method, "neutral": neutral, "templates": len(gaps),
        "real": sum(bool(gap.found) for gap in gaps), "comparisons": comparisons, "min_count": min_count,
        "unknown": sorted({row["term"] for row in rows if row["group"] and unknown in row["tokens"].split()}),
    }  # fmt: skip
    return Probe(settings, list(_effects(rows, groups, len(columns), comparisons, min_count)), rows)


def _neutral(explainer: Explainer) -> str | None:
    """The tokenizer's mask token; its unknown token where there is none, or where the model fills in masks."""
    tokenizer, fills = getattr(explainer.reader, "tokenizer", None), getattr(explainer.reader, "fills", False)
    mask = None if fills else getattr(tokenizer, "mask_token", None)
    return mask or getattr(tokenizer, "unk_token", None)


def _check_masks(explainer: Explainer, terms: Iterable[str]) -> None:
    """Refuse terms that a masked language model would fill in, in place of the mask of the template."""
    mask = getattr(getattr(explainer.reader, "tokenizer", None), "mask_token", None)
    if getattr(explainer.reader, "fills", False) and mask and any(mask in term for term in terms):
        raise InputError(
            f"The model fills in the first {mask} of a text, so {mask} as a term, or as the neutral word, would change "
            "the question: give another word."
        )


def _rows(
    gaps: Sequence[Template],
    columns: Sequence[tuple[str, str]],
    filled: Sequence[Sequence[Filled]],
    found: Iterator[Explanation],
) -> Iterator[Row]:
    """A row for each filled text, template by template."""
    for i, (gap, texts) in enumerate(zip(gaps, filled, strict=True)):
        explained = list(islice(found, len(texts)))
        read = [_read(e, text) for e, text in zip(explained, texts, strict=True)]
        classes = explained[0].prediction is not None and explained[0].task != "regression"
        listed = [(row, others) for (row, others), (group, _) in zip(read, columns, strict=True) if group]
        usual = Counter(row["prediction"] for row, _ in listed).most_common(1)[0][0]
        mean = np.mean([others for _, others in listed], 0)
        for (group, term), (row, others) in zip(columns, read, strict=True):
            flip = {"flip": row["prediction"] != usual} if classes else {}
            place = {"template": i, "found": gap.found, "group": group, "term": term}
            yield {**place, **row, **flip, "others": float(others.sum()), "moved": float(np.abs(others - mean).sum())}


def _read(e: Explanation, filled: Filled) -> tuple[Row, Floats]:
    """What the model said, the term's relevance (of all tokens that have a letter of it), and each other word's."""
    tokens: list[str] = []
    relevance, others = 0.0, np.zeros(len(filled.others) + 1)
    for token, (start, end), score in zip(e.tokens[0], e.offsets[0], e.scores[0].tolist(), strict=True):
        within = [start < high and end > low for low, high in filled.places]
        if any(within):
            relevance += score
            tokens += [token] if within[0] else []
        elif end > start:
            others[bisect_right(filled.others, end - 1)] += score
    chances = e.probabilities
    return {
        "text": filled.text, "tokens": " ".join(tokens), "target": e.target_names[0],
        "prediction": e.prediction_names[0], "logit": float(e.value[0]), "relevance": relevance,
        "probability": None if chances is None or e.target is None else float(chances[0, int(e.target[0])]),
    }, others  # fmt: skip


def _effects(rows: Sequence[Row], groups: Groups, width: int, comparisons: int, min_count: int) -> Iterator[Effect]:
    """Every group by every measure: as it is, against the other terms, against the neutral word."""
    ends = list(accumulate(len(own) for own in groups.values()))
    draws = [range(end - len(own), end) for end, own in zip(ends, groups.values(), strict=True)]
    for measure in (m for m in MEASURES if rows[0][m] is not None):
        values = np.array([row[measure] for row in rows]).reshape(-1, width)
        for name, own in zip(groups, draws, strict=True):
            mean = np.zeros(width)
            mean[own] = 1 / len(own)
            contrasts = {"": mean}
            if len(groups) > 1:
                contrasts["rest"] = mean - (mean == 0) * (np.arange(width) < ends[-1]) / (ends[-1] - len(own))
            if width > ends[-1]:
                contrasts["neutral"] = mean - np.eye(width)[-1]
            for against, contrast in contrasts.items():
                found = interval(values, contrast, draws, ERROR / comparisons if against else ERROR)
                yield Effect(name, measure, against, *found, len(values) * len(own), len(values) < min_count)


def interval(values: Floats, contrast: Floats, draws: Sequence[range], error: float) -> tuple[float, float, float]:
    """The mean of a contrast ``[terms]`` of values ``[templates, terms]``, and the ends of its interval.

    Templates are draws, and so are the terms of each of ``draws``; ``error`` is the chance that the interval misses.
    """
    each = values @ contrast
    mean = float(each.mean())
    if len(each) < 2:
        return mean, -np.inf, np.inf
    parts = [(each.var(ddof=1) / len(each), len(each) - 1)]  # variances and their degrees of freedom
    for own in draws:
        if len(own) > 1 and contrast[own].any():
            parts.append((contrast[own].sum() ** 2 * values.mean(0)[own].var(ddof=1) / len(own), len(own) - 1))
    total = float(sum(v for v, _ in parts))
    freedom = total**2 / sum(v**2 / f for v, f in parts) if total else 1.0
    half = float(need("scipy.stats", "intervals", "evaluation").t.ppf(1 - error / 2, freedom)) * total**0.5
    return mean, mean - half, mean + half


def _comma_separated(rows: Sequence[Mapping[str, Any]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _drawn(found: Probe, kind: str) -> bytes:
    """Differences with their intervals, a group a line: of the answer, and of the term's relevance."""
    need("matplotlib", "figures", "figures").use("Agg")
    plt = need("matplotlib.pyplot", "figures", "figures")
    against, groups = found.against[0], found.groups[::-1]
    figure, axes = plt.subplots(1, 2, figsize=(9, 1.2 + 0.25 * len(groups)), sharey=True, layout="tight")
    for axis, name in zip(axes, ("logit", "relevance"), strict=True):
        effects = [found.effect(group, name, against) for group in groups]
        ends = np.nan_to_num([[e.mean - e.low, e.high - e.mean] for e in effects], posinf=0.0)
        colours = ["tab:red" if e.sure and not e.few else "tab:grey" for e in effects]
        axis.errorbar([e.mean for e in effects], range(len(groups)), xerr=ends.T, fmt="none", ecolor=colours)
        axis.scatter([e.mean for e in effects], range(len(groups)), c=colours, s=16)
        axis.axvline(0, color="black", linewidth=0.6)
        axis.set_yticks(range(len(groups)), groups)
        axis.set_xlabel(f"{name} - {against}")
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)
    return out.getvalue()
