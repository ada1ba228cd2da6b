"""Masks and boxes from heat: what is cut where, what belongs together, and files that say the same."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from transformers import DetrConfig, DetrForObjectDetection, OwlViTConfig, OwlViTForObjectDetection, ResNetConfig
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from typer.testing import CliRunner

import whence
from tests.support import tiny
from tests.support.goldens import GOLDEN, golden, load, shared
from tools.benchmarks import localisation as measured
from whence.cli.locate import locate as command
from whence.errors import InputError, ModelError, TargetError
from whence.evaluation.case import as_floats
from whence.evaluation.measures.segmentation import IntersectionOverUnion
from whence.localisation import (  # fmt: skip
    Coco,
    Region,
    box_of,
    components,
    decode,
    detect,
    encode,
    finds_objects,
    largest,
    threshold_of,
)
from whence.localisation.locate import locate
from whence.localisation.segment import segment, within
from whence.models import MODELS

PROJECT = Path(__file__).resolve().parents[3]


def scattered(height, width, share, seed):
    return np.random.default_rng(seed).random((height, width)) < share


MASKS = st.builds(
    scattered,
    st.integers(1, 15),
    st.integers(1, 15),
    st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 1.0]),
    st.integers(0, 99),
)


def tensor(picture):
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# -- connected components ----------------------------------------------------------------------------------------------


def test_without_scipy_the_error_names_the_extra_that_brings_it(monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(whence.MissingError, match=r"needs scipy .*whence\[localisation\]"):
        components(torch.ones(2, 2, dtype=torch.bool))
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(name.startswith("scipy") for name in extras["localisation"])


# -- thresholds --------------------------------------------------------------------------------------------------------


def parted(values):
    """Otsu's upper class by trying every threshold, in plain Python."""
    best, upper = -1.0, set()
    for t in sorted(set(values)):
        above = [v for v in values if v > t]
        below = [v for v in values if v <= t]
        if above:
            apart = sum(above) / len(above) - sum(below) / len(below)
            between = len(above) * len(below) * apart**2
            if between > best * (1 + 1e-9):
                best, upper = between, set(above)
    return upper


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("count", [2, 3, 10, 60])
def test_otsu_is_the_best_of_all_thresholds(count, levels, power):
    """Of flat and of peaked maps, with many equal values and with few, negative ones among them."""
    for seed in range(5):
        drawn = np.random.default_rng(seed).integers(0, levels, count) ** power - levels // 3
        found = threshold_of(torch.from_numpy(drawn).double(), "otsu")
        assert {v for v in drawn if v > found} == parted(drawn.astype(float).tolist())
        assert len(set(drawn)) == 1 or found in drawn


def test_otsu_of_a_map_with_a_large_offset():
    heat = torch.from_numpy(np.random.default_rng(0).random((9, 9)) ** 4)
    assert threshold_of(heat + 1e6, "otsu") - 1e6 == pytest.approx(threshold_of(heat, "otsu"), abs=1e-9)


def test_the_mean_and_shares_are_what_they_say():
    heat = torch.tensor([[-2.0, 0.0], [2.0, 8.0]])
    assert threshold_of(heat, "mean") == 2.0
    assert threshold_of(heat, 0.2) == pytest.approx(0.0)
    assert threshold_of(heat, 0) == -2.0


@pytest.mark.parametrize("threshold", ["mean", "otsu", 0.3])
def test_nothing_stands_out_of_a_map_that_is_the_same_everywhere(threshold):
    heat = torch.full((3, 4), 0.7)
    assert not (heat.double() > threshold_of(heat, threshold)).any()


@pytest.mark.parametrize("threshold", ["median", 1.0, -0.1, float("nan"), True, None])
def test_other_thresholds_are_refused(threshold):
    with pytest.raises(InputError, match="'mean', 'otsu', or a number"):
        threshold_of(torch.rand(3, 3), threshold)


# -- parts and boxes ---------------------------------------------------------------------------------------------------


