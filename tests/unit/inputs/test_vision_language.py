"""Vision-language models read image and prompt by their own processor; patches and words lie where they belong."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import whence
from tests.support.vision_language import MODELS, llava, photo
from whence.explainer.attach_inputs import with_layout
from whence.inputs.patch_layout import PatchLayout, flat_order

PROMPT = "what digit is on the left?"
CORE = ["conservative-lrp", "attn-lrp", "gradient-x-input", "saliency"]
MAPS = ["attention", "rollout", "generic-attention", "grad-cam", "transformer-attribution"]


@pytest.fixture(scope="module", params=MODELS)
def explainer(request):
    model, processor = MODELS[request.param]()
    return whence.Explainer(model, processor)


def spot(width, height, box):
    """A black image with a white box."""
    values = np.zeros((height, width, 3), dtype=np.uint8)
    left, top, right, bottom = box
    values[top:bottom, left:right] = 255
    return Image.fromarray(values)


def test_words_are_the_user_s_own(explainer):
    e = explainer({"image": photo(), "text": PROMPT}, "gradient-x-input")
    assert "".join(w.text for w in e.words[0]) == PROMPT.replace(" ", "")
    origin = e.origins[0]["text"]
    for span, token in zip(origin.spans, origin.tokens, strict=True):
        if span is not None:
            assert (
                explainer.processor.tokenizer.convert_tokens_to_string([token])
                == origin.texts[0][span.start : span.end]
            )


@pytest.mark.parametrize("method", CORE)
def test_scores_of_image_and_text_are_those_of_the_model(explainer, method):
    """The scores are those of whence.explain on the processor's tensors, rearranged but not changed in sum."""
    image = photo()
    e = explainer((image, PROMPT), method)
    tensors = explainer.placed(explainer.read((image, PROMPT)).tensors)
    plain = whence.explain(explainer.model, tensors, method)
    assert torch.equal(e.streams["text"], plain.streams["text"])
    assert torch.allclose(e.streams["image"].sum(), plain.streams["image"].sum(), rtol=1e-9)
    assert e.streams["image"].abs().sum() > 0
    assert e.heatmap().shape == (1, image.height, image.width)


@pytest.mark.parametrize("method", MAPS)
def test_attention_maps_reach_the_image_or_are_refused(explainer, method):
    try:
        e = explainer((photo(), PROMPT), method, 0)
    except whence.ModelError as refused:
        if "relations between tokens cannot be followed" in str(refused):
            return
        raise
    assert e.patches.abs().sum() > 0


BOXES = [(6, 4, 20, 16), (46, 30, 66, 46), (30, 18, 44, 30)]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("size", [(70, 50), (50, 70)])
def test_patches_lie_where_their_pixels_are(explainer, size, box):
    """The brightness of each patch, laid on the image as scores are, is greatest where the image is white."""
    box = box if size == (70, 50) else (box[1], box[0], box[3], box[2])
    image = spot(*size, box)
    sample = explainer.read((image, PROMPT))
    e = whence.explain(explainer.model, explainer.placed(sample.tensors), "gradient-x-input")
    bright = brightness(sample.tensors, e)
    laid = with_layout(whence_with(e, bright), sample.layout)
    heat = sample.origins["image"].lay(laid.patches[0])
    row, column = divmod(int(heat.argmax()), image.width)
    left, top, right, bottom = box
    assert left - 2 <= column < right + 2
    assert top - 2 <= row < bottom + 2


def whence_with(e, patches):
    """An explanation with other scores of its patches, in the order of the stream."""
    scores = e.streams["image"].clone()
    scores[:, e.patch_start : e.patch_start + patches.numel()] = patches.flatten()
    return replace(e, scores=scores, streams={**e.streams, "image": scores})


def brightness(tensors, e):
    """The mean of each patch's pixels, in the order of the image's stream."""
    pixels = tensors["pixel_values"].double()
    if pixels.dim() == 2:
        return pixels.mean(1)
    pixels = pixels.reshape(-1, 3, *pixels.shape[-2:]).mean(1)
    rows = e.grid[0] // len(pixels)
    return torch.nn.functional.adaptive_avg_pool2d(pixels, (rows, e.grid[1]))


