"""``docs/results.md`` and its figures, from what was evaluated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from tools.tables import paper
from tools.tables.contenders import ICML
from tools.tables.plan import DATASETS, MODELS, PROJECT, RESULTS, Run, readings, table_a, table_b, table_c
from tools.tables.scenes import MODALITIES
from whence.evaluation import Evaluation, load

PAGE, FIGURES = PROJECT / "docs" / "results.md", PROJECT / "docs" / "results"
ORIGINAL = [method.partition("=")[0] for method in ICML]


def write() -> Path:
    """Write the page from all results that are there; what is not there yet is said."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    sections = [HEAD, *_table_a("attention"), *_table_a("standard"), *_table_b(), *_table_c(), *_table_d()]
    PAGE.write_text("\n".join(sections).rstrip() + "\n", encoding="utf-8")
    return PAGE


def found(runs: Iterable[Run]) -> dict[str, Evaluation]:
    """The finished evaluations among some runs, by dataset."""
    return {run.name: load(run.directory) for run in runs if (run.directory / "results.json").exists()}


# -- table A -----------------------------------------------------------------------------------------------------------


def _table_a(kind: str) -> list[str]:
    runs = [run for run in table_a() if run.name.endswith(f"-{kind}")]
    done = {run.dataset: load(run.directory) for run in runs if (run.directory / "results.json").exists()}
    if not done:
        return [f"## Table A, {kind} models\n\nNot evaluated yet.\n"]
    names = [name for name in DATASETS if name in done]
    methods = list(dict.fromkeys(method for name in names for method in done[name].methods))
    lines = [TITLE_A[kind], f"Command: `make tables` (for each column: `{runs[1].command}`), seed 0.", ""]
    lines += _grid(["", *names], [["model's accuracy", *(_accuracy(runs, name) for name in names)],
                                  ["on the samples", *(f"{done[name].accuracy:.3f}" for name in names)],
                                  ["samples", *(str(done[name].samples) for name in names)]])  # fmt: skip
    for measure, word in (
        ("auac", "AUAC, higher is better; in brackets the paper's"),
        ("au-mse", "AU-MSE, lower is better"),
    ):
        rows = [[method, *(_cell(done[n], method, measure, n) for n in names)] for method in methods]
        lines += [f"**{word}** (± half the 95 % interval)", "", *_grid(["method", *names], rows)]
    cost = [[m, *(f"{1000 * done[n].seconds(m):.0f}" if m in done[n].methods else "-" for n in names)] for m in methods]
    lines += ["**Milliseconds per explanation**, on two shared cores", "", *_grid(["method", *names], cost)]
    lines += [
        _orders(done, names),
        "",
        WHY_A[kind],
        *(_readings() if kind == "attention" else []),
        _figure({n: done[n] for n in names}, "auac", f"table-a-{kind}"),
        "",
    ]
    return lines


def _accuracy(runs: Sequence[Run], dataset: str) -> str:
    """On the whole split, as the training measured it."""
    run = next(run for run in runs if run.dataset == dataset)
    known = json.loads((run.model / "accuracy.json").read_text(encoding="utf-8"))
    split = run.splits[0] if run.splits else known["split"]
    part = known["splits"][split]
    return f"{part['accuracy']:.3f} (most frequent class {part['majority']:.3f}; {split})"


def _cell(evaluation: Evaluation, method: str, measure: str, dataset: str) -> str:
    cell = evaluation.cell(method, measure) if method in evaluation.methods else None
    if cell is None:
        return "-"
    there = paper.AUAC[dataset].get(method) if measure == "auac" else None
    return f"{cell.value:.3f} ± {(cell.high - cell.low) / 2:.3f}" + ("" if there is None else f" ({there:.3f})")