def flooded(mask):
    """Numbers of the connected parts by filling each from its first pixel."""
    out, number = np.zeros(mask.shape, int), 0
    for start in zip(*np.nonzero(mask), strict=True):
        if out[start]:
            continue
        number += 1
        todo = [start]
        while todo:
            y, x = todo.pop()
            if 0 <= y < mask.shape[0] and 0 <= x < mask.shape[1] and mask[y, x] and not out[y, x]:
                out[y, x] = number
                todo += [(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return out


def spiral(side):
    """One pixel wide, one apart."""
    mask, y, x, step = np.zeros((side, side), bool), 0, 0, (0, 1)
    for length in [side - 1, *(n for k in range(side - 1, 0, -2) for n in (k, k))]:
        for _ in range(length):
            mask[y, x] = True
            y, x = y + step[0], x + step[1]
        step = (step[1], -step[0])
    return mask


@given(MASKS)
def test_parts_are_those_of_a_flood_fill(mask):
    assert components(torch.from_numpy(mask)).tolist() == flooded(mask).tolist()


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6])
def test_parts_of_large_masks(share):
    mask = np.random.default_rng(0).random((83, 61)) < share
    assert (components(torch.from_numpy(mask)).numpy() == flooded(mask)).all()


def test_a_spiral_is_one_part():
    mask = spiral(41)
    assert mask[20, 18:22].any()
    assert not mask.all()
    assert components(torch.from_numpy(mask)).unique().tolist() == [0, 1]


@given(MASKS)
def test_the_largest_part_has_most_pixels_and_comes_first(mask):
    parts = flooded(mask)
    sizes = [(parts == n).sum() for n in range(1, parts.max() + 1)]
    wanted = parts == 1 + sizes.index(max(sizes)) if sizes else np.zeros_like(mask)
    assert (largest(torch.from_numpy(mask)).numpy() == wanted).all()


@given(MASKS)
def test_the_box_of_a_mask_is_the_smallest(mask):
    left, top, right, bottom = box_of(torch.from_numpy(mask))
    assert mask[top:bottom, left:right].sum() == mask.sum()
    if mask.any():
        for edge in (mask[top, :], mask[bottom - 1, :], mask[:, left], mask[:, right - 1]):
            assert edge.any()
    else:
        assert (left, top, right, bottom) == (0, 0, 0, 0)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_code_counts_column_by_column_and_begins_outside():
    assert encode(torch.tensor([[0, 1, 1], [0, 0, 1]]).bool()) == {"size": [2, 3], "counts": [2, 1, 1, 2]}
    assert encode(torch.tensor([[1, 0], [1, 1]]).bool())["counts"] == [0, 2, 1, 1]


@given(MASKS)
def test_a_code_says_what_the_mask_is(mask):
    code = encode(torch.from_numpy(mask))
    assert (decode(json.loads(json.dumps(code))).numpy() == mask).all()
    assert all(code["counts"][1:])  # only the first may be 0
    value, pixels = False, []
    for count in code["counts"]:
        pixels += [value] * count
        value = not value
    height, width = mask.shape
    assert [[pixels[x * height + y] for x in range(width)] for y in range(height)] == mask.tolist()


@pytest.mark.parametrize("counts", [[3], [5, -1], b"abc"])
def test_a_code_that_does_not_fit_is_refused(counts):
    with pytest.raises(InputError, match="run-length code"):
        decode({"size": [2, 2], "counts": counts})


@given(MASKS)
def test_a_saved_mask_is_read_as_it_was(tmp_path_factory, mask):
    path = Region(torch.from_numpy(mask), 1.0, "cat").save(tmp_path_factory.mktemp("masks") / "mask.png")
    with Image.open(path) as opened:
        assert opened.mode == "L"
        assert (np.asarray(opened) == mask * 255).all()


def test_masks_are_pictures_and_books_are_json(tmp_path):
    with pytest.raises(InputError, match=r"saved as \.png"):
        Region(torch.ones(2, 2).bool(), 1.0, "cat").save(tmp_path / "mask.jpg")
    with pytest.raises(InputError, match=r"saved as \.json"):
        Coco().save(tmp_path / "coco.txt")


