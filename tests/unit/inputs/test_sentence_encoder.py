"""Sentence encoders: the similarity of a pair, by the encoder's own pooling, from a directory or an object."""

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import whence
from tests.support.processors import WORDS, bert_config, saved, small

A, B = "a gripping film", "the plot is terrible and far too long"


def bert():
    return small(transformers.BertModel, bert_config(len(WORDS)))


def directory(path, pooling, dense=False, settings=None):
    """Write the files of a sentence encoder, as sentence-transformers does."""
    saved(path, bert(), WORDS)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 32, **pooling}))
    if dense:
        modules.append(("Dense", "2_Dense"))
        (path / "2_Dense").mkdir()
        (path / "2_Dense" / "config.json").write_text(
            json.dumps({"in_features": 32, "out_features": 8, "activation_function": "torch.nn.Tanh"})
        )
        torch.manual_seed(1)
        linear = nn.Linear(32, 8)
        save_file({f"linear.{n}": t for n, t in linear.state_dict().items()}, path / "2_Dense" / "model.safetensors")
    modules.append(("Normalize", "3_Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, place) in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(listed))
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings or {}))
    return path


POOLED = {
    "mean": lambda h: h.mean(1),
    "cls": lambda h: h[:, 0],
    "max": lambda h: h.max(1).values,
    "lasttoken": lambda h: h[:, -1],
    "mean_sqrt_len_tokens": lambda h: h.sum(1) / h.shape[1] ** 0.5,
    "weightedmean": lambda h: (h * torch.arange(1, h.shape[1] + 1)[:, None]).sum(1) / sum(range(1, h.shape[1] + 1)),
}


class Written(nn.Module):
    """The same pair, by hand: without padding and without a mask."""

    def __init__(self, pool, dense=None):
        super().__init__()
        self.bert, self.pool, self.dense = bert(), pool, dense

    def vector(self, ids):
        vector = self.pool(self.bert(input_ids=ids).last_hidden_state)
        return vector if self.dense is None else torch.tanh(self.dense(vector))

    def forward(self, first, second):
        return nn.functional.cosine_similarity(self.vector(first), self.vector(second))[:, None]


def ids(text):
    return torch.tensor([WORDS(text)["input_ids"]])


@pytest.mark.parametrize("mode", POOLED)
def test_a_directory_is_explained_as_the_pair_written_by_hand(tmp_path, mode):
    explainer = whence.Explainer.from_pretrained(directory(tmp_path, {"pooling_mode": mode}))
    for method in ("conservative-lrp", "gradient-x-input", "attention"):
        found = explainer((A, B), method)
        expected = whence.explain(Written(POOLED[mode]).eval(), (ids(A), ids(B)), method)
        torch.testing.assert_close(found.value, expected.value)
        torch.testing.assert_close(found.scores, torch.cat(list(expected.streams.values()), 1), atol=1e-5, rtol=1e-4)


def test_older_settings_and_a_dense_layer(tmp_path):
    older = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    explainer = whence.Explainer.from_pretrained(directory(tmp_path, older, dense=True))
    torch.manual_seed(1)
    expected = whence.explain(Written(POOLED["cls"], nn.Linear(32, 8)).eval(), (ids(A), ids(B)))
    found = explainer((A, B))
    torch.testing.assert_close(found.value, expected.value)
    torch.testing.assert_close(found.scores, torch.cat(list(expected.streams.values()), 1), atol=1e-5, rtol=1e-4)


def test_words_of_both_texts_have_scores_that_add_up_to_the_similarity(tmp_path):
    e = whence.Explainer.from_pretrained(directory(tmp_path, {"pooling_mode": "mean"}))((A, B))
    assert [[w.text for w in e.words[0] if w.part == part] for part in (0, 1)] == [A.split(), B.split()]
    assert e.target_names == ("cosine similarity",)
    assert e.prediction_names == (f"{e.value.item():.4g}",)
    assert len(e.tokens[0]) == e.scores.shape[1]
    torch.testing.assert_close(e.scores.sum(), e.value[0], atol=0.02, rtol=0)


def test_a_batch_of_pairs_gives_what_each_gives_alone(tmp_path):
    explainer = whence.Explainer.from_pretrained(directory(tmp_path, {"pooling_mode": "mean"}))
    pairs = [(B, A), ("film", B), (A, B), ("bad", B), ("good", A)]
    for method in ("conservative-lrp", "occlusion"):
        for pair, e in zip(pairs, explainer(pairs, method, batch_size=8), strict=True):
            torch.testing.assert_close(e.scores, explainer(pair, method).scores, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["dot", "euclidean", "manhattan"])
