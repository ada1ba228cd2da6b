"""Generated text: every token explained, from one forward, as each alone would be."""

from __future__ import annotations

import pytest
import tiny
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_check import BYTES, SPEAKER, WORDS

import whence
from whence.generation import decoded

EXACT = 1e-9
PROMPT = "a good film is"


def causal(seed: int = 0):
    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, max_position_embeddings=64, initializer_range=0.3, bos_token_id=1, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def writer():
    return whence.Explainer(causal(), WORDS)


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=None, initializer_factor=3.0,
    )  # fmt: skip
    return whence.Explainer(hf.T5ForConditionalGeneration(config).double().eval(), WORDS)


def test_what_is_written_is_what_the_model_writes(writer):
    g = writer.generate(PROMPT, max_new_tokens=5)
    ids = WORDS(PROMPT, return_tensors="pt")["input_ids"]
    wrote = writer.model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    assert len(g) == 5
    assert [int(e.target) for e in g] == wrote.tolist()
    assert [int(e.prediction) for e in g] == wrote.tolist()
    assert g.prompt == PROMPT


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "gradient-x-input", "generic-attention", "rollout"])
def test_each_token_is_explained_as_it_would_be_alone(writer, method):
    """Alone: the text up to the token, its logit at the last position."""
    g = writer.generate(PROMPT, max_new_tokens=4, method=method)
    ids = torch.tensor([[*WORDS(PROMPT)["input_ids"], *(int(e.target) for e in g)]])
    first = ids.shape[1] - 4
    for i, e in enumerate(g):
        before = ids[:, : first + i]
        alone = whence.explain(writer.model, {"input_ids": before}, method, target=int(e.target))
        assert (e.scores[:, : first + i] - alone.scores).abs().max() < EXACT * alone.scores.abs().max()
        assert e.scores[:, first + i :].abs().max() == 0
        assert e.special[:, first + i :].all()
        assert abs(float(e.value - alone.value)) < EXACT


def test_the_model_runs_once_for_all_tokens(writer):
    ran = []
    handle = writer.model.register_forward_pre_hook(lambda *_: ran.append(1))
    writer.generate(PROMPT, continuation=" bad bad bad a it")
    handle.remove()
    assert len(ran) == 1


def test_a_span_is_the_sum_of_its_tokens_and_the_target_of_that_name(writer):
    g = writer.generate(PROMPT, max_new_tokens=4)
    ids = [*WORDS(PROMPT)["input_ids"], *(int(e.target) for e in g)]
    first = len(ids) - 4
    asked = whence.span(first + 1, ids[first + 1 : first + 3])
    alone = whence.explain(writer.model, {"input_ids": torch.tensor([ids])}, target=asked)
    summed = g.span(1, 3)
    assert (summed.scores - alone.scores).abs().max() < 1e-6  # the model's own norms are in float32
    assert abs(float(summed.value - alone.value)) < EXACT
    assert summed.target is None
    with pytest.raises(whence.TargetError, match="4 were written"):
        g.span(4)
    with pytest.raises(whence.TargetError, match=r"whence\.span"):
        writer.generate(PROMPT, max_new_tokens=2, method="generic-attention").span()


def test_a_continuation_is_taken_as_it_is(writer):
    g = writer.generate(PROMPT, " terrible")
    assert g.text.strip() == "terrible"
    assert g.tokens == ["terrible"]
    words = g[0].words[0]
    assert [w.text for w in words if w.part == 0] == PROMPT.split()


def test_an_encoder_decoder_tells_of_both_its_texts(translator):
    g = translator.generate(PROMPT, max_new_tokens=4)
    ids = WORDS(PROMPT, return_tensors="pt")["input_ids"]
    wrote = translator.model.generate(ids, max_new_tokens=4, do_sample=False)[0, 1:].tolist()
    assert [int(e.target) for e in g] == wrote
    assert {n: s.shape for n, s in g.streams.items()} == {"encoder": (4, ids.shape[1]), "decoder": (4, 4)}
    assert g.streams["decoder"].triu(1).abs().max() == 0
    for i, e in enumerate(g):
        inputs = {"input_ids": ids, "decoder_input_ids": torch.tensor([[0, *wrote[:i]]])}
        alone = whence.explain(translator.model, inputs, target=whence.At(i, wrote[i]))
        assert (e.streams["encoder"] - alone.streams["encoder"]).abs().max() < EXACT
        assert (e.streams["decoder"][:, : i + 1] - alone.streams["decoder"]).abs().max() < EXACT
    assert g.table("decoder").rows == tuple(g.tokens)


def test_a_chat_template_is_shown_and_is_not_the_users(writer):
    class Chatting:
        """The tokenizer, with a template."""

        def __getattr__(self, name):
            return getattr(WORDS, name)

        def __call__(self, *args, **kwargs):
            return WORDS(*args, **kwargs)

        def __len__(self):
            return len(WORDS)

        def apply_chat_template(self, messages, tokenize, add_generation_prompt):
            assert not tokenize
            assert add_generation_prompt
            return "".join(f"it {m['content']} plot " for m in messages)

    explainer = whence.Explainer(writer.model, Chatting())
    g = explainer.generate([{"role": "user", "content": "a good film"}], max_new_tokens=2)
    assert g.prompt == "it a good film plot "
    own = [not s for s in g[0].special[0].tolist()]
    words = [WORDS.decode([i]) for i in WORDS(g.prompt, add_special_tokens=False)["input_ids"]]
    assert [w for w, mine in zip(words, own, strict=False) if mine] == ["a", "good", "film"]
    with pytest.raises(whence.InputError, match="chat template"):
        writer.generate([{"role": "user", "content": "a good film"}])


def test_it_can_be_looked_at_and_kept(writer, tmp_path, capsys):
    g = writer.generate(PROMPT, max_new_tokens=3)
    for name in ("g.html", "g.png", "g.svg", "g.json", "g.safetensors"):
        assert g.save(tmp_path / name).stat().st_size > 500
    assert whence.Generation(whence.load(tmp_path / "g.json")).text == g.text
    assert whence.load(tmp_path / "g.safetensors") == g.explanations
    page = (tmp_path / "g.html").read_text()
    assert page.count('id="card-') == 3
    assert 'href="#card-2"' in page
    g.show()
    assert "What each token written came from" in capsys.readouterr().out
    assert g.matrix.shape == (3, len(g.written.tokens))


def test_what_cannot_write_says_so(writer):
    with pytest.raises(whence.ModelError, match="no language model"):
        whence.Explainer(tiny.bert(), WORDS).generate(PROMPT)
    speaker = whence.Explainer(SPEAKER, BYTES)
    with pytest.raises(whence.InputError, match=f"the model takes {speaker.reader.limit}"):
        speaker.generate(PROMPT, continuation=" bad" * speaker.reader.limit)
    with pytest.raises(whence.ModelError, match="could not write"):
        writer.generate(PROMPT, sampling={"no_such_option": 1})


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_every_character_written_stands_in_one_token_or_at_the_end_of_several(before, text):
    found, places = decoded(Bytes(), before.encode("utf-8", "replace"), text.encode("utf-8", "replace"))
    assert found == text.encode("utf-8", "replace").decode()
    assert "".join(found[a:b] for a, b in places) == found
