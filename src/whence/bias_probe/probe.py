"""``whence.probe``: measure how names or terms bias a model, by filling the same texts with one term after the other.

Ali et al. (ICML 2022) looked for a bias of names in SST-2 by relevance. Relevance is the contribution of a name where
it stands; a swap shows the prediction with another name in its place. Both are reported, with intervals.

For ``y_it``, measured on template ``i`` filled with term ``t``, a difference is a contrast ``sum_t c_t y_it``: a
group's mean minus that of all other terms, or minus a neutral word. Other templates could have been written and other
names listed, so both are draws (Clark 1973, "The language-as-fixed-effect fallacy"): the variance of the mean is that
over templates plus that over the terms of each group, its degrees of freedom are Satterthwaite's, the interval is
Student's. A group of one term is that term, not a draw. Differences are corrected for the number of groups
(Bonferroni).
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
from .._utils.type_checks import require_positive
from ..errors import InputError, TargetError
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from .templates import FilledTemplate, Groups, Template, Terms, groups_of, templates_of

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]
MEASURES = ("probability", "logit", "relevance", "others", "moved")
ERROR = 0.05  # the probability that any interval of a column misses


@dataclass(frozen=True)
class Effect:
    """One measure of a group.

    Attributes:
        group, texts: the name of the group, and the number of its texts.
        measure: ``probability`` and ``logit`` of the target, ``relevance`` of the term, ``others``: relevance of all
            other words, ``moved``: the sum over other words of the distance to their mean relevance over all terms.
        against: ``""``: the value itself; ``"rest"``: minus all other terms; ``"neutral"``: minus the neutral word.
        mean, low, high: the mean with its interval.
        few: whether there are too few templates to rely on.
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
        """The end of the interval that is nearer to zero, or zero if the interval contains it."""
        return 0.0 if self.low <= 0 <= self.high else min(self.low, self.high, key=abs)

    def __str__(self) -> str:
        mark = "?" if self.few else "*" if self.against and self.sure else ""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]{mark}"


