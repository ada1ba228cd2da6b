"""Models that transcribe: from a waveform to an explanation of each word in seconds of audio."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as T

import whence
from tests.support.goldens import shared
from tests.support.speech import START, whisper
from tests.support.vision_language import built, tokenizer
from whence.inputs.speech import SpeechReader


@pytest.fixture(scope="module")
def explainer():
    return whisper()


def wave(seconds=1.2, seed=0):
    return np.random.default_rng(seed).normal(size=int(16000 * seconds)).astype(np.float32)


def test_the_first_token_is_explained_after_those_that_a_transcript_begins_with(explainer):
    assert isinstance(explainer.reader, SpeechReader)
    e = explainer(wave())
    assert list(e.streams) == ["audio", "text"]
    assert e.origins[0]["text"].tokens == tuple(START)
    assert e.streams["audio"].shape == (1, 100)
    assert e.streams["audio"].abs().sum() > 0


def test_each_word_of_a_transcript_is_explained_as_if_alone(explainer):
    g = explainer.generate(wave(seed=1), max_new_tokens=4)
    assert len(g) == 4
    sample = explainer.reader.audio(wave(seed=1))
    ids = [int(e.target[0]) for e in g]
    start = explainer.processor.tokenizer.convert_tokens_to_ids(START)
    tensors = explainer.placed({**sample.tensors, "decoder_input_ids": torch.tensor([[*start, *ids[:-1]]])})
    for i, e in enumerate(g):
        alone = whence.explain(explainer.model, tensors, target=whence.At(len(start) - 1 + i, ids[i]))
        assert torch.allclose(e.streams["audio"], next(iter(alone.streams.values())), rtol=1e-6, atol=1e-9)
        assert e.streams["text"][:, len(start) + i :].abs().sum() < 1e-9
    assert "".join(g.tokens) == g.text


def test_a_given_transcript_is_explained(explainer):
    g = explainer.generate(wave(), "seven", max_new_tokens=1)
    assert g.text == "seven"
    assert g.prompt == ""


def test_positions_are_seconds(explainer):
    e = explainer(wave(1.2))
    times = e.origins[0]["audio"].times(e.streams["audio"].shape[1])
    assert times[0, 0] == 0
    assert times[-1, 1] == pytest.approx(2.0)


def test_pages_and_figures_are_drawn(explainer, tmp_path):
    g = explainer.generate(wave(), max_new_tokens=2)
    for name in ("g.html", "g.png"):
        g.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_the_words_of_a_transcript_are_drawn_under_the_waveform(explainer):
    g = explainer.generate(wave(), max_new_tokens=4)
    words = g.timed_words()
    assert "".join(word.text for word in words) == "".join(g.text.split())
    assert all(0 <= word.start < word.end <= 1.25 for word in words)
    drawn = g.content(".svg").decode()
    assert "seconds" in drawn
    assert all(word.text in drawn for word in words if word.text.isalnum())
    assert g.table().across == "seconds"
    assert len(g.table("text").columns) == g.streams["text"].shape[1]


def test_seconds_are_of_transcripts_alone_and_a_share_is_positive(explainer):
    g = explainer.generate(wave(), max_new_tokens=2)
    with pytest.raises(whence.InputError, match="share"):
        g.timed_words(0)
    text = tokenizer([])
    config = T.LlamaConfig(vocab_size=len(text), hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                           num_attention_heads=4)  # fmt: skip
    written = whence.Explainer(built(T.LlamaForCausalLM, config), text).generate("a photo", "of")
    with pytest.raises(whence.InputError, match="transcript"):
        written.timed_words()


#: when each word is heard in the recording, read off its waveform and spectrogram, within half a second
HEARD = [("And", 0.4), ("so", 0.8), ("my", 1.1), ("fellow", 1.45), ("Americans", 1.9), ("ask", 3.5), ("not", 4.1),
         ("what", 5.45), ("your", 5.7), ("country", 6.05), ("can", 6.5), ("do", 6.75), ("for", 7.0), ("you,", 7.25),
         ("ask", 8.35), ("what", 8.65), ("you", 8.95), ("can", 9.25), ("do", 9.45), ("for", 9.65), ("your", 9.85),
         ("country.", 10.15)]  # fmt: skip


@pytest.mark.slow
def test_the_words_of_a_real_recording_sit_at_their_seconds():
    model = Path(__file__).parents[3] / "build" / "models" / "whisper-tiny"
    recording = shared("data", "speech_jfk.flac")
    if not (model / "config.json").exists():
        pytest.skip("needs `python -m tools.real_models whisper-tiny`")
    g = whence.Explainer.from_pretrained(model).generate(audio=recording, method="generic-attention")
    words = g.timed_words()
    assert [word.text for word in words] == [word for word, _ in HEARD]
    for word, (_, second) in zip(words, HEARD, strict=True):
        assert word.start - 0.5 < second < word.end + 0.5
        assert word.end - word.start < 2