def _orders(done: dict[str, Evaluation], names: Sequence[str]) -> str:
    """Where the order of the paper's methods is the paper's, and where it is not."""
    out, same, other = [], 0, 0
    for name in names:
        agree, against = 0, []
        for a, b in combinations(ORIGINAL, 2):
            ours, theirs = done[name], paper.AUAC[name]
            x, y = theirs.get(a), theirs.get(b)
            if x is None or y is None or x == y or a not in ours.methods or b not in ours.methods:
                continue
            d = ours.difference("auac", a, b)
            if d.low <= 0 <= d.high:
                continue
            if (d.value > 0) == (x > y):
                agree += 1
            else:
                against.append(f"{a if d.value > 0 else b} over {b if d.value > 0 else a}")
        same, other = same + agree, other + len(against)
        listed = f" ({'; '.join(against)})" if against else ""
        out.append(f"- {name}: {agree} agree, {len(against)} do not{listed}.")
    head = (
        f"**The order of the paper's nine methods.** Of the pairs whose paired 95 % interval excludes 0, {same} are in "
        f"the paper's order and {other} are not:"
    )
    return "\n".join([head, "", *out])


def _readings() -> list[str]:
    """All rows of a map against the one that is read."""
    done = found(readings())
    if not done:
        return []
    methods = next(iter(done.values())).methods
    body = [[m, *(_plain(one, m, "auac") for one in done.values())] for m in methods]
    told = [f"Command, for each column: `{readings()[0].command}`, 500 samples, seed 0.", ""]
    return [*_grid(["AUAC", *(name.split("/")[1] for name in done)], body), *told]


# -- tables B and C ----------------------------------------------------------------------------------------------------


def _table_b() -> list[str]:
    done = found(table_b())
    if "b/predicted" not in done:
        return ["## Table B\n\nNot evaluated yet.\n"]
    one, other = done["b/predicted"], done.get("b/target")
    if other is not None:  # where the prediction is right, the true class is the predicted one
        right = [row for row in one.rows if row.prediction == row.label and row.measure in other.measures]
        other = replace(other, rows=[*right, *other.rows])
    lines = [TITLE_B.format(samples=one.samples, accuracy=one.accuracy, command=table_b()[0].command)]
    head = [
        "method",
        *(f"{m} (predicted)" for m in paper.CVPR),
        *(["positive (target)", "negative (target)"] if other else []),
    ]
    rows = []
    for method in one.methods:
        row = [method, *(_percent(one, method, m) + _beside(m, method) for m in paper.CVPR)]
        row += [_percent(other, method, f"{sign}-perturbation") for sign in ("positive", "negative")] if other else []
        rows.append(row)
    lines += _grid(head, rows)
    more = ["relevance-mass", "pointing-game"]
    body = [[m, *(_percent(one, m, name) for name in more), f"{one.seconds(m):.2f}"] for m in one.methods]
    lines += _grid(["method", *more, "s per sample"], body)
    return [*lines, WHY_B, _figure({"predicted class": one}, "positive-perturbation", "table-b-positive"), "",
            _figure({"predicted class": one}, "negative-perturbation", "table-b-negative"), ""]  # fmt: skip


def _beside(measure: str, method: str) -> str:
    there = paper.CVPR[measure].get(method)
    return "" if there is None else f" ({there:.1f})"


def _percent(evaluation: Evaluation, method: str, measure: str) -> str:
    cell = evaluation.cell(method, measure)
    return "-" if cell is None else f"{100 * cell.value:.1f} ± {50 * (cell.high - cell.low):.1f}"


def _table_c() -> list[str]:
    runs = table_c()
    done = found(runs)
    if not done:
        return ["## Table C\n\nNot evaluated yet.\n"]
    one = done["c/movies"]
    known = json.loads((runs[0].model / "accuracy.json").read_text(encoding="utf-8"))
    lines = [
        TITLE_C.format(samples=one.samples, accuracy=one.accuracy, whole=known["accuracy"], command=runs[0].command)
    ]
    rows = []
    for method in one.methods:
        curve = one.curve(method, "token-f1")
        at = [f"{v:.3f}" for v in curve[1]] if curve else ["-"] * 8
        others = [_plain(one, method, m) for m in ("token-f1", "iou-f1", "auprc")]
        rows.append([method, *at, *others, f"{one.seconds(method):.2f}"])
    head = [
        "method",
        *(f"k = {k}" for k in range(10, 90, 10)),
        "mean F1",
        "IoU-F1",
        "AUPRC",
    ]
    return [*lines, *_grid([*head, "s per sample"], rows), _figure({"movies": one}, "token-f1", "table-c"), ""]