def test_each_generated_token_is_explained_as_if_alone(explainer):
    image = photo(seed=1)
    never = {"suppress_tokens": [explainer.reader.image_token]}
    g = explainer.generate(PROMPT, image=image, max_new_tokens=3, sampling=never)
    tensors = g_inputs(explainer, image, [int(e.target[0]) for e in g])
    length = explainer.read((image, PROMPT)).tensors["input_ids"].shape[1]
    for i, e in enumerate(g):
        alone = whence.explain(explainer.model, tensors, target=whence.At(length - 1 + i, int(e.target[0])))
        laid = with_layout(alone, explainer.read((image, PROMPT)).layout)
        for name in ("image", "text"):
            assert torch.allclose(e.streams[name], laid.streams[name], rtol=1e-6, atol=1e-9)
        assert e.patches.abs().sum() > 0
        assert float(e.streams["text"][:, length + i :].abs().sum()) < 1e-9  # what comes later is not read


def g_inputs(explainer, image, ids):
    """Prompt, image and generated tokens as the model's arguments, independent of the code that generates."""
    tensors = dict(explainer.read((image, PROMPT)).tensors)
    more = torch.tensor([ids])
    for name, tensor in tensors.items():
        if name == "input_ids":
            tensors[name] = torch.cat([tensor, more], 1)
        elif tensor.shape == (1, tensors["attention_mask"].shape[1]) and name != "attention_mask":
            written = 1 if "PaliGemma" in type(explainer.model).__name__ else 0
            tensors[name] = torch.cat([tensor, torch.full_like(more, written)], 1)
    tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
    return explainer.placed(tensors)


def test_the_first_generated_token_is_the_prediction_after_the_prompt(explainer):
    image = photo(seed=2)
    e = explainer((image, PROMPT))
    never = {"suppress_tokens": [explainer.reader.image_token]}
    g = explainer.generate(PROMPT, image=image, max_new_tokens=2, sampling=never)
    assert g[0].target.tolist() == e.prediction.tolist()
    length = e.streams["text"].shape[1]
    assert torch.allclose(g[0].streams["image"], e.streams["image"], rtol=1e-6, atol=1e-9)
    assert torch.allclose(g[0].streams["text"][:, :length], e.streams["text"], rtol=1e-6, atol=1e-9)


def test_a_prompt_with_a_placeholder_is_used_as_it_is():
    model, processor = llava(chat=True)
    explainer = whence.Explainer(model, processor)
    assert explainer.reader.with_placeholder("<image>what?") == "<image>what?"
    assert explainer.reader.with_placeholder("what?") == "USER: <image>what?ASSISTANT:"
    plain = whence.Explainer(*llava(chat=False))
    assert plain.reader.with_placeholder("what?") == "<image>what?"


def chat(*content, **more):
    return [{"role": "user", "content": list(content)}, *more.get("then", ())]


def test_a_chat_with_an_image_is_the_prompt_that_the_template_makes():
    explainer = whence.Explainer(*llava(chat=True))
    image, text = photo(seed=3), {"type": "text", "text": PROMPT}
    wanted = explainer((image, PROMPT))
    for messages, beside in (
        (chat({"type": "image", "image": image}, text), None),
        (chat({"type": "image"}, text), image),
        ([{"role": "user", "content": PROMPT}], image),
    ):
        found = explainer({"image": beside, "text": messages})
        assert torch.equal(found.streams["image"], wanted.streams["image"])
        assert torch.equal(found.streams["text"], wanted.streams["text"])
        assert found.origins[0]["text"] == wanted.origins[0]["text"]
    never = {"suppress_tokens": [explainer.reader.image_token]}
    written = explainer.generate(PROMPT, image=image, max_new_tokens=2, sampling=never)
    again = explainer.generate(chat({"type": "image", "image": image}, text), max_new_tokens=2, sampling=never)
    assert again.text == written.text
    assert torch.equal(again[1].streams["image"], written[1].streams["image"])


