"""Table D: models whose right explanation is known pixel by pixel, measured for each modality by itself.

A question, a caption or an object has a region of the picture and words of the text on which the answer rests
(``training/relations/cases.py``). As in Chefer et al., ICCV 2021, tokens of one modality are removed while the other
stays whole: patches and words are hidden by masks where the model has one, patches of pictures are made black.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whence
from tools.tables.plan import RESULTS
from whence._utils.progress import track
from whence.evaluation import Evaluation
from whence.evaluation import load as known
from whence.evaluation.case import Flags, Floats, as_floats, seed_of
from whence.evaluation.feature_removal import ImageRemoval, Removal, SequenceRemoval
from whence.evaluation.measurement import Measurement
from whence.evaluation.measures.perturbation import STEPS
from whence.evaluation.method_spec import MethodSpec, resolve_specs
from whence.evaluation.store import EvaluationDirectory

MODALITIES = {"vqa": ("image", "text"), "clip": ("image", "text"), "detr": ("image",)}
METHODS = [
    "rollout", "raw attention=attention", "GradCAM=grad-cam", "CVPR 2021=transformer-attribution",
    "ICCV 2021=generic-attention", "ICML 2022=conservative-lrp", "gradient-x-input", "lrp", "attn-lrp", "res-lrp",
    "libragrad=libragrad:readout=full-grad", "random",
]  # fmt: skip
ENOUGH = 200  # cases of each sort: of question, of caption
SHOWN = {"vqa": 300, "clip": 500, "detr": 200}  # cases among which they are looked for
MEASURES = ["positive-perturbation", "negative-perturbation", "relevance-mass", "pointing-game", "miou"]


@dataclass
class View:
    """One modality of a case.

    Attributes:
        removal: how its tokens are removed.
        true: ``[features]``: which of them matter.
        grid: of a picture, rows and columns of features.
        region: of a picture, ``[h, w]``: the pixels that matter.
    """

    removal: Removal
    true: Flags
    grid: tuple[int, int] | None = None
    region: Flags | None = None

    def measured(self, scores: Floats, hits: dict[int, Floats]) -> dict[str, Floats]:
        """The vector of each measure."""
        positive = scores.clip(min=0)
        out = {
            "positive-perturbation": hits[1],
            "negative-perturbation": hits[-1],
            "relevance-mass": np.array([positive[self.true].sum() / positive.sum() if positive.sum() > 0 else 0.0]),
            "pointing-game": np.array([self.true[scores == scores.max()].mean()]),
        }
        if self.grid is not None and self.region is not None:
            laid = torch.from_numpy(scores).reshape(1, 1, *self.grid)
            heat = torch.nn.functional.interpolate(laid, self.region.shape, mode="bilinear", align_corners=False)
            found, truth = (heat > heat.mean()).numpy()[0, 0], self.region
            out["miou"] = np.array(
                [(found & truth).sum(), (found | truth).sum(), (~found & ~truth).sum(), (~found | ~truth).sum()], float
            )
        return out


def view(kind: str, modality: str, case: Any, e: whence.Explanation) -> View:
    """How one modality of a case is looked at."""
    inputs: dict[str, Tensor] = dict(case.inputs)
    if modality == "text":
        inner = torch.arange(1, inputs["input_ids"].shape[1] - 1)  # without [CLS] and [SEP]
        return View(SequenceRemoval(inputs, "attention_mask", 0, inner, "text"), case.words[inner].numpy())
    side = int(len(case.patches) ** 0.5)
    if kind == "vqa":
        count = len(case.patches)
        given = {**inputs, "visual_attention_mask": torch.ones(1, count)}
        rows = SequenceRemoval(given, "visual_attention_mask", 0, torch.arange(count), "image")
        return View(rows, case.patches.numpy(), (side, side), case.region.numpy())
    pixels = inputs["pixel_values"]
    grid = e.grid or (side, side)
    cells = ImageRemoval(inputs, "pixel_values", torch.full_like(pixels, -1.0), grid)
    touched = torch.nn.functional.adaptive_max_pool2d(case.region.float()[None], grid).flatten() > 0
    return View(cells, touched.numpy(), grid, case.region.numpy())


@torch.no_grad()
def hits(model: nn.Module, case: Any, one: View, scores: Floats, seed: int) -> dict[int, Floats]:
    """Whether the model is right with 10 % to 90 % of the features removed, from the strongest (1) or weakest (-1)."""
    drawn = np.random.default_rng(seed_of(seed, case.name)).permutation(len(scores))
    flags = np.zeros((2, len(STEPS), len(scores)), bool)
    for row, sign in zip(flags, (1, -1), strict=True):
        order = drawn[np.argsort(-sign * scores[drawn], kind="stable")]
        for step, removed in zip(STEPS, row, strict=True):
            removed[order[: int(len(scores) * step)]] = True
    outputs = model(**one.removal.apply(flags.reshape(-1, len(scores))))
    right = np.asarray(case.correct(outputs).numpy(), float).reshape(2, -1)
    return {1: right[0], -1: right[1]}


def evaluate(kind: str, limit: int = ENOUGH, seed: int = 0) -> dict[str, Evaluation]:
    """Evaluate one of the three models, or go on where it stopped, until there are `limit` of each sort; by modality.

    A sort of which there are so few that `SHOWN` cases do not hold `limit` (objects that the answer "yes" rests on) has
    fewer. A case depends on the seed and its own number alone, so that a larger limit goes on too.
    """
    from relations.cases import cases, load

    model, ways = load(kind), resolve_specs(METHODS)
    stores: dict[str, EvaluationDirectory] = {}
    done: dict[str, set[str]] = {}
    for modality in MODALITIES[kind]:
        settings = {
            "dataset": {"name": f"scenes, {kind}"}, "seed": seed, "bootstrap": 2000,
            "methods": [{"label": w.label, "method": w.method, "options": dict(w.options)} for w in ways],
            "measures": [{"name": m, "options": {}} for m in MEASURES if modality == "image" or m != "miou"],
        }  # fmt: skip
        stores[modality] = EvaluationDirectory(RESULTS / "d" / f"{kind}-{modality}", settings)
        done[modality] = {row.id for row in stores[modality].rows()}
    refused = {label: why for store in stores.values() for label, why in known(store.directory).refused.items()}
    made = cases(kind, SHOWN[kind], seed, model)
    for number, case in enumerate(track(made, SHOWN[kind], f"Explaining scenes, {kind}")):
        name = _name(case, number)
        wanted = [m for m in MODALITIES[kind] if m == "text" or case.region.any()]  # "no" rests on nothing in a picture
        left = [m for m in wanted if name not in done[m] and _count(done[m], case.kind) < limit]
        if left:
            for modality, rows in _rows(kind, model, number, case, ways, left, refused, seed).items():
                stores[modality].add(rows)
                done[modality].add(name)
    found = {m: Evaluation(s.settings, s.rows(), refused) for m, s in stores.items()}
    for modality, store in stores.items():
        store.finish(found[modality])
    return found


def _rows(
    kind: str, model: nn.Module, number: int, case: Any, ways: list[MethodSpec], left: list[str],
    refused: dict[str, str], seed: int,
) -> dict[str, list[Measurement]]:  # fmt: skip
    """All measurements of one case, by modality."""
    out: dict[str, list[Measurement]] = {modality: [] for modality in left}
    for way in ways:
        if way.label in refused:
            continue
        start = time.perf_counter()
        try:
            e = whence.explain(model, case.inputs, way.method, case.target, **way.options)
        except whence.ModelError as error:
            refused[way.label] = str(error)
            continue
        seconds = time.perf_counter() - start
        for modality in left:
            one = view(kind, modality, case, e)
            scores = _scores(one, e)
            for name, vector in one.measured(scores, hits(model, case, one, scores, seed)).items():
                said = int(case.right)  # 1: the model is right
                row = Measurement(
                    _name(case, number), way.label, name, tuple(map(float, vector)), said, case.answer, 1, seconds
                )
                out[modality].append(row)
    return out


def _name(case: Any, number: int) -> str:
    """A case's id; it begins with its kind."""
    return f"{case.kind} {number}"


def _count(done: set[str], sort: str) -> int:
    """How many cases of a sort are among those done."""
    return sum(name.startswith(f"{sort} ") for name in done)


def _scores(one: View, e: whence.Explanation) -> Floats:
    """The scores of one modality's features; of a picture, its patches are the last positions of its stream."""
    return one.removal.scores(e) if one.grid is None else as_floats(e.streams["image"][0, -len(one.true) :])