def test_a_coco_file_has_pictures_masks_boxes_and_classes(tmp_path):
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[1:3, 2:5] = True
    book = Coco()
    book.add("a.jpg", [Region(mask, 0.9, "cat", 17, (1.5, 1.0, 5.0, 3.0)), Region(mask, 0.2, "cat or dog")])
    book.add("b.jpg", [], (7, 8))
    book.add("c.jpg", [Region(~mask, 0.8, "car", 3), Region(mask, 0.7, "cat", 17)])
    found = json.loads(book.save(tmp_path / "coco.json").read_text())
    assert [(p["file_name"], p["height"], p["width"]) for p in found["images"]] == [
        ("a.jpg", 4, 6), ("b.jpg", 7, 8), ("c.jpg", 4, 6)]  # fmt: skip
    assert [a["image_id"] for a in found["annotations"]] == [1, 1, 3, 3]
    assert [a["id"] for a in found["annotations"]] == [1, 2, 3, 4]
    assert [a["category_id"] for a in found["annotations"]] == [17, 18, 3, 17]
    assert found["categories"] == [
        {"id": 3, "name": "car"}, {"id": 17, "name": "cat"}, {"id": 18, "name": "cat or dog"}]  # fmt: skip
    assert [a["bbox"] for a in found["annotations"][:3]] == [[1.5, 1.0, 3.5, 2.0], [2, 1, 3, 2], [0, 0, 6, 4]]
    assert [a["area"] for a in found["annotations"]] == [6, 6, 18, 6]
    assert (decode(found["annotations"][2]["segmentation"]) == ~mask).all()
    assert found["annotations"][0]["score"] == 0.9


def test_a_picture_has_one_size():
    regions = [Region(torch.ones(size).bool(), 1.0, "cat") for size in [(2, 2), (3, 3)]]
    with pytest.raises(InputError, match="different sizes"):
        Coco().add("a.jpg", regions)
    with pytest.raises(InputError, match=r"size=\(height, width\)"):
        Coco().add("a.jpg", [])


# -- explanations ------------------------------------------------------------------------------------------------------


def drawn(e, patches):
    """An explanation of a picture with other scores."""
    scores = torch.cat([torch.zeros(1, 1), torch.as_tensor(patches).float().reshape(1, -1)], 1)
    return replace(e, scores=scores, streams={"image": scores})


