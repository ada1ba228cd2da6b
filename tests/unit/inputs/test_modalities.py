"""Pictures, pictures with text, recordings, series, molecules, plain tensors: from the raw input to every file."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import whence
from tests.support import tiny
from tests.support.goldens import shared
from tests.support.modalities import (
    CROPPED,
    FEATURES,
    KINDS,
    SERIES,
    SINE,
    SQUEEZED,
    clip,
    lxmert,
    molecules,
    patchtst,
    picture,
    vilt,
    wav2vec,
)
from whence.explanations.view_builder import view
from whence.inputs.image import ImageReader


@pytest.fixture(scope="module", params=KINDS)
def explained(request):
    make, given, modality, streams = KINDS[request.param]
    explainer = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return explainer, given, modality, streams, explainer(given)


VIT, LISTENER = whence.Explainer(tiny.vit(), SQUEEZED), wav2vec()


# -- every kind ------------------------------------------------------------------------------------------------------


def test_streams_are_named_and_know_their_input(explained):
    explainer, _, modality, streams, e = explained
    assert explainer.modality == modality
    assert set(e.streams) == set(streams)
    known = {name: type(o) for origins in e.origins for name, o in origins.items()}
    assert known == {name: cls for name, cls in streams.items() if cls is not None}
    assert all(s.isfinite().all() and (s != 0).any() for s in e.streams.values())
    assert len(e.top(3)[0]) == 3


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_what_is_saved_is_loaded_as_it_was(explained, ending, tmp_path):
    e = explained[-1]
    path = e.save(tmp_path / f"e.{ending}")
    loaded = whence.load(path)
    assert loaded == e
    assert loaded.top(2) == e.top(2)
    whence.Explanations([e, e]).save(path)
    assert whence.load(path) == [e, e]


@pytest.mark.parametrize(("ending", "start"), [
    ("html", b"<!doctype html>"), ("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("tex", b""),
])  # fmt: skip
def test_every_kind_is_drawn(explained, ending, start, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        content = explained[-1].save(tmp_path / f"e.{ending}").read_bytes()
    assert content[: len(start)].lower() == start.lower()
    assert len(content) > 200
    assert [p.name for p in tmp_path.iterdir()] == [f"e.{ending}"]


def test_every_kind_is_shown(explained, capsys):
    e = explained[-1]
    e.show()
    out, err = capsys.readouterr()
    assert "conservative-lrp" in out
    assert e.target_names[0] in out
    assert err == ""
    assert "conservative-lrp" in e._repr_html_()


def test_many_are_explained_as_one_by_one(explained):
    explainer, given, _, _, e = explained
    for one in explainer([given, given], batch_size=2):
        assert one.origins == e.origins
        assert one.prediction_names == e.prediction_names
        assert one.logits.shape == e.logits.shape
        assert torch.allclose(one.logits, e.logits, atol=1e-4)
        assert torch.allclose(one.scores, e.scores, atol=1e-4)
        assert view(one).value == pytest.approx(view(e).value, abs=1e-4)
        assert view(one).probability == pytest.approx(view(e).probability, abs=1e-4)


# -- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(40, 20), (23, 41), (12, 12), (300, 9), (8, 8)])
def test_a_heat_map_has_the_pictures_size(size):
    e = VIT(picture(*size))
    assert e.heatmap().shape == (1, size[1], size[0])
    assert (e.heatmap() != 0).all()
    assert e.heatmap((5, 6)).shape == (1, 5, 6)


@pytest.mark.parametrize(("size", "box"), [((40, 20), (10, 0, 30, 20)), ((20, 40), (0, 10, 20, 30))])
def test_a_heat_map_is_zero_where_the_model_did_not_look(size, box):
    heat = whence.Explainer(tiny.vit(), CROPPED)(picture(*size)).heatmap()[0]
    looked = torch.zeros(size[1], size[0], dtype=torch.bool)
    looked[box[1] : box[3], box[0] : box[2]] = True
    assert torch.equal(heat != 0, looked)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 32, 100, 1000])
@pytest.mark.parametrize("processor", [SQUEEZED, ViTImageProcessorPil(size={"height": 224, "width": 224})])
def test_pixels_are_found_again(processor, size):
    scale, shift, out = ImageReader(processor).place(size, size)
    for pixel in (0.5, size - 0.5):
        assert scale[0] * pixel + shift[0] == pytest.approx(out[0] / size * pixel, abs=0.02 * out[0])


def test_the_same_picture_is_seen_the_same_way_twice():
    """Also by ViLT, which reads patches in an order drawn at random."""
    explainer, given = vilt(), KINDS["vilt"][1]
    maps = []
    for seed in range(3):
        torch.manual_seed(seed)
        maps.append(explainer(given).heatmap())
    assert all(torch.allclose(heat, maps[0], atol=1e-4) for heat in maps)


def test_pictures_are_read_alike_from_file_array_and_pil(tmp_path):
    given = picture(30, 20)
    given.save(tmp_path / "a.png")
    array, path = np.asarray(given), tmp_path / "a.png"
    first, *others = VIT([given, array, array / 255, path, str(path)])
    assert all(torch.equal(first.scores, e.scores) for e in others)
    assert others[-1].origins[0]["image"].name == "a.png"


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "I;16"])
def test_pictures_of_every_mode_are_the_same_picture(mode):
    source = np.asarray(picture(30, 20).convert("L"))
    given = Image.fromarray(source.astype(np.uint16) * 256) if mode == "I;16" else Image.fromarray(source).convert(mode)
    assert torch.allclose(VIT(given).scores, VIT(Image.fromarray(source)).scores, atol=1e-5)


def test_transparency_is_the_same_in_arrays_and_files():
    pixels = np.dstack([np.asarray(picture(30, 20)), np.full((20, 30), 40, np.uint8)])
    assert torch.equal(VIT(pixels).scores, VIT(Image.fromarray(pixels)).scores)


def test_a_picture_turned_by_its_camera_is_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(30, 20).save(tmp_path / "turned.jpg", exif=exif)
    assert VIT(tmp_path / "turned.jpg").heatmap().shape == (1, 30, 20)


def test_what_is_no_picture_is_refused(tmp_path, monkeypatch):
    picture(200, 200).save(tmp_path / "whole.jpg")
    (tmp_path / "text.jpg").write_text("I am no picture")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:3000])
    lazy = Image.open(tmp_path / "cut.jpg")
    zeros = np.zeros((20, 20, 3))
    for given, match in [
        ("https://example.org/cat.jpg", "address on the network"), (tmp_path / "none.jpg", "no file"), (5, "picture"),
        (tmp_path / "text.jpg", "not a picture"), (tmp_path / "cut.jpg", "truncated"), (lazy, "truncated"),
        (zeros - 1, "0 to 1"), (zeros + 2, "0 to 1"), (zeros + np.nan, "0 to 1"), (zeros.astype(np.int64), "bytes"),
        (zeros[:, :, :2], "channels"), (zeros[:0], "shape"), (zeros[None], "shape"), (None, "picture"),
        (tmp_path, "picture"), ("a long text " * 500, "file"),
    ]:  # fmt: skip
        with pytest.raises(whence.InputError, match=match):
            VIT(given)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30_000)
    with pytest.raises(whence.InputError, match="decompression bomb"):
        VIT(tmp_path / "whole.jpg")


def test_a_real_picture_of_a_dog():
    explainer = whence.Explainer.from_pretrained(shared("weights", "vit_tiny_patch16_224_hf"))
    path = shared("data", "pets_seg", "images", "beagle_3.jpg")
    e = explainer(path)
    width, height = Image.open(path).size
    left, top, right, bottom = e.top(1)[0][0].box
    assert e.heatmap().shape == (1, height, width)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


# -- a picture and a text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "given"), [
    (clip, picture(20, 20)), (clip, "a film"), (clip, None), (clip, {"text": "a"}), (clip, {"image": picture(9, 9)}),
    (lxmert, {"text": "a"}), (lxmert, "a"), (lxmert, {"text": "a", "visual_feats": [1.0]}),
])  # fmt: skip
def test_half_of_a_pair_is_refused(make, given):
    with pytest.raises(whence.InputError, match=r"picture|tensor"):
        make()(given)


def test_pairs_of_a_batch_do_not_look_at_each_other():
    explainer = clip()
    pairs = [(picture(40, 20), "a good film"), (picture(13, 29), "a terrible plot")]
    for pair, e in zip(pairs, explainer(pairs), strict=True):
        alone = explainer(pair)
        assert torch.allclose(e.scores, alone.scores, atol=1e-4)
        assert e.logits.shape == alone.logits.shape
        assert view(e).value == pytest.approx(float(alone.logits), abs=1e-4)
        assert e.probabilities is None


def test_one_object_of_a_picture_is_enough():
    one = {name: value[:1] for name, value in FEATURES.items()}
    assert lxmert()({"text": "is it good?", **one}).streams["image"].shape == (1, 1)


# -- recordings ------------------------------------------------------------------------------------------------------


def test_a_recording_is_heard_at_the_models_rate(tmp_path):
    slow = np.sin(np.arange(4000) / 10).astype(np.float32)
    e, at_rate = LISTENER({"array": slow, "sampling_rate": 8000}), LISTENER(SINE)
    origin = e.origins[0]["audio"]
    assert (origin.rate, len(origin.samples), origin.heard) == (16000, 8000, 0.5)
    assert e.scores.shape == at_rate.scores.shape
    assert np.abs(origin.samples - SINE)[200:-200].max() < 0.02
    soundfile.write(tmp_path / "slow.wav", slow, 8000, subtype="FLOAT")
    assert torch.equal(LISTENER(tmp_path / "slow.wav").scores, e.scores)
    assert np.allclose(origin.times(25)[[0, -1]], [[0, 0.02], [0.48, 0.5]])


@pytest.mark.parametrize("form", ["int16", "stereo", "stereo int16", "float64"])
def test_waves_of_every_form_are_the_same_sound(form):
    wave = np.stack([SINE, SINE], 1) if "stereo" in form else SINE
    wave = (wave * 32767).astype(np.int16) if "int16" in form else wave.astype(np.float64)
    assert np.abs(LISTENER(wave).origins[0]["audio"].samples - SINE).max() < 1e-4


def test_a_real_recording():
    path = shared("data", "speech_jfk.flac")
    e = LISTENER(path)
    assert e.origins[0]["audio"].name == "speech_jfk.flac"
    assert e.origins[0]["audio"].heard == pytest.approx(soundfile.info(path).duration, abs=0.01)


def test_what_is_no_recording_is_refused(tmp_path):
    (tmp_path / "text.wav").write_text("I am no recording")
    for given in (
        "https://example.org/a.wav", tmp_path / "none.wav", tmp_path / "text.wav", None, SINE[:0], SINE + np.nan,
        np.zeros((3, 3, 3)), {"array": SINE, "sampling_rate": 0}, {"array": SINE, "sampling_rate": None}, SINE[:10],
        {"wave": SINE},
    ):  # fmt: skip
        with pytest.raises(whence.InputError):
            LISTENER(given)


# -- series, molecules, tensors --------------------------------------------------------------------------------------


def test_what_is_no_series_is_refused():
    for given, match in [
        (SERIES[:3], "3 time steps and the model takes 32"), (SERIES[:, :1], "1 channels and the model takes 2"),
        (np.where(SERIES > 1, np.nan, SERIES), "finite"), ("text", "numbers"), (SERIES[None], "shape"),
    ]:  # fmt: skip
        with pytest.raises(whence.InputError, match=match):
            patchtst()(given)


def test_scores_of_all_channels_are_not_those_of_the_first(capsys):
    e = patchtst()(SERIES)
    e.show()
    (panel,) = view(e).panels
    assert panel.patches.shape[1] == 2 or "channel 0" not in capsys.readouterr().out


def test_a_token_of_the_models_own_is_no_time_step():
    e = patchtst(cls_token=True)(SERIES)
    assert e.special.tolist() == [[True, False, False, False, False]]
    (panel,) = view(e).panels
    assert np.allclose(panel.patches[:, 0], e.scores[0, 1:].numpy())


def test_symbols_of_a_molecule_are_its_words():
    e = molecules()("CC(=O)Cl>>[C@H]X")
    assert [w.text for w in e.words[0]] == ["C", "C", "(", "=", "O", ")", "Cl", ">>", "[C@H]", "X"]
    assert sum(w.score for w in e.words[0]) == pytest.approx(float(e.scores[0, 1:-1].sum()), abs=1e-5)


def test_a_pair_of_molecules_is_refused():
    with pytest.raises(whence.InputError, match="one string"):
        molecules()(("CC(=O)Cl", "NCC"))