def test_of_a_chat_the_words_of_the_user_alone_are_scored():
    explainer = whence.Explainer(*llava(chat=True))
    turns = ({"role": "assistant", "content": "seven"}, {"role": "user", "content": "a photo"})
    e = explainer((photo(), chat({"type": "image"}, {"type": "text", "text": PROMPT}, then=turns)))
    origin = e.origins[0]["text"]
    scored = [origin.texts[0][s.start : s.end] for s in origin.spans if s is not None]
    assert "".join(scored).split() == [*PROMPT.split(), "a", "photo"]


@pytest.mark.parametrize(
    ("messages", "said"),
    [([{"role": "user", "content": 3}], "neither a text nor"), ([{"content": "a"}], "no 'role'"),
     ([{"role": "system", "content": "a"}], "role 'user'"), ([], "not an empty list"),
     (chat({"type": "image"}, {"type": "image"}, {"type": "text", "text": "a"}), "2 images"),
     (chat({"type": "image", "image": photo()}, {"type": "text", "text": "a"}), "given twice")],
)  # fmt: skip
def test_messages_without_one_place_for_the_image_are_refused(messages, said):
    with pytest.raises(whence.InputError, match=said):
        whence.Explainer(*llava(chat=True))((photo(), messages))


def test_a_chat_without_an_image_is_refused():
    explainer = whence.Explainer(*llava(chat=True))
    with pytest.raises(whence.InputError, match="no image"):
        explainer.generate(chat({"type": "image"}, {"type": "text", "text": "a"}))


def test_bad_input_is_a_sentence(explainer):
    with pytest.raises(whence.InputError, match="an image and a prompt"):
        explainer("only text")
    with pytest.raises(whence.InputError, match="not int"):
        explainer((photo(), 3))
    two = explainer.reader.placeholder * 2
    with pytest.raises(whence.InputError, match=r"has 2 times .* and 1 image"):
        explainer((photo(), f"{two} what?"))


def test_the_processor_is_left_as_it_was(explainer):
    before = dict(vars(explainer.processor))
    explainer((photo(), PROMPT), "saliency")
    assert vars(explainer.processor) == before


def test_saved_and_loaded_explanations_are_equal(explainer, tmp_path):
    e = explainer((photo(), PROMPT), "gradient-x-input")
    e.save(tmp_path / "e.json")
    assert whence.load(tmp_path / "e.json").patches.shape == e.patches.shape
    for ending in ("html", "png"):
        e.save(tmp_path / f"e.{ending}")


# -- layouts of patches ----------------------------------------------------------------------------------------------


def test_merged_patches_are_put_row_by_row():
    assert flat_order(2, 4, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_a_coarse_tile_is_shared_out_over_fine_ones():
    """Four tiles of 2 x 2 patches and one of the whole image, on a common grid of 4 x 4."""
    fine = [((1.0, 1.0), (-8.0 * r, -8.0 * c), (8, 8)) for r in (0, 1) for c in (0, 1)]
    layout = PatchLayout((*fine, ((0.5, 0.5), (0.0, 0.0), (8, 8))))
    patches = torch.zeros(5, 2, 2)
    patches[1, 0, 1] = 1  # upper right corner of the upper right tile
    patches[4, 1, 0] = 4  # lower left quarter of the whole
    laid = layout.on_one_grid(patches)
    expected = torch.zeros(4, 4)
    expected[0, 3] = 1
    expected[2:, :2] = 1
    assert torch.equal(laid, expected)
    assert layout.whole == ((1.0, 1.0), (0.0, 0.0), (16, 16))


def test_the_sum_is_kept_where_tiles_are_padded():
    layout = PatchLayout((((1.0, 1.0), (0.0, 0.0), (8, 8)), ((0.3, 0.7), (-5.0, 2.0), (8, 8))))
    patches = torch.randn(2, 4, 4, dtype=torch.float64)
    assert torch.allclose(layout.on_one_grid(patches).sum(), patches.sum())