def test_a_mask_is_the_heat_map_of_the_picture_above_its_threshold():
    explainer = whence.Explainer(tiny.vit(), lambda picture: tensor(picture.resize((12, 12))))
    e = drawn(explainer(noise(20, 30)), [[9.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
    heat = e.heatmap()[0]
    assert heat.shape == (20, 30)
    (region,) = locate(e, "mean")
    assert (region.mask == (heat > heat.mean())).all()
    assert components(region.mask).max() == 2
    (region,) = locate(e, "mean", largest=True)
    assert region.box == (0, 0, *region.box[2:])
    assert 5 < region.box[2] < 20
    (region,) = locate(e, 0.7)
    assert (region.mask == (heat > 0.7 * heat.max())).all()


def test_by_default_a_map_is_cut_at_its_mean():
    e = whence.Explainer(tiny.vit(), lambda picture: tensor(picture.resize((12, 12))))(noise(20, 30))
    assert (locate(e)[0].mask == locate(e, "mean")[0].mask).all()
    assert (locate(e)[0].mask != locate(e, "otsu")[0].mask).any()


def test_what_the_model_did_not_see_is_in_no_mask():
    """The left part of a wide picture alone is read; heat is negative, so the 0 beside it is above every mean."""

    def left(picture):
        return tensor(picture.crop((0, 0, picture.height, picture.height)).resize((12, 12)))

    explainer = whence.Explainer(tiny.vit(), left)
    patches = -torch.arange(1.0, 10.0)
    e = drawn(explainer(noise(24, 60)), patches)
    assert (e.heatmap()[0, :, 30:] == 0).all()
    for threshold in ("mean", "otsu", 0.5):
        (region,) = locate(e, threshold)
        assert region.mask.any()
        assert not region.mask[:, 25:].any()
        alone = whence.Explainer(tiny.vit(), left)(noise(24, 60)[:, :24])
        (square,) = locate(drawn(alone, patches), threshold)
        assert (region.mask[:, :24] == square.mask).float().mean() > 0.95


def test_tensors_are_located_on_the_model_s_input():
    e = whence.explain(tiny.vit(), torch.randn(2, 3, 12, 12), "generic-attention")
    regions = locate(e, "otsu")
    assert [r.mask.shape for r in regions] == [(12, 12)] * 2
    assert (regions[1].mask == locate(e[1], "otsu")[0].mask).all()


def test_a_region_says_what_is_there_and_how_probable_it_is():
    model = tiny.vit()
    model.config.id2label = {0: "cat", 1: "dog", 2: "car"}
    explainer = whence.Explainer(model, lambda picture: tensor(picture.resize((12, 12))))
    picture = noise(20, 30)
    cat, cat_rather, value = explainer(
        picture,
        "gradient-x-input",
        whence.every(["cat", whence.contrast("cat", "dog"), lambda o: o.logits[:, 0]]),
    )
    probability = float(cat.probabilities[0, 0])
    found = locate(whence.Explanations([cat, cat_rather, value]))
    assert [(r.label, r.category) for r in found] == [("cat", 0), ("cat rather than dog", None), ("the target", None)]
    assert [r.score for r in found] == pytest.approx([probability, probability, float(cat.logits[0, 0])])


def test_a_text_has_no_place():
    e = whence.explain(tiny.bert(), {"input_ids": torch.arange(1, 6)[None]})
    with pytest.raises(whence.WhenceError, match="no patches"):
        locate(e)


def test_the_mean_is_that_of_the_published_measure():
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    for path in sorted((MODELS / "digits" / "examples").glob("*.png")):
        e = explainer(path, "generic-attention")
        case = SimpleNamespace(explanation=e)
        found = IntersectionOverUnion().found(case, as_floats(e.heatmap()[0]))
        assert (locate(e, "mean")[0].mask.numpy() == found).all()


def test_each_digit_of_a_picture_has_its_own_place():
    """The model that comes with Whence: the two digits of each example lie apart, and so do their boxes."""
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    for path in sorted((MODELS / "digits" / "examples").glob("*.png")):
        names = [f"digit {n}" for n in path.stem.split("-")]
        a, b = locate(explainer(path, "generic-attention", whence.every(names)), "otsu", largest=True)
        assert {a.label, b.label} == set(names)
        assert a.mask.shape == np.asarray(Image.open(path).convert("L")).shape
        assert not (a.mask & b.mask).any()
        ink = torch.from_numpy(np.asarray(Image.open(path).convert("L")) > 0)
        for region in (a, b):
            assert ink[region.mask].float().mean() > 2 * ink.float().mean()


def test_masks_of_photographs_lie_on_the_animal():
    explainer = whence.Explainer.from_pretrained(shared("weights", "vit_tiny_patch16_224_hf"))
    folder = shared("data", "pets_seg")
    found = {"generic-attention": [], "random": []}
    for path in sorted((folder / "masks").glob("*.png"))[::25]:
        truth = torch.from_numpy(np.array(Image.open(path)))
        known, there = truth != 3, truth == 1
        for method, rows in found.items():
            (region,) = locate(explainer(folder / "images" / f"{path.stem}.jpg", method), "mean", largest=True)
            mask = region.mask[known]
            rows.append([float((mask & there[known]).sum()), float((mask | there[known]).sum())])
    (a, b), (c, d) = (np.sum(rows, 0) for rows in found.values())
    assert a / b > 0.5
    assert c / d < 0.35


# -- detectors ---------------------------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """A detector that always answers the same, under the names of the published code."""

    main_input_name = "pixel_values"

    def __init__(self, logits, boxes):
        super().__init__()
        self.logits, self.boxes = torch.tensor(logits), torch.tensor(boxes)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, pixel_values):
        seen = pixel_values.mean() * 0 * self.scale
        return {"pred_logits": self.logits[None] + seen, "pred_boxes": self.boxes[None] + seen}


LOGITS = [[0.0, 4.0, 1.0], [2.0, 1.0, 9.0], [3.0, 0.0, 0.0]]
BOXES = [[0.5, 0.5, 0.5, 1.0], [0.1, 0.1, 0.1, 0.1], [0.25, 0.5, 0.5, 0.5]]


def plain(picture):
    return tensor(picture.resize((40, 20)))


def test_the_last_class_is_no_object_unless_all_have_names():
    picture = noise(60, 80)
    found = detect(whence.Explainer(Fixed(LOGITS, BOXES), plain, labels=["cat", "dog"]), picture)
    assert [(f.query, f.category, f.label) for f in found] == [(0, 1, "dog"), (2, 0, "cat")]
    softmax = torch.tensor(LOGITS).softmax(-1)
    assert [f.score for f in found] == pytest.approx([float(softmax[0, 1]), float(softmax[2, 0])])
    found = detect(whence.Explainer(Fixed(LOGITS, BOXES), plain, labels=["cat", "dog", "car"]), picture)
    assert [(f.query, f.label) for f in found] == [(1, "car"), (0, "dog"), (2, "cat")]
    assert found[0].score == pytest.approx(float(torch.tensor(9.0).sigmoid()))


def test_a_detector_of_one_class_needs_no_names():
    logits = [[row[0]] for row in LOGITS]
    found = detect(whence.Explainer(Fixed(logits, BOXES), plain), noise(60, 80))
    assert [(f.query, f.label) for f in found] == [(2, "0"), (1, "0")]
    assert found[0].score == pytest.approx(float(torch.tensor(3.0).sigmoid()))


class Asking(nn.Module):
    """A detector that looks for texts, with the texts that it is to look for."""

    main_input_name = "pixel_values"

    def __init__(self, texts):
        super().__init__()
        torch.manual_seed(0)
        size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        words = {"vocab_size": 50, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2}
        self.config = OwlViTConfig(
            text_config={**size, **words}, vision_config={**size, "image_size": 32, "patch_size": 8}, projection_dim=16
        )
        self.model = OwlViTForObjectDetection(self.config)
        self.ids = torch.tensor([[1, 5 + i, 6, 2] for i in range(texts)])

    def forward(self, pixel_values):
        return self.model(self.ids, pixel_values, torch.ones_like(self.ids))


@pytest.mark.parametrize("texts", [1, 2, 3, 5])
def test_classes_that_are_texts_are_not_those_of_the_configuration(texts):
    """Of OWL-ViT there are as many as were asked for, whatever its configuration calls its two labels."""
    model, inputs = Asking(texts).eval(), {"pixel_values": torch.randn(1, 3, 32, 32)}
    with torch.no_grad():
        outputs = model(**inputs)
    logits = outputs.logits[0].double()
    found = detect(whence.Explainer(model), inputs, 0.0)
    assert len(found) == len(logits)
    for one in found:
        assert one.score == pytest.approx(float(logits[one.query].sigmoid().max()))
        assert one.category == int(logits[one.query].argmax())
        assert one.label == str(one.category)
    e = whence.explain(model, inputs, "gradient-x-input", target=whence.query(3))
    assert float(e.value) == pytest.approx(float(logits[3].max()))
    named = whence.Explainer(model, labels=[f"text {i}" for i in range(texts)])
    assert detect(named, inputs, 0.0)[0].label == f"text {found[0].category}"


def test_objects_can_be_asked_for_by_class_and_confidence():
    explainer = whence.Explainer(Fixed(LOGITS, BOXES), plain, labels=["cat", "dog"])
    assert [f.label for f in detect(explainer, noise(60, 80), target="cat")] == ["cat"]
    assert [f.label for f in detect(explainer, noise(60, 80), target=1)] == ["dog"]
    assert [f.label for f in detect(explainer, noise(60, 80), 0.92)] == ["dog"]
    assert [f.query for f in detect(explainer, noise(60, 80), 0.0)] == [0, 2, 1]
    assert detect(explainer, noise(60, 80), 0.99) == []
    assert segment(explainer, noise(60, 80), confidence=0.99) == []
    with pytest.raises(TargetError, match="no label 'cow'"):
        detect(explainer, noise(60, 80), target="cow")
    with pytest.raises(InputError, match="probability from 0 to below 1"):
        detect(explainer, noise(60, 80), 1.5)


def test_boxes_lie_on_the_picture_as_it_was_given():
    """Resized, cut to a square, or padded to one: the box is of what there is of the picture in the input."""

    def square(picture):
        return tensor(picture.resize((80, 40)).crop((20, 0, 60, 40)))

    def padded(picture):
        canvas = Image.new("RGB", (80, 80), (90, 90, 90))
        canvas.paste(picture.resize((80, 40)), (0, 0))
        return tensor(canvas)

    def mirrored(picture):
        return tensor(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT))

    boxes = {}
    for process in (plain, square, padded, mirrored):
        found = detect(whence.Explainer(Fixed(LOGITS, BOXES), process, labels=["cat", "dog"]), noise(100, 200))
        boxes[process.__name__] = found[1].box
    assert boxes["plain"] == pytest.approx((0, 25, 100, 75), abs=0.6)
    assert boxes["square"] == pytest.approx((50, 25, 100, 75), abs=0.6)
    assert boxes["padded"] == pytest.approx((0, 25, 100, 75), abs=0.6)
    assert boxes["mirrored"] == pytest.approx((100, 25, 200, 75), abs=0.6)
    (first, *_) = detect(whence.Explainer(Fixed(LOGITS, BOXES)), torch.zeros(1, 3, 20, 40))
    assert first.box == (10, 0, 30, 20)


def test_boxes_do_not_leave_the_picture():
    boxes = [[0.9, 0.9, 0.6, 0.6], *BOXES[1:]]
    (first, *_) = detect(whence.Explainer(Fixed(LOGITS, boxes), plain, labels=["cat", "dog"]), noise(100, 200))
    assert first.box == pytest.approx((120, 60, 200, 100))


def test_a_pixel_is_within_a_box_if_its_centre_is():
    found = within((1.4, 0.0, 3.6, 1.5), torch.zeros(3, 5))
    assert found.tolist() == [[False, True, True, True, False], [False] * 5, [False] * 5]


def test_a_classifier_finds_no_objects():
    explainer = whence.Explainer(tiny.vit(), lambda picture: tensor(picture.resize((12, 12))))
    assert not finds_objects(explainer, noise(20, 30))
    with pytest.raises(ModelError, match=r"finds no objects.*whence\.locate"):
        segment(explainer, noise(20, 30))


def test_masks_of_detr_are_those_of_the_published_maps():
    """The relevance of each query is known from the authors' code; Otsu's threshold of it, enlarged, is the mask."""
    case, model = golden("03d_gae_detr"), load("DetrForObjectDetection", "03d_gae_detr", "eager")
    explainer = whence.Explainer(model)
    inputs = {"pixel_values": torch.from_numpy(case["pixel_values"]).double()}
    assert finds_objects(explainer, inputs)
    found, regions = detect(explainer, inputs, 0.0), segment(explainer, inputs, confidence=0.0)
    assert sorted(f.query for f in found) == list(range(7))
    assert [r.score for r in regions] == sorted((r.score for r in regions), reverse=True)
    for one, region in zip(found, regions, strict=True):
        assert one.category == int(case[f"q{one.query}_target_class"])
        assert region.detected == one.box
        published = torch.from_numpy(case[f"q{one.query}_ours_nolrp_norm"]).reshape(1, 1, 6, 8)
        heat = torch.nn.functional.interpolate(published, (48, 64), mode="bilinear")[0, 0]
        wanted = heat > threshold_of(heat, "otsu")
        assert (region.mask == wanted).float().mean() > 0.999  # the model's positions are in float32
        assert 0 < region.mask.sum() < region.mask.numel()


def detr():
    torch.manual_seed(0)
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        backbone_config=backbone, num_queries=5, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, encoder_attention_heads=2, decoder_attention_heads=2, d_model=16, num_labels=3,
    )  # fmt: skip
    return DetrForObjectDetection(config).eval()


