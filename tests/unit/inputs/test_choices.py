"""Multiple choice: a text and its choices, each explained by the words of the text and of that choice."""

import pytest
import torch
import transformers

import whence
from tests.support.processors import WORDS, bert_config, small

TEXT, CHOICES = "the film is good", ["a wonderful cast", "it is far too long", "bad"]
MODEL = small(transformers.BertForMultipleChoice, bert_config(len(WORDS)))


class OneChoice(torch.nn.Module):
    """The model over the text and one choice alone."""

    def __init__(self):
        super().__init__()
        self.bert, self.classifier = MODEL.bert, MODEL.classifier

    def forward(self, **given):
        return self.classifier(self.bert(**given).pooler_output)


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "attention", "rollout"])
def test_each_choice_is_explained_by_its_own_words(method):
    explainer = whence.Explainer(MODEL, WORDS)
    found = explainer((TEXT, CHOICES), method, target=whence.every([0, 1, 2]))
    for i, e in enumerate(found):
        alone = dict(WORDS(TEXT, CHOICES[i], return_tensors="pt"))
        expected = whence.explain(OneChoice().eval(), alone, method, 0)
        torch.testing.assert_close(e.scores, expected.scores, atol=1e-5, rtol=1e-4)
        assert [w.text for w in e.words[0] if w.part == 0] == TEXT.split()
        assert [w.text for w in e.words[0] if w.part == 1] == CHOICES[i].split()
        assert e.target_names == (CHOICES[i],)
        assert e.labels == dict(enumerate(CHOICES))


def test_the_predicted_choice_is_the_default_and_a_choice_is_named_by_its_text():
    explainer = whence.Explainer(MODEL, WORDS)
    e = explainer({"text": TEXT, "choices": CHOICES})
    best = int(e.logits[0].argmax())
    assert e.target_names == e.prediction_names == (CHOICES[best],)
    named = explainer((TEXT, CHOICES), target=CHOICES[1])
    torch.testing.assert_close(named.value, named.logits[:, 1])
    assert named == explainer((TEXT, CHOICES), target=1)


def test_a_batch_of_questions_gives_what_each_gives_alone():
    explainer = whence.Explainer(MODEL, WORDS)
    questions = [(TEXT, CHOICES), (TEXT, CHOICES[::-1]), ("it is bad", CHOICES[:2])]
    targets = ["bad", 0, None]
    for question, target, e in zip(questions, targets, explainer(questions, target=targets), strict=True):
        alone = explainer(question, target=target)
        torch.testing.assert_close(e.scores, alone.scores)
        assert (e.target_names, e.tokens) == (alone.target_names, alone.tokens)


@pytest.mark.parametrize("target", [whence.contrast(0, 1), lambda outputs: outputs.logits[:, 0], whence.At(1, 0)])
def test_a_target_over_several_choices_is_refused(target):
    with pytest.raises(whence.TargetError, match=r"whence\.every"):
        whence.Explainer(MODEL, WORDS)((TEXT, CHOICES), target=target)


def test_a_choice_that_is_not_there():
    with pytest.raises(whence.TargetError, match="a wonderful cast"):
        whence.Explainer(MODEL, WORDS)((TEXT, CHOICES), target="a wonderful crew")


@pytest.mark.parametrize("given", [(TEXT, ["one"]), (TEXT, ["one", 2]), {"text": None, "choices": CHOICES}])
def test_a_wrong_question(given):
    with pytest.raises(whence.InputError, match="at least two choices"):
        whence.Explainer(MODEL, WORDS)(given)


@pytest.mark.parametrize("method", ["bi-attention", "token-tm"])
def test_a_method_that_reads_the_tokens_of_all_choices_is_refused(method):
    with pytest.raises(whence.ModelError, match="multiple-choice"):
        whence.Explainer(MODEL, WORDS)((TEXT, CHOICES), method)