def test_the_similarity_is_the_models_own(tmp_path, name):
    e = whence.Explainer.from_pretrained(directory(tmp_path, {}, settings={"similarity_fn_name": name}))((A, B))
    with torch.no_grad():
        a, b = (nn.functional.normalize(bert()(ids(t)).last_hidden_state.mean(1), dim=-1) for t in (A, B))
    expected = {"dot": (a * b).sum(), "euclidean": -(a - b).norm(), "manhattan": -(a - b).abs().sum()}[name]
    torch.testing.assert_close(e.value[0], expected)
    assert e.target_names == (f"{name} similarity",)


def test_one_text_needs_a_target(tmp_path):
    explainer = whence.Explainer.from_pretrained(directory(tmp_path, {}))
    with pytest.raises(whence.TargetError, match="give a pair of texts"):
        explainer(A)
    with torch.no_grad():
        vector = bert()(ids(B)).last_hidden_state.mean(1)[0]
    e = explainer(A, target=whence.similarity(vector))
    torch.testing.assert_close(e.value, explainer((A, B)).value)
    assert [w.text for w in e.words[0]] == A.split()


def test_a_prompt_is_read_and_has_no_words(tmp_path):
    settings = {"prompts": {"query": "a wonderful cast "}, "default_prompt_name": "query"}
    e = whence.Explainer.from_pretrained(directory(tmp_path, {}, settings=settings))((A, B))
    expected = whence.explain(
        Written(POOLED["mean"]).eval(), (ids("a wonderful cast " + A), ids("a wonderful cast " + B))
    )
    torch.testing.assert_close(e.value, expected.value)
    assert [w.text for w in e.words[0]] == A.split() + B.split()


def test_a_module_that_is_not_known_is_named(tmp_path):
    path = directory(tmp_path, {})
    listed = json.loads((path / "modules.json").read_text())
    listed[1]["type"] = "sentence_transformers.models.LSTM"
    (path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(whence.ModelError, match=r"LSTM.*SentenceTransformer\(directory\)"):
        whence.Explainer.from_pretrained(path)


def test_a_module_outside_the_directory_is_refused(tmp_path):
    path = directory(tmp_path, {})
    listed = json.loads((path / "modules.json").read_text())
    listed[1]["path"] = "../elsewhere"
    (path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(whence.FileError, match="outside"):
        whence.Explainer.from_pretrained(path)


def test_the_mask_of_one_text_is_not_laid_over_another_of_the_same_length(tmp_path):
    explainer = whence.Explainer.from_pretrained(directory(tmp_path, {"pooling_mode": "mean"}))
    pair = explainer.model
    first, second = ids(A), ids(A).flip(1)
    padded = nn.functional.pad(first[:, :3], (0, first.shape[1] - 3))
    mask = (torch.arange(first.shape[1]) < 3).long()[None]
    given = {"input_ids": padded, "attention_mask": mask, "other_input_ids": second}
    alone = {"input_ids": padded[:, :3], "other_input_ids": second}
    for method in ("conservative-lrp", "attention"):
        found, expected = whence.explain(pair, given, method), whence.explain(pair, alone, method)
        torch.testing.assert_close(found.streams["text 2"], expected.streams["text 2"], atol=1e-6, rtol=1e-4)


def test_objects_of_sentence_transformers(tmp_path):
    """The object, its directory and its own encode agree."""
    package = pytest.importorskip("sentence_transformers", reason="not in the extra dev: an optional package")
    path = directory(tmp_path, {"pooling_mode": "mean"}, dense=True)
    model = package.SentenceTransformer(str(path), device="cpu")
    vectors = model.encode([A, B], convert_to_tensor=True)
    for explainer in (whence.Explainer(model), whence.Explainer.from_pretrained(path)):
        e = explainer((A, B))
        torch.testing.assert_close(e.value, model.similarity_pairwise(vectors[:1], vectors[1:]))
        assert [w.text for w in e.words[0]] == A.split() + B.split()


def test_a_cross_encoder_is_explained_as_its_model(tmp_path):
    package = pytest.importorskip("sentence_transformers", reason="not in the extra dev: an optional package")
    saved(tmp_path, small(transformers.BertForSequenceClassification, bert_config(len(WORDS), num_labels=1)), WORDS)
    model = package.CrossEncoder(str(tmp_path), device="cpu")
    e = whence.Explainer(model)((A, B))
    expected = whence.Explainer.from_pretrained(tmp_path)((A, B))
    torch.testing.assert_close(e.scores, expected.scores)
    torch.testing.assert_close(e.value.sigmoid(), torch.tensor(model.predict([(A, B)])))