def test_masks_can_be_cut_by_the_detector_s_boxes():
    """With the processor of DETR, which pads and says where."""
    processor = DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64})
    explainer = whence.Explainer(detr(), processor)
    whole = segment(explainer, noise(50, 80), threshold="mean", confidence=0.0)
    cut = segment(explainer, noise(50, 80), threshold="mean", confidence=0.0, cut=True)
    one = segment(explainer, noise(50, 80), threshold="mean", confidence=0.0, cut=True, largest=True)
    assert len(whole) == 5
    for a, b, c in zip(whole, cut, one, strict=True):
        left, top, right, bottom = a.detected
        y, x = np.mgrid[:50, :80] + 0.5
        inside = torch.from_numpy((left <= x) & (x < right) & (top <= y) & (y < bottom))
        assert (b.mask == a.mask & inside).all()
        assert (c.mask == largest(b.mask)).all()
    assert any((a.mask != b.mask).any() for a, b in zip(whole, cut, strict=True))


def test_a_detector_in_training_is_left_in_training():
    model = detr().train()
    explainer = whence.Explainer(model, DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64}))
    first, again = (detect(explainer, noise(50, 80), 0.0) for _ in range(2))
    assert first == again
    assert model.training


def test_a_trained_detector_s_masks_lie_on_its_objects():
    directory = PROJECT / "build" / "models" / "scenes-detr"
    if not (directory / "config.json").exists():
        pytest.skip("The small detector is not trained (make models).")
    shared("data", "mnist")
    from tools.training.relations.detr import draw
    from tools.training.scenes import load_mnist

    explainer = whence.Explainer.from_pretrained(directory)
    scenes = draw(load_mnist("t10k"), 8, np.random.default_rng(3), training=False).scenes
    hits = {"generic-attention": [], "random": []}
    for image, labels, masks in zip(scenes.images, scenes.labels, scenes.masks, strict=True):
        for method, found in hits.items():
            for region in segment(explainer, image, method):
                for truth in torch.from_numpy(masks[labels == region.category]):
                    found.append(float((region.mask & truth).sum() / (region.mask | truth).sum()))
    assert len(hits["random"]) > 0.8 * (scenes.labels >= 0).sum()
    assert np.mean(hits["generic-attention"]) > 0.25
    assert np.mean(hits["random"]) < 0.1


