"""Pipelines and wrapped modules: explained as the model inside, with its names, while the wrapper runs."""

import pytest
import torch
import transformers
from torch import nn

import whence
from tests.support.processors import BYTES, LABELS, SPEAKER, WORDS, bert, image_processor

TEXT = "A gripping film, and a wonderful cast."


class Named(nn.Module):
    """What a Lightning module looks like: the model under ``model``, and a loss."""

    def __init__(self, model):
        super().__init__()
        self.model, self.loss, self.calls = model, nn.CrossEntropyLoss(), 0

    def forward(self, input_ids, attention_mask):
        self.calls += 1
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


class Anything(Named):
    def forward(self, **batch):
        return self.model(**batch).logits


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "compile": lambda model: torch.compile(model, backend="eager"),
    "named": Named,
    "anything": Anything,
    "compiled inside": lambda model: Named(torch.compile(model, backend="eager")),
    "compiled outside": lambda model: torch.compile(Named(model), backend="eager"),
    "twice": lambda model: nn.DataParallel(Named(model)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_model_has_the_scores_and_the_names_of_the_model(wrapper):
    model = bert(WORDS)
    expected = whence.Explainer(model, WORDS)(TEXT, target="good")
    found = whence.Explainer(WRAPPERS[wrapper](model), WORDS)(TEXT, target="good")
    torch.testing.assert_close(found.scores, expected.scores)
    assert found.target_names == ("good",)
    assert found.prediction_names == expected.prediction_names
    assert found.labels == LABELS


def test_the_wrapper_runs():
    wrapped = Named(bert(WORDS))
    whence.Explainer(wrapped, WORDS, capture=False)(TEXT)
    assert wrapped.calls == 1


def test_a_module_with_layers_of_its_own_is_no_wrapper():
    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.head = bert(WORDS), nn.Linear(3, 3)

        def forward(self, input_ids, attention_mask):
            return self.head(self.model(input_ids=input_ids, attention_mask=attention_mask).logits)

    assert whence.Explainer(Headed().eval(), WORDS)(TEXT).labels == {}


@pytest.mark.parametrize("wrapper", ["DataParallel", "anything", "compile"])
def test_a_wrapped_language_model_generates(wrapper):
    expected = whence.Explainer(SPEAKER, BYTES).generate("The plot", max_new_tokens=3)
    found = whence.Explainer(WRAPPERS[wrapper](SPEAKER), BYTES).generate("The plot", max_new_tokens=3)
    assert [e.target_names for e in found] == [e.target_names for e in expected]
    for e, own in zip(found, expected, strict=True):
        torch.testing.assert_close(e.scores, own.scores)


def test_a_forward_that_takes_other_arguments_is_named():
    class Other(Named):
        def forward(self, batch):
            return self.model(**batch)

    with pytest.raises(whence.InputError, match="The forward of Other takes batch, and the processor makes input_ids"):
        whence.Explainer(Other(bert(WORDS)), WORDS)(TEXT)


def test_a_wrapper_may_name_its_only_argument_otherwise():
    class Image(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(pixel_values=x).logits

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=8,
        id2label=LABELS,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    processor = image_processor("ViTImageProcessor")(size={"height": 16, "width": 16})
    picture = (torch.rand(16, 16, 3) * 255).byte().numpy()
    expected = whence.Explainer(model, processor)(picture)
    found = whence.Explainer(Image(model), processor)(picture)
    torch.testing.assert_close(found.scores, expected.scores)
    pipe = transformers.pipeline("image-classification", model=model, image_processor=processor)
    piped = whence.Explainer(pipe)(picture)
    torch.testing.assert_close(piped.scores, expected.scores)
    assert found.labels == piped.labels == LABELS


TASKS = {
    "text-classification": (transformers.BertForSequenceClassification, {}),
    "fill-mask": (transformers.BertForMaskedLM, {}),
    "token-classification": (transformers.BertForTokenClassification, {"token": "film"}),
    "question-answering": (transformers.BertForQuestionAnswering, {"answer": True}),
    "feature-extraction": (transformers.BertModel, {"target": whence.similarity(torch.arange(32.0))}),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_pipeline_is_explained_as_its_model_and_its_processor(task):
    cls, options = TASKS[task]
    model = bert(WORDS, cls)
    try:
        pipe = transformers.pipeline(task, model=model, tokenizer=WORDS)
    except KeyError:
        pytest.skip(f"this transformers has no pipeline '{task}'")
    text = {"fill-mask": "A [MASK] film", "question-answering": ("what is good", "it is good")}.get(task, TEXT)
    explainer = whence.Explainer(pipe)
    assert explainer.model is model
    expected = whence.Explainer(model, WORDS)(text, **options)
    torch.testing.assert_close(explainer(text, **options).scores, expected.scores)


def test_a_pipeline_of_a_language_model_generates():
    pipe = transformers.pipeline("text-generation", model=SPEAKER, tokenizer=BYTES)
    found = whence.Explainer(pipe).generate("The plot", max_new_tokens=2)
    assert [e.target_names for e in found] == [
        e.target_names for e in whence.Explainer(SPEAKER, BYTES).generate("The plot", max_new_tokens=2)
    ]


def test_a_lightning_module():
    lightning = pytest.importorskip("lightning", reason="not in the extra dev: an optional package")

    class Classifier(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, **batch):
            return self.model(**batch)

    model = bert(WORDS)
    found = whence.Explainer(Classifier(model), WORDS)(TEXT, target="good")
    torch.testing.assert_close(found.scores, whence.Explainer(model, WORDS)(TEXT, target="good").scores)
    assert found.target_names == ("good",)
