"""Scalars of an output by name: each is the scalar that it says, and explained as a function of one's own would be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

import whence
from tests.support import tiny
from whence.localisation import detect
from whence.targets.named_scalars import SIDES

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


def explained_alike(model, inputs, target, by_hand, method="gradient-x-input"):
    a, b = (whence.explain(model, inputs, method, target=t) for t in (target, by_hand))
    assert torch.equal(a.scores, b.scores)
    assert torch.equal(a.value, b.value)
    assert a.scores.abs().max() > 0
    return a


def test_the_class_of_a_query(detector, picture):
    e = explained_alike(detector, picture, whence.query(2, 1), lambda o: o.logits[:, 2, 1], "generic-attention")
    assert e.target_names == ("query 2, class 1",)
    explained_alike(detector, picture, whence.query(3), lambda o: o.logits[:, 3, :3].max(-1).values)
    explained_alike(detector, picture, whence.query(np.int64(3), np.int64(1)), lambda o: o.logits[:, 3, 1])


class Answering(nn.Module):
    """A detector whose answers are its input, by the names of the published code."""

    main_input_name = "pixel_values"

    def forward(self, pixel_values):
        return {"pred_logits": pixel_values.mean(-1), "pred_boxes": pixel_values[:, 0, :, :4]}


def answered(logits, target, labels=None):
    """The value of a target of logits ``[queries, classes]``."""
    pixels = torch.tensor(logits)[None, ..., None].repeat(1, 1, 1, 8)
    found = whence.Explainer(Answering(), labels=labels)(pixels, "gradient-x-input", target)
    return float(found.value)


def test_the_last_class_of_a_query_is_no_object_unless_all_have_names():
    logits = [[0.0, 1.0, 5.0], [2.0, 1.0, 0.0]]
    assert answered(logits, whence.query(0)) == 1
    assert answered(logits, whence.query(0), ["cat", "dog"]) == 1
    assert answered(logits, whence.query(0), ["cat", "dog", "car"]) == 5
    assert answered(logits, whence.query(1), {0: "cat", 2: "car"}) == 2
    assert answered(logits, whence.query(0), {0: "cat", 2: "car"}) == 5  # a class between them has no name
    assert answered([[3.0], [4.0]], whence.query(1)) == 4  # one class alone is no "no object"


def test_a_query_is_of_the_class_that_is_detected():
    """Of a detector whose classes are all objects, also of the last."""
    torch.manual_seed(0)
    backbone = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    config = hf.ConditionalDetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        encoder_layers=1, decoder_layers=1, d_model=16, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, num_queries=5, num_labels=3,
    )  # fmt: skip
    model = hf.ConditionalDetrForObjectDetection(config).eval()
    with torch.no_grad():
        model.class_labels_classifier.bias[2] = 9.0
    inputs = {"pixel_values": torch.randn(1, 3, 32, 32)}
    explainer, (found, *_) = whence.Explainer(model), detect(whence.Explainer(model), inputs)
    assert found.category == 2
    several = [whence.query(found.query), found.logit]
    plain, by_hand = (whence.explain(model, inputs, "gradient-x-input", target=t) for t in several)
    assert torch.equal(plain.scores, by_hand.scores)
    (asked, _) = explainer([inputs, inputs], "gradient-x-input", several, batch_size=2)
    assert asked.value == by_hand.value


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
    for wrong in (lambda: whence.query("a"), lambda: whence.query(1.0), lambda: whence.box("a", "left")):
        with pytest.raises(whence.TargetError, match="A query is given by its number"):
            wrong()
    with pytest.raises(whence.TargetError, match="class of a query is given by its number"):
        whence.query(0, "cat")


def likeliest(starts, ends):
    """The sum of the best pair of logits of which the first is not behind the second, by trying all."""
    pairs = [(i, j) for i in range(starts.shape[1]) for j in range(i, ends.shape[1])]
    return torch.stack([starts[:, i] + ends[:, j] for i, j in pairs], 1).max(1).values


def test_an_answer_does_not_end_before_it_begins():
    said = {"start_logits": torch.tensor([[0.0, 0, 5, 0]]), "end_logits": torch.tensor([[0.0, 4, 1, 0]])}
    assert whence.answer()(said).tolist() == [6]
    assert whence.answer(end=1)(said).tolist() == [4]
    for seed in range(20):
        starts, ends = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(seed))
        said = {"start_logits": starts, "end_logits": ends}
        assert torch.equal(whence.answer()(said), likeliest(starts, ends))
    with pytest.raises(whence.TargetError, match=r"does not end \(3\) before it begins \(5\)"):
        whence.answer(5, 3)
    with pytest.raises(whence.TargetError, match="at positions, whole numbers"):
        whence.answer("a")


def test_an_answer_in_a_text():
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
    )
    model = hf.BertForQuestionAnswering(config).eval()
    inputs = {"input_ids": torch.randint(1, 50, (2, 9))}
    explained_alike(model, inputs, whence.answer(3, 5), lambda o: o.start_logits[:, 3] + o.end_logits[:, 5])
    explained_alike(model, inputs, whence.answer(), lambda o: likeliest(o.start_logits, o.end_logits))
    explained_alike(
        model, inputs, whence.answer(start=4), lambda o: o.start_logits[:, 4] + o.end_logits[:, 4:].max(1).values
    )
    explained_alike(
        model, inputs, whence.answer(end=4), lambda o: o.start_logits[:, :5].max(1).values + o.end_logits[:, 4]
    )
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
    for reference in (other.tolist(), other.numpy(), other[None]):
        e = whence.explain(model, {"input_ids": ids}, target=whence.similarity(reference))
        assert abs(float(e.value - alone.value)) < 1e-6
    for target, told in (
        (whence.similarity(torch.randn(8)), "32 features and the reference has 8"),
        (whence.similarity(torch.randn(3, 32)), "3 references were given for a batch of 1"),
        (whence.similarity(other, torch.ones(1, 3)), r"mask has shape \[1, 3\].*\[1, 5\] tokens"),
        (whence.similarity(other, torch.ones(2, 5)), r"mask has shape \[2, 5\]"),
    ):
        with pytest.raises(whence.TargetError, match=told):
            whence.explain(model, {"input_ids": ids}, target=target)
    for wrong in ((torch.tensor(1.0),), ("a",), ([[1.0], [1.0, 2.0]],), (other, torch.ones(5)), (other, "a")):
        with pytest.raises(whence.TargetError, match="of a similarity is a tensor"):
            whence.similarity(*wrong)


def test_a_span_that_a_language_model_wrote():
    model = tiny.llama()
    ids = torch.randint(3, 60, (2, 8))
    explained_alike(
        model, {"input_ids": ids}, whence.span(5, [7, 9]), lambda o: o.logits[:, 4, 7] + o.logits[:, 5, 9]
    )  # fmt: skip
    for start in (0, 8):
        with pytest.raises(whence.TargetError, match="1 to 8"):
            whence.explain(model, {"input_ids": ids}, target=whence.span(start, [7, 9]))
    for token in (-1, 60, 1000):
        with pytest.raises(whence.TargetError, match=f"no token {token}"):
            whence.explain(model, {"input_ids": ids}, target=whence.span(5, [7, token]))
    for wrong in ((5, []), (5, 7), (5, "7"), (5, ["7"]), (5, ids), ("5", [7]), (5.0, [7])):
        with pytest.raises(whence.TargetError, match=r"tokens of a span|A span begins"):
            whence.span(*wrong)
    asked = (whence.span(np.int64(5), tokens) for tokens in (torch.tensor([7, 9]), np.array([7, 9]), (7, 9)))
    for target in asked:
        explained_alike(model, {"input_ids": ids}, target, whence.span(5, [7, 9]))


def test_a_value_of_a_regression_is_a_target_as_it_is():
    torch.manual_seed(0)
    config = hf.BertConfig(**BERT, num_labels=1)
    model = hf.BertForSequenceClassification(config).eval()
    inputs = {"input_ids": torch.randint(1, 50, (2, 9))}
    assert explained_alike(model, inputs, 0, lambda o: o.logits[:, 0]).task == "regression"