def _plain(evaluation: Evaluation, method: str, measure: str) -> str:
    cell = evaluation.cell(method, measure)
    return "-" if cell is None else f"{cell.value:.3f} ± {(cell.high - cell.low) / 2:.3f}"


# -- table D -----------------------------------------------------------------------------------------------------------


def _table_d() -> list[str]:
    done = {
        (kind, modality): load(RESULTS / "d" / f"{kind}-{modality}")
        for kind, modalities in MODALITIES.items()
        for modality in modalities
        if (RESULTS / "d" / f"{kind}-{modality}" / "results.json").exists()
    }
    if not done:
        return ["## Table D\n\nNot evaluated yet.\n"]
    lines = [TITLE_D]
    for (kind, modality), one in done.items():
        known = json.loads((MODELS / f"scenes-{kind}" / "accuracy.json").read_text(encoding="utf-8"))
        lines += [f"### {WORDS_D[kind]}: {modality}", ""]
        lines += [f"The model on its test set: `{json.dumps(known['accuracy'])}`.", ""]
        sorts = list(dict.fromkeys(row.id.split()[0] for row in one.rows))  # of questions, of captions
        for sort in [*(["all"] if len(sorts) > 1 else []), *sorts]:
            part = replace(one, rows=[row for row in one.rows if sort in ("all", row.id.split()[0])])
            measures = list(part.measures)
            rows = [[m, *(_plain(part, m, name) for name in measures), f"{part.seconds(m):.2f}"] for m in part.methods]
            lines += [f"**{sort}**, {part.samples} scenes", "", *_grid(["method", *measures, "s per sample"], rows)]
        lines += [f"{label} does not apply: {why}\n" for label, why in one.refused.items()]
    return lines


# -- what is drawn -----------------------------------------------------------------------------------------------------


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _figure(panels: dict[str, Evaluation], measure: str, name: str) -> str:
    """Mean curves, one panel a dataset; returns the line that shows the figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.0 * rows + 1.2), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    colours = [*plt.get_cmap("tab10").colors, *plt.get_cmap("tab20").colors[1::2]]
    methods = list(dict.fromkeys(m for e in panels.values() for m in e.methods))
    for axis, (title, evaluation) in zip(axes.flat, panels.items(), strict=False):
        for i, method in enumerate(methods):
            curve = evaluation.curve(method, measure) if method in evaluation.methods else None
            if curve is not None:
                axis.plot(*curve, color=colours[i % 20], linewidth=1.2, label=method)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(evaluation.measures[measure].along, fontsize=7)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    if len(panels) > 1:
        figure.legend(handles, labels, loc="lower center", ncol=6, fontsize=7, frameon=False)
        figure.tight_layout(rect=(0, 0.9 / (3.0 * rows + 1.2), 1, 1))
    else:
        figure.set_figwidth(6.4)
        figure.legend(handles, labels, loc="center right", fontsize=7, frameon=False)
        figure.tight_layout(rect=(0, 0, 0.72, 1))
    figure.savefig(FIGURES / f"{name}.png", dpi=130)
    plt.close(figure)
    return f"![{measure}, mean curves](results/{name}.png)"


HEAD = """# Results

Made by `make tables` from the evaluations in `build/results` (`whence evaluate`, see [evaluation.md](evaluation.md)):
seed 0; ± is half of a 95 % bootstrap interval over samples. Models are trained by `make models`
(`training/tables`, `training/relations`); data are read from the shared directory (`WHENCE_SHARED`).
"""
TITLE_A = {
    "attention": """## Table A: activation and pruning curves, models of attention alone

As in Ali et al., ICML 2022: blocks without MLP. [UNK] in the place of removed tokens, [CLS] and [SEP] among them; black
patches of digits. The predicted class is explained. Brackets: the paper's AUAC, of its own models of this kind. The
paper has A-Flow for SST-2 and BACE only; Semaine is not at hand. BACE's test split has 152 molecules: the rest of the
500 are of its other splits. Of TweetEval's hate, validation is used: its test split is of other topics, on which no
model trained here is better than the most frequent class.
""",
    "standard": """## Table A, continued: the same of models with MLP blocks

