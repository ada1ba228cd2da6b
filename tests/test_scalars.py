"""Scalars of an output by name: each is the scalar that it says, and explained as a function of one's own would be."""

from __future__ import annotations

import pytest
import tiny
import torch
import transformers as hf

import whence
from whence.scalars import SIDES

BERT = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    config = hf.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        encoder_layers=1, decoder_layers=1, d_model=16, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, num_queries=5, num_labels=3,
    )  # fmt: skip
    return hf.DetrForObjectDetection(config).eval()


@pytest.fixture(scope="module")
def picture():
    torch.manual_seed(1)
    return {"pixel_values": torch.randn(1, 3, 64, 64)}


def same(model, inputs, target, by_hand, method="gradient-x-input"):
    a, b = (whence.explain(model, inputs, method, target=t) for t in (target, by_hand))
    assert torch.equal(a.scores, b.scores)
    assert torch.equal(a.value, b.value)
    assert a.scores.abs().max() > 0
    return a


def test_the_class_of_a_query(detector, picture):
    e = same(detector, picture, whence.query(2, 1), lambda o: o.logits[:, 2, 1], "generic-attention")
    assert e.target_names == ("query 2, class 1",)
    same(detector, picture, whence.query(3), lambda o: o.logits[:, 3, :3].max(-1).values)


@pytest.mark.parametrize("side", SIDES)
def test_the_sides_of_a_box(detector, picture, side):
    with torch.no_grad():
        x, y, w, h = detector(**picture).pred_boxes[0, 4]
    value = {
        "x": x, "y": y, "width": w, "height": h, "left": x - w / 2, "right": x + w / 2, "top": y - h / 2,
        "bottom": y + h / 2,
    }[side]  # fmt: skip
    e = whence.explain(detector, picture, "gradient-x-input", target=whence.box(4, side))
    assert abs(float(e.value - value)) < 1e-5


def test_what_a_detector_does_not_have_is_named(detector, picture):
    for target, told in (
        (whence.query(5), "no query 5"), (whence.query(0, 9), "no class 9"), (whence.box(7, "left"), "no query 7"),
        (whence.answer(), "start_logits"),
    ):  # fmt: skip
        with pytest.raises(whence.TargetError, match=told):
            whence.explain(detector, picture, target=target)
    with pytest.raises(whence.TargetError, match="'middle'"):
        whence.box(0, "middle")


def test_an_answer_in_a_text():
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
    )
    model = hf.BertForQuestionAnswering(config).eval()
    inputs = {"input_ids": torch.randint(1, 50, (2, 9))}
    same(model, inputs, whence.answer(3, 5), lambda o: o.start_logits[:, 3] + o.end_logits[:, 5])
    same(model, inputs, whence.answer(), lambda o: o.start_logits.max(1).values + o.end_logits.max(1).values)
    with pytest.raises(whence.TargetError, match="no position 9"):
        whence.explain(model, inputs, target=whence.answer(9, 9))


def test_likeness_to_another_text_and_padding_that_does_not_count():
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
    )
    model = hf.BertModel(config, add_pooling_layer=False).double().eval()
    ids = torch.randint(1, 50, (1, 5))
    other = torch.randn(32, dtype=torch.float64)
    alone = whence.explain(model, {"input_ids": ids}, target=whence.similarity(other))
    with torch.no_grad():
        vector = model(ids).last_hidden_state.mean(1)[0]
    assert abs(float(alone.value) - float(vector @ other / vector.norm() / other.norm())) < 1e-9
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    padded = {"input_ids": torch.cat([ids, torch.zeros(1, 2, dtype=torch.long)], 1), "attention_mask": mask}
    e = whence.explain(model, padded, target=whence.similarity(other, mask))
    assert (e.scores[:, :5] - alone.scores).abs().max() < 1e-9
    assert e.scores[:, 5:].abs().max() == 0
    with pytest.raises(whence.TargetError, match="32 features and the reference has 8"):
        whence.explain(model, {"input_ids": ids}, target=whence.similarity(torch.randn(8)))


def test_a_span_that_a_language_model_wrote():
    model = tiny.llama()
    ids = torch.randint(3, 60, (2, 8))
    same(
        model, {"input_ids": ids}, whence.span(5, [7, 9]), lambda o: o.logits[:, 4, 7] + o.logits[:, 5, 9]
    )  # fmt: skip
    for start in (0, 8):
        with pytest.raises(whence.TargetError, match="1 to 8"):
            whence.explain(model, {"input_ids": ids}, target=whence.span(start, [7, 9]))


def test_a_value_of_a_regression_is_a_target_as_it_is():
    torch.manual_seed(0)
    config = hf.BertConfig(**BERT, num_labels=1)
    model = hf.BertForSequenceClassification(config).eval()
    inputs = {"input_ids": torch.randint(1, 50, (2, 9))}
    assert same(model, inputs, 0, lambda o: o.logits[:, 0]).task == "regression"