@dataclass
class Probe:
    """The result of a probe.

    Attributes:
        settings: target, method, neutral word, counts of templates and of comparisons, terms unknown to the tokenizer.
        effects: every measure of every group, as values and as differences.
        texts: a row for each filled text: ``template``, ``found``, ``group``, ``term``, ``text``, ``tokens`` (of the
            term), ``prediction``, ``flip`` (whether it differs from the prediction for most terms in this template; not
            for regression), and the measures.
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
        """The groups, those with the most certain difference first."""
        ranked = [e for e in self.effects if (e.measure, e.against) == ("logit", self.against[0])]
        return [e.group for e in sorted(ranked, key=lambda e: -abs(e.sure))]

    def effect(self, group: str, measure: str = "logit", against: str = "rest") -> Effect:
        """Return one of the effects.

        Example:
            >>> found.effect("women", "relevance").sure
        """
        for e in self.effects:
            if (e.group, e.measure, e.against) == (group, measure, against):
                return e
        raise InputError(f"There is no '{measure}' of '{group}' against '{against}' among the effects of this probe.")

    def table(self) -> str:
        """Return the groups, one per line, as a Markdown table."""
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
        """Yield the notes below the table."""
        s = self.settings
        n = s["comparisons"]
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
    explainer: Explainer,
    templates: Iterable[Any],
    terms: Terms,
    target: int | str | None = None,
    method: str = "conservative-lrp",
    *,
    slot: str = "{name}",
    neutral: str | None = None,
    limit: int | None = None,
    min_count: int = 5,
    batch_size: int = 16,
    progress: bool | None = None,
    **options: Any,
) -> Probe:
    """Swap names or terms in texts, and report how prediction and relevance change.

    Args:
        explainer: of a model that reads texts.
        templates: texts with a slot, ``"{name} gave a moving performance"``; or real texts (also a dataset), of which
            those are used that contain one of the terms as a word (in a script without spaces: as characters). In a
            text of lower-case letters only, terms are matched and inserted in lower case. A text that is contained in
            another one is left out.
        terms: groups, ``{"women": ["Anna", "Emma"], "men": ["John", "Paul"]}``; or a list, each a group of its own.
        target: one class for all texts, an index or a label; ``None``: the class that is predicted most often.
        method: a name from :func:`whence.list_methods`.
        slot: the placeholder in a template.
        neutral: the word to compare with; ``None``: the tokenizer's mask token, or its unknown token. For a masked
            language model, which would fill in this mask instead, it is the unknown token.
        limit: the number of templates, the first ones; ``None``: all.
        min_count: results from fewer templates are marked.
        batch_size: texts explained together.
        progress: show a bar on stderr; ``None``: if there is a terminal.
        options: the method's options.

    Example:
        >>> found = whence.probe(explainer, ["{name} is superb."], {"women": ["Anna", "Emma"], "men": ["John", "Paul"]})
        >>> print(found.table())
    """
    _require_texts_and_class(explainer, target)
    require_positive(batch_size=batch_size, min_count=min_count, **({} if limit is None else {"limit": limit}))
    design = _design(explainer, templates, groups_of(terms), slot, neutral, limit)

    def explain(texts: list[str], wanted: int | str | None) -> Iterator[Explanation]:
        return explainer.stream(texts, method, wanted, batch_size=batch_size, **options)

    if target is None:
        target = _most_predicted(explain([filled[-1].text for filled in design.filled], None))
    texts = [one.text for filled in design.filled for one in filled]
    rows = list(_rows(design, track(explain(texts, target), len(texts), "Probing", progress)))
    return _result(design, rows, method, min_count, getattr(_tokenizer(explainer), "unk_token", None))


@dataclass(frozen=True)
class _Design:
    """The texts of a probe.

    Attributes:
        groups: terms by group.
        templates: the texts with gaps.
        columns: group and term of each text of a template; the neutral word, if there is one, is last, without a group.
        filled: the filled texts of each template.
        neutral: the neutral word.
    """

    groups: Groups
    templates: list[Template]
    columns: list[tuple[str, str]]
    filled: list[list[FilledTemplate]]
    neutral: str | None


def _require_texts_and_class(explainer: Explainer, target: Any) -> None:
    if explainer.modality != "text":
        raise InputError(f"Terms are swapped in texts, and this model reads {explainer.modality}.")
    if not (target is None or isinstance(target, int | str)):
        raise TargetError(f"All texts are compared by one class, a number or a label, not by {type(target).__name__}.")


def _design(
    explainer: Explainer,
    texts: Iterable[Any],
    groups: Groups,
    slot: str,
    neutral: str | None,
    limit: int | None,
) -> _Design:
    """Fill every template with every term and with the neutral word."""
    terms = [term for own in groups.values() for term in own]
    templates = list(islice(templates_of(texts, terms, slot), limit))
    if not templates:
        raise InputError(f"None of the texts has the slot '{slot}', or one of the terms as a word of its own.")
    neutral = neutral or _neutral(explainer)
    if len(groups) == 1 and not neutral:
        raise InputError("There is one group of terms and no neutral word: give something to compare it with.")
    columns = [(name, term) for name, own in groups.items() for term in own]
    if neutral:
        columns.append(("", neutral))
    _check_masks(explainer, [term for _, term in columns])
    special = getattr(_tokenizer(explainer), "all_special_tokens", ())
    filled = [[template.fill(term, term in special) for _, term in columns] for template in templates]
    return _Design(groups, templates, columns, filled, neutral)


def _most_predicted(explanations: Iterable[Explanation]) -> int | None:
    """Return the class that is predicted most often; ``None`` for a model without classes."""
    predictions = Counter(int(e.prediction[0]) for e in explanations if e.prediction is not None)
    return predictions.most_common(1)[0][0] if predictions else None


def _result(design: _Design, rows: list[Row], method: str, min_count: int, unknown: str | None) -> Probe:
    """Return the effects of all groups; ``unknown`` is the tokenizer's unknown token."""
    comparisons = len(design.groups) if len(design.groups) > 2 else 1
    settings = {
        "target": rows[0]["target"],
        "method": method,
        "neutral": design.neutral,
        "templates": len(design.templates),
        "real": sum(bool(template.found) for template in design.templates),
        "comparisons": comparisons,
        "min_count": min_count,
        "unknown": sorted({row["term"] for row in rows if row["group"] and unknown in row["tokens"].split()}),
    }
    return Probe(settings, list(_effects(rows, design, comparisons, min_count)), rows)