# -- what is measured --------------------------------------------------------------------------------------------------


def test_boxes_overlap_by_their_intersection_over_their_union():
    assert measured.overlap((0, 0, 4, 2), (2, 0, 6, 2)) == pytest.approx(4 / 12)
    assert measured.overlap((0, 0, 4, 2), (4, 0, 6, 2)) == 0
    assert measured.overlap((0, 0, 0, 0), (0, 0, 0, 0)) == 0


def test_pixels_that_are_not_known_do_not_count():
    truth = torch.tensor([[1, 1, 0, -1], [0, 0, 0, -1]])
    found = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    vector = measured.vector(found, truth)
    assert vector.tolist() == [1, 3, 3, 5, pytest.approx(2 / 4)]
    assert measured.MEASURES["pixel accuracy"](vector) == pytest.approx(4 / 6)
    assert measured.MEASURES["mIoU"](vector) == pytest.approx((1 / 3 + 3 / 5) / 2)


# -- the command -------------------------------------------------------------------------------------------------------


def run(*words, code=0):
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200", "NO_COLOR": "1"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def pictures(tmp_path):
    for name in ("0-6", "6-9"):  # the second is 96 x 64
        shutil.copy(MODELS / "digits" / "examples" / f"{name}.png", tmp_path / f"{name}.png")
    return [tmp_path / "0-6.png", tmp_path / "6-9.png"]