In brackets still the paper's AUAC, which are of models without MLP.
""",
}
WHY_A = {
    "attention": """**Why, where it is not.**

- *Attention and Rollout below chance* (SST-2, hate): the published code adds up the rows of all tokens, but these
  models answer from the row of [CLS]. Read there (`rows="target"`, our default), both are above it: the small table
  below. A-Flow is of that row here, and so is above both.
- *GI and LRP (AH) on digits*: our model normalises before each block and once more before it answers, and gradient x
  input through a LayerNorm sums to nothing. With the rule for LayerNorm alone, LRP (LN) is at 0.90, and everything
  without it is near chance: the paper's argument, more strongly than in the paper, whose model of digits (in which GI
  does as well as LRP) is not described in the document at hand.
- *IMDB*: all gradient-based methods lie between 0.951 and 0.955; the differences are real, and of no use.
- *LRP (LN) and LRP (AH+LN)*: 0.02 apart or less here, with either sign, and 0.001 to 0.015 in the paper. To hold
  attention fixed costs what queries and keys contribute, and saves what their gradients distort.
- *Absolute values* are of other models, tokenizers and samples. Random differs most on digits (0.54, 0.32): most
  patches of a digit are black, and black is what stands in for removed ones.
""",
    "standard": """With MLP blocks the order is the paper's in the same way: LRP (AH+LN), `attn-lrp`, `res-lrp` and
`libragrad` share the first place within their intervals nearly everywhere. GI falls further behind LRP (AH), which here
also passes relevance through the activations of the MLPs, where GI differentiates them.
""",
}
TITLE_B = """## Table B: perturbation and segmentation

ViT-Ti/16, trained on ImageNet, on {samples} photographs of pets that are ImageNet classes; its accuracy on them is
{accuracy:.1%}. Pixels are removed by the heat map (10 % to 90 %, black) and accuracy is averaged by trapezoids, so that
a model that is always right has 80. In brackets the numbers of Chefer et al., CVPR 2021 (tables 1 and 2): **another
model** (ViT-B/16), other data (ImageNet, ImageNet-Segmentation), to be compared by order only. That paper's tables are
not among the documents at hand: its numbers were entered from memory, and are to be checked before they are quoted.

Command: `{command}`
"""
WHY_B = """Of the paper's six methods the paper's own is the best in positive perturbation, pixel accuracy and mIoU, and
LRP the worst, as in the paper; in negative perturbation and mAP, where the paper has it first, too, rollout is level
with it here (the intervals overlap). `libragrad` is the best of all in six of the seven columns, `legrad` in mAP.
Gradient x input is at chance: the model normalises before it answers, see table A.
"""
TITLE_C = """## Table C: human rationales

ERASER Movie Reviews, {samples} documents: all 199 of the test split, 200 of validation, the rest of training. The
classifier (MiniLM, fine-tuned; it reads the beginning of a review) is right on {accuracy:.1%} of them ({whole:.1%} of
the test split). F1 of the k strongest words against all words that people marked, also those that were not read.

Command: `{command}` (the test split alone; `make tables` adds the others)
"""
TITLE_D = """## Table D: models with known answers

Scenes of handwritten digits (MNIST test digits), where the right explanation is known pixel by pixel and word by word
(`training/relations`): questions for a co-attention model (the stock LXMERT class, patches as visual features),
captions for a CLIP-style pair, objects for an encoder-decoder detector (the stock DETR class). As in Chefer et al.,
ICCV 2021, tokens of one modality are removed while the other stays whole; `positive-perturbation` (lower is better) and
`negative-perturbation` (higher is better) are areas under the accuracy, at most 0.8. `relevance-mass`, `pointing-game`
and `miou` are against the true region, or the words that matter.

Command: `make tables`, or `python -m tools.tables D`, seed 0.
"""
WORDS_D = {"vqa": "Questions (LXMERT)", "clip": "Captions (CLIP)", "detr": "Objects (DETR)"}