def _tokenizer(explainer: Explainer) -> Any:
    return getattr(explainer.reader, "tokenizer", None)


def _neutral(explainer: Explainer) -> str | None:
    """Return the tokenizer's mask token; its unknown token where there is none, or where the model fills in masks."""
    fills = getattr(explainer.reader, "is_masked_lm", False)
    mask = None if fills else getattr(_tokenizer(explainer), "mask_token", None)
    return mask or getattr(_tokenizer(explainer), "unk_token", None)


def _check_masks(explainer: Explainer, terms: Iterable[str]) -> None:
    """Raise for terms that a masked language model would fill in instead of the mask of the template."""
    mask = getattr(_tokenizer(explainer), "mask_token", None)
    if getattr(explainer.reader, "is_masked_lm", False) and mask and any(mask in term for term in terms):
        raise InputError(
            f"The model fills in the first {mask} of a text, so {mask} as a term, or as the neutral word, would change "
            "the question: give another word."
        )


def _rows(design: _Design, explanations: Iterator[Explanation]) -> Iterator[Row]:
    """Yield a row for each filled text, template by template."""
    columns = design.columns
    for i, (template, texts) in enumerate(zip(design.templates, design.filled, strict=True)):
        explained = list(islice(explanations, len(texts)))
        read = [_read(e, text) for e, text in zip(explained, texts, strict=True)]
        classes = explained[0].prediction is not None and explained[0].task != "regression"
        listed = [(row, others) for (row, others), (group, _) in zip(read, columns, strict=True) if group]
        usual = Counter(row["prediction"] for row, _ in listed).most_common(1)[0][0]
        mean = np.mean([others for _, others in listed], 0)
        for (group, term), (row, others) in zip(columns, read, strict=True):
            flip = {"flip": row["prediction"] != usual} if classes else {}
            place = {"template": i, "found": template.found, "group": group, "term": term}
            yield {**place, **row, **flip, "others": float(others.sum()), "moved": float(np.abs(others - mean).sum())}


def _read(e: Explanation, filled: FilledTemplate) -> tuple[Row, Floats]:
    """Return the prediction with the relevance of the term (of all tokens that overlap it), and of each other word."""
    tokens: list[str] = []
    relevance = 0.0
    others = np.zeros(len(filled.others) + 1)
    for token, (start, end), score in zip(e.tokens[0], e.offsets[0], e.scores[0].tolist(), strict=True):
        within = [start < high and end > low for low, high in filled.places]
        if any(within):
            relevance += score
            tokens += [token] if within[0] else []
        elif end > start:
            others[bisect_right(filled.others, end - 1)] += score
    probabilities = e.probabilities
    return {
        "text": filled.text, "tokens": " ".join(tokens), "target": e.target_names[0],
        "prediction": e.prediction_names[0], "logit": float(e.value[0]), "relevance": relevance,
        "probability": None if probabilities is None or e.target is None else float(probabilities[0, int(e.target[0])]),
    }, others  # fmt: skip


def _effects(rows: Sequence[Row], design: _Design, comparisons: int, min_count: int) -> Iterator[Effect]:
    """Yield every measure of every group: its value, against the other terms, against the neutral word."""
    groups = design.groups
    width = len(design.columns)
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
    """Return the mean of a contrast ``[terms]`` of values ``[templates, terms]``, and the ends of its interval.

    Templates are draws, and so are the terms of each of ``draws``; ``error`` is the probability that the interval
    misses.
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
    """Draw the differences of logit and relevance with their intervals, one group per line."""
    need("matplotlib", "figures", "figures").use("Agg")
    plt = need("matplotlib.pyplot", "figures", "figures")
    against = found.against[0]
    groups = found.groups[::-1]
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