def test_the_command_writes_masks_and_a_coco_file(tmp_path, pictures):
    words = ["--model", MODELS / "digits", "--target", "digit 6", "--threshold", "0.1", "--largest"]
    result = run(*pictures, *words, "--out", tmp_path / "masks")
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    book = json.loads((tmp_path / "masks" / "coco.json").read_text())
    assert book["categories"] == [{"id": 6, "name": "digit 6"}]
    assert sorted(p.name for p in (tmp_path / "masks").iterdir()) == ["0-6-1.png", "6-9-1.png", "coco.json"]
    for path, image, annotation, line in zip(
        pictures, book["images"], book["annotations"], result.stdout.splitlines(), strict=True
    ):
        e = explainer(path, "generic-attention", "digit 6")
        (region,) = locate(e, 0.1, largest=True)
        assert (region.mask != locate(e, 0.1)[0].mask).any()
        assert image["file_name"] == str(path)
        assert (decode(annotation["segmentation"]) == region.mask).all()
        mask = np.asarray(Image.open(tmp_path / "masks" / f"{path.stem}-1.png"))
        assert (mask == region.mask.numpy() * 255).all()
        assert line == (
            f"{path}  digit 6  {region.score:.2f}  box {' '.join(map(str, region.box))}  "
            f"{region.share:.1%} of the picture"
        )


def test_the_command_cuts_classes_at_the_mean_by_default(tmp_path, pictures):
    run(pictures[0], "--model", MODELS / "digits", "--out", tmp_path / "regions.json")
    (annotation,) = json.loads((tmp_path / "regions.json").read_text())["annotations"]
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    (region,) = locate(explainer(pictures[0], "generic-attention"), "mean")
    assert (decode(annotation["segmentation"]) == region.mask).all()
    assert not (tmp_path / "regions").exists()


