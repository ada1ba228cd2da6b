"""Sentence encoders, rerankers, pipelines and wrapped modules."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

import whence

from .case import Case, Pair

FIRST, SECOND = "a film with a long story", "the story is good"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film", "with", "long", "story", "the", "is", "good"]


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.BertTokenizerFast(tokenizer_object=words, model_max_length=32)


def bert(cls: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, initializer_range=0.3, **more,
    )  # fmt: skip
    return cls(config).eval()


class HandWritten(nn.Module):
    """The cosine similarity of two texts by the mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = bert(transformers.BertModel)

    def forward(self, input_ids: torch.Tensor, other_input_ids: torch.Tensor) -> torch.Tensor:
        """Return the similarity, ``[batch, 1]``."""
        a, b = (self.bert(input_ids=ids).last_hidden_state.mean(1) for ids in (input_ids, other_input_ids))
        return nn.functional.cosine_similarity(a, b)[:, None]


class Joined:
    """An explanation of two streams, as one of both texts."""

    def __init__(self, e: Any) -> None:
        self.scores = torch.cat(list(e.streams.values()), 1)


def by_hand(method: str) -> Joined:
    ids = [tokenizer()(text, return_tensors="pt")["input_ids"] for text in (FIRST, SECOND)]
    inputs = dict(zip(("input_ids", "other_input_ids"), ids, strict=True))
    return Joined(whence.explain(HandWritten().eval(), inputs, method))


def write(directory: Path) -> None:
    """Write a sentence encoder as sentence-transformers does."""
    bert(transformers.BertModel).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    )
    listed = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(listed)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))


def sentence_directory() -> Pair:
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        explainer = whence.Explainer.from_pretrained(directory)
    return Pair(by_hand, lambda method: explainer((FIRST, SECOND), method))


def sentence_transformer() -> Pair:
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        explainer = whence.Explainer(SentenceTransformer(directory, device="cpu"))
    return Pair(by_hand, lambda method: explainer((FIRST, SECOND), method))


def cross_encoder() -> Pair:
    from sentence_transformers import CrossEncoder

    model = bert(transformers.BertForSequenceClassification, num_labels=1)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        tokenizer().save_pretrained(directory)
        explainer = whence.Explainer(CrossEncoder(directory, device="cpu"))
    inputs = dict(tokenizer()(FIRST, SECOND, return_tensors="pt"))
    return Pair(lambda method: whence.explain(model, inputs, method), lambda method: explainer((FIRST, SECOND), method))


def classifier(load: Callable[[Any], whence.Explainer]) -> Callable[[], Pair]:
    """Return a builder of a classifier, plain and as it is loaded."""

    def build() -> Pair:
        model = bert(transformers.BertForSequenceClassification, num_labels=3)
        explainer = load(model)
        inputs = dict(tokenizer()(FIRST, return_tensors="pt"))
        return Pair(lambda method: whence.explain(model, inputs, method), lambda method: explainer(FIRST, method))

    return build


def pipeline(model: Any) -> whence.Explainer:
    return whence.Explainer(transformers.pipeline("text-classification", model=model, tokenizer=tokenizer()))


def lightning(model: Any) -> whence.Explainer:
    from lightning import LightningModule

    class Classifier(LightningModule):
        """A model under the name ``model``, as in Lightning's own examples."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **batch: torch.Tensor) -> Any:
            """Return the model's outputs."""
            return self.model(**batch)

    return whence.Explainer(Classifier(), tokenizer())


def data_parallel(model: Any) -> whence.Explainer:
    return whence.Explainer(nn.DataParallel(model), tokenizer())


def compiled(model: Any) -> whence.Explainer:
    return whence.Explainer(torch.compile(model, backend="eager"), tokenizer())


class OneChoice(nn.Module):
    """A multiple-choice model over the text and one choice alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.bert, self.classifier = model.bert, model.classifier

    def forward(self, **given: torch.Tensor) -> torch.Tensor:
        """Return the logit of the choice, ``[batch, 1]``."""
        logit: torch.Tensor = self.classifier(self.bert(**given).pooler_output)
        return logit


def multiple_choice() -> Pair:
    model = bert(transformers.BertForMultipleChoice)
    explainer, alone = whence.Explainer(model, tokenizer()), OneChoice(model).eval()
    inputs = dict(tokenizer()(FIRST, SECOND, return_tensors="pt"))
    return Pair(
        lambda method: whence.explain(alone, inputs, method, 0),
        lambda method: explainer((FIRST, ["the film is long", SECOND]), method, target=SECOND),
    )


CASES = [
    Case("SentenceTransformer, a pair of texts", "sentence-transformers", sentence_transformer),
    Case("a directory of sentence-transformers", "sentence-transformers", sentence_directory),
    Case("CrossEncoder", "sentence-transformers", cross_encoder),
    Case("pipeline", "transformers", classifier(pipeline)),
    Case("LightningModule", "lightning", classifier(lightning)),
    Case("DataParallel, Explainer", "torch", classifier(data_parallel)),
    Case("torch.compile, Explainer", "torch", classifier(compiled)),
    Case("multiple choice", "transformers", multiple_choice),
]