def test_the_command_finds_the_objects_of_a_detector(tmp_path, pictures):
    directory = tmp_path / "detr"
    shutil.copytree(GOLDEN / "03d_gae_detr" / "hf", directory)
    size = {"height": 48, "width": 64}
    made = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": size}
    (directory / "preprocessor_config.json").write_text(json.dumps(made))
    run(*pictures, "--model", directory, "--confidence", "0", "--cut", "--out", tmp_path / "coco.json")
    book = json.loads((tmp_path / "coco.json").read_text())
    explainer = whence.Explainer.from_pretrained(directory)
    wanted = [r for path in pictures for r in segment(explainer, path, confidence=0.0, cut=True)]
    assert len(book["annotations"]) == len(wanted) == 14
    for annotation, region in zip(book["annotations"], wanted, strict=True):
        assert (decode(annotation["segmentation"]) == region.mask).all()
    result = run(*pictures, "--model", directory, "--confidence", "0.99", "--out", tmp_path / "none.json")
    assert result.stdout == ""
    assert f"nothing was found in {pictures[0]}" in result.stderr
    book = json.loads((tmp_path / "none.json").read_text())
    assert [(p["height"], p["width"]) for p in book["images"]] == [(64, 64), (64, 96)]
    assert book["annotations"] == []


def test_pictures_of_one_name_do_not_overwrite_each_other(tmp_path, pictures):
    (tmp_path / "more").mkdir()
    shutil.copy(pictures[1], tmp_path / "more" / "0-6.png")
    run(pictures[0], tmp_path / "more" / "0-6.png", "--model", MODELS / "digits", "--out", tmp_path / "masks")
    sizes = [Image.open(tmp_path / "masks" / f"0-6-{n}.png").size for n in (1, 2)]
    assert sizes == [(64, 64), (96, 64)]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("'mean', 'otsu', or a number", ["--threshold", "median"]),
        ("no label 'cat'", ["--target", "cat"]),
        ("neither a directory nor a .json file", ["--out", "mask.png"]),
        ("There is no method 'magic'", ["--method", "magic"]),
    ],
)
def test_a_wrong_call_is_told_in_a_sentence(pictures, said, words):
    result = run(pictures[0], "--model", MODELS / "digits", *words, code=2)
    assert said in result.stderr
    assert result.stdout == ""


# -- many explanations together, and what is no mask -----------------------------------------------------------------


def test_lists_of_explanations_are_located_to_the_last_sample(pictures):
    model, pixels = tiny.vit(), {"pixel_values": tiny.pixels(2)}
    batch = whence.explain(model, pixels, "generic-attention")
    wanted = [region.mask for region in locate(batch)]
    assert len(wanted) == 2
    for given_as in ([batch], (batch,), [[batch]]):
        assert all(torch.equal(a.mask, b) for a, b in zip(locate(given_as), wanted, strict=True))
    each = whence.explain(model, pixels, "generic-attention", whence.every([0, 1]))
    assert [region.label for region in locate(each)] == ["LABEL_0", "LABEL_0", "LABEL_1", "LABEL_1"]
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    labels = ["digit 0", "digit 6"]
    many = explainer(list(pictures), "generic-attention", whence.every(labels))
    alone = [locate(explainer(path, "generic-attention", label))[0] for path in pictures for label in labels]
    for got, one in zip(locate(many), alone, strict=True):
        assert got.label == one.label
        assert torch.equal(got.mask, one.mask)
    assert locate([]) == []


@pytest.mark.parametrize("wrong", [None, "cat.jpg", 5, [None]])
def test_only_explanations_are_located(wrong):
    with pytest.raises(InputError, match=r"explanations of pictures, not (NoneType|str|int)"):
        locate(wrong)


@pytest.mark.parametrize("use", [components, largest, encode, box_of])
@pytest.mark.parametrize("wrong", [torch.tensor([[2, 0, 1]]), torch.tensor([True]), np.ones((2, 2), bool)])
def test_a_mask_is_true_or_false_in_two_dimensions(use, wrong):
    with pytest.raises(InputError, match=r"A mask is a tensor \[H, W\] of true and false, not"):
        use(wrong)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("has a size", {"size": [2, 2]}),
        ("has a size", {"counts": [4]}),
        ("has a size", {"size": [2], "counts": [2]}),
        ("has a size", None),
        ("whole numbers", {"size": [2, 2], "counts": [2, "2"]}),
        ("whole numbers", {"size": [2, 2], "counts": 4}),
        ("whole numbers", {"size": [2.0, 2], "counts": [4]}),
        ("add up to 3", {"size": [2, 2], "counts": [3]}),
        ("compressed", {"size": [2, 2], "counts": "04"}),
    ],
)
def test_a_code_that_is_none_is_a_sentence(said, code):
    with pytest.raises(InputError, match=said):
        decode(code)
