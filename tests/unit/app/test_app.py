"""The web page without a browser: queries, the queue, tasks that are cancelled, limits, the JSON API."""

from __future__ import annotations

import base64
import contextlib
import html
import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import whence
from tests.support import tiny
from tests.support.command_line import command_refused
from tools.replays import computations
from whence.app import html_fragments
from whence.app.callbacks import PageCallbacks
from whence.app.cancellable import CancellableTask, CancelledError, RunningTask, make_cancellable
from whence.app.fair_queue import BusyError, FairQueue
from whence.app.limits import Limits
from whence.app.log import Log
from whence.app.model_registry import ModelRegistry
from whence.app.query import Query
from whence.app.request_filter import is_loopback
from whence.app.result_cache import ResultCache, size_of
from whence.app.serve import credentials
from whence.app.service import ExplanationService
from whence.app.upload import uploaded_image
from whence.errors import InputError, ModelError
from whence.models import MODELS

TEXT = "A gripping film, though far too long."


@pytest.fixture(scope="module")
def models():
    return ModelRegistry.shipped()


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def service(models, log):
    return ExplanationService(models, log=Log(log), slots=1)


def lines(log):
    return [json.loads(line) for line in log.getvalue().splitlines()]


def ask(service, visitor="me", **asked):
    query = Query(**{"model": "sentiment", "text": TEXT, **asked})
    return service.start(visitor, lambda task: service.answer(visitor, query, task)).result()


# -- answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_is_that_of_the_package(service):
    result = ask(service, methods=("conservative-lrp", "generic-attention"), targets=("positive", "negative"))
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    expected = explainer.compare(TEXT, ["conservative-lrp", "generic-attention"], ["positive", "negative"])
    assert len(result.explanations) == 4
    for mine, own in zip(result.explanations, expected, strict=True):
        assert (mine.method, mine.target_names) == (own.method, own.target_names)
        torch.testing.assert_close(mine.scores, own.scores, rtol=1e-4, atol=1e-6)


def test_what_a_word_drew_on_is_told_where_it_is_known(service):
    result = ask(service, methods=("conservative-lrp", "occlusion"))
    known, unknown = result.explanations
    assert known.pairs is not None
    assert unknown.pairs is None
    page = html_fragments.explanation_cards(result.methods)
    assert page.count("data-drew=") == len(known.words[0])


def test_later_answers_are_replayed(service, monkeypatch):
    monkeypatch.setattr("whence.explainer.captured.TRACING", 1.0)  # no arithmetic to speak of
    texts = [f"A {word} film." for word in ("good", "bad", "long", "dull", "fine", "warm", "great", "slow")]
    with computations() as computed:
        for text in texts[:6]:
            ask(service, text=text)
        before = len(computed)
        for text in texts[6:]:
            ask(service, text=text)
    assert before >= 5
    assert len(computed) == before


def test_a_method_that_refuses_says_why_beside_the_others(service):
    result = ask(service, methods=("dave", "conservative-lrp"))
    refusing, found = result.methods
    assert refusing.error
    assert refusing.explanations == []
    assert len(found.explanations) == 1
    assert "dave" in html_fragments.explanation_cards(result.methods)


def test_the_second_look_is_kept_and_runs_no_model(service, models):
    ask(service)
    passes = []
    handle = models["sentiment"].explainer.model.register_forward_hook(lambda *_: passes.append(1))
    ask(service)
    assert passes == []
    ask(service, text=TEXT + " Truly.")
    handle.remove()
    assert passes


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"text": "  "}, "Write a text first"),
        ({"text": "x" * 10_001}, "10,001 characters"),
        ({"methods": ()}, "Choose 1 to 8 methods"),
        ({"methods": ("nothing",)}, "no method 'nothing'"),
        ({"targets": ("a", "b", "c")}, "one or two answers"),
        ({"model": "none"}, "no model 'none'"),
        ({"model": "digits"}, "Give a picture first"),
        ({"model": "digits", "picture": "../sentiment/config.json"}, "Give a picture first"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_sentence(service, asked, said):
    with pytest.raises(InputError, match=said):
        ask(service, **asked)


def test_a_target_that_is_no_class_is_told_beside_the_method(service):
    result = ask(service, targets=("enormous",))
    assert "enormous" in result.methods[0].error


def test_looking_closer_needs_no_more_than_the_explanation(service):
    (e,) = ask(service).explanations
    assert "into block 0" in html_fragments.ledger(e)
    assert "head" in html_fragments.heads(e)
    for layer in range(e.layers.shape[1]):
        assert f"Entering layer {layer}" in html_fragments.layer(e, layer)
    (plain,) = ask(service, methods=("random",)).explanations
    assert "keeps no books" in html_fragments.ledger(plain)
    assert "does not say" in html_fragments.heads(plain)
    assert "does not say" in html_fragments.layer(plain, 0)


def test_the_smallest_change_and_the_trial(service):
    query = Query("sentiment", TEXT)
    flipped = service.start("me", lambda task: service.find_counterfactual("me", query, task)).result()
    assert flipped.found
    (e,) = ask(service).explanations
    trial = service.start("me", lambda task: service.compare_with_random("me", query, task, e)).result()
    assert trial.random.shape == (20, 11)
    assert str(trial) in html.unescape(html_fragments.random_ranking_plot(trial))


# -- questions and links ---------------------------------------------------------------------------------------------

QUERIES = st.builds(
    Query,
    model=st.text(),
    text=st.text(),
    second=st.text(),
    picture=st.text(),
    methods=st.lists(st.text(), min_size=1).map(tuple),
    targets=st.lists(st.text()).map(tuple),
    chosen=st.integers(-1, 99),
)


@given(QUERIES)
def test_a_link_restores_what_was_asked(query):
    try:
        link = query.to_link()
    except UnicodeEncodeError:  # half of a pair: no browser sends one
        return
    assert Query.from_link(f"#{link}") == query
    assert all(c.isalnum() or c in "-_=" for c in link)


def test_an_uploaded_picture_is_not_in_a_link_nor_taken_from_one():
    query = Query("digits", upload="/somewhere/secret.png")
    assert Query.from_link(query.to_link()).upload == ""
    forged = base64.urlsafe_b64encode(json.dumps({"model": "digits", "upload": "/etc/passwd"}).encode()).decode()
    assert Query.from_link(f"ask={forged}").upload == ""


@pytest.mark.parametrize("link", ["", "#", "#somewhere", "other=1"])
def test_an_address_without_a_question(link):
    assert Query.from_link(link) is None


@given(st.text())
def test_a_damaged_link_is_a_sentence(garbage):
    with contextlib.suppress(InputError):  # and nothing else
        Query.from_link("#ask=" + garbage)


@pytest.mark.parametrize("chosen", ["Infinity", "1e999", "[]", '"x"', "[" * 100_000])
def test_a_forged_link_is_a_sentence(chosen):
    forged = base64.urlsafe_b64encode(f'{{"model":"sentiment","chosen":{chosen}}}'.encode()).decode()
    with pytest.raises(InputError, match="damaged"):
        Query.from_link(f"ask={forged}")


# -- queue -----------------------------------------------------------------------------------------------------------


def test_visitors_take_turns():
    queue, served, begin = FairQueue(1), [], threading.Event()

    def one(visitor, number):
        with queue.slot(visitor):
            begin.wait(5)
            served.append((visitor, number))

    threads = []
    for visitor, number in [("greedy", i) for i in range(4)] + [("modest", 0), ("shy", 0)]:
        threads.append(threading.Thread(target=one, args=(visitor, number)))
        threads[-1].start()
        while queue.waiting + queue.serving < len(threads):
            time.sleep(0.001)
    begin.set()
    for thread in threads:
        thread.join()
    order = [("greedy", 0), ("greedy", 1), ("modest", 0), ("shy", 0), ("greedy", 2), ("greedy", 3)]
    assert served == order
    assert (queue.waiting, queue.serving) == (0, 0)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.lists(st.sampled_from("abc"), max_size=12))
def test_never_more_than_the_slots_and_nobody_is_forgotten(slots, visitors):
    queue, lock, now, most, done = FairQueue(slots), threading.Lock(), [0], [0], []

    def one(visitor):
        with queue.slot(visitor):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.001)
            with lock:
                now[0] -= 1
            done.append(visitor)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, visitors))
    assert sorted(done) == sorted(visitors)
    assert most[0] <= slots


def test_one_who_gives_up_while_waiting_leaves_the_queue():
    queue, task = FairQueue(1), CancellableTask()
    with queue.slot("first"):
        task.cancel()
        with pytest.raises(CancelledError), queue.slot("second", task.check):
            pass
    assert (queue.waiting, queue.serving) == (0, 0)


def test_too_many_are_told_so():
    queue = FairQueue(1, max_waiting=0)
    with pytest.raises(BusyError, match="try again"), queue.slot("me"):
        pass


# -- tasks -----------------------------------------------------------------------------------------------------------


def test_work_is_cancelled_at_the_next_forward():
    model, going = torch.nn.Linear(2, 2), threading.Event()
    make_cancellable(model)

    def forever():
        for _ in range(10_000):
            model(torch.zeros(1, 2))
            going.set()
            time.sleep(0.001)

    task = CancellableTask()
    with ThreadPoolExecutor(1) as pool:
        running = RunningTask(pool, task, forever)
        going.wait(5)
        task.cancel()
        with pytest.raises(CancelledError):
            running.result()
    assert 0 < task.passes < 10_000
    model(torch.zeros(1, 2))  # of no task: nothing stops it


def test_what_is_asked_next_cancels_what_was_asked_before(service):
    slow = service.start("me", lambda task: [(time.sleep(0.01), task.check()) for _ in range(1000)])
    assert ask(service).explanations
    with pytest.raises(CancelledError):
        slow.result()


def test_all_tasks_end_with_the_service(models):
    service = ExplanationService(models, log=Log(io.StringIO()))
    slow = service.start("me", lambda task: [(time.sleep(0.01), task.check()) for _ in range(10_000)])
    service.close()
    with pytest.raises(CancelledError, match="has ended"):
        slow.result()


def test_a_slow_method_is_cancelled_within_a_moment(service):
    query = Query("sentiment", TEXT, methods=("kernel-shap", "integrated-gradients"))
    running = service.start("me", lambda task: service.answer("me", query, task))
    while not running.task.passes:
        time.sleep(0.001)
    service.cancel("me")
    with pytest.raises(CancelledError):
        running.result()
    service.cancel("nobody")


def test_the_work_says_how_far_it_is():
    task, go = CancellableTask(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = RunningTask(pool, task, lambda: go.wait(5))
        task.begin("thinking")
        task.passes = 7
        said = running.progress(0.01)
        assert next(said) == "thinking, 7 passes of the model"
        go.set()
        assert list(said)[2:] == []
        assert running.result() is True


def test_ten_visitors_at_once_get_their_own_answers(models):
    service = ExplanationService(models, log=Log(io.StringIO()), slots=3)
    texts = [f"{word} film, take {i}" for i in range(5) for word in ("A superb", "A dreadful")]
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda pair: ask(service, f"visitor {pair[0]}", text=pair[1]), enumerate(texts)))
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    for text, result in zip(texts, found, strict=True):
        (e,) = result.explanations
        assert e.origins[0]["text"].texts == (text,)
        torch.testing.assert_close(e.scores, explainer(text).scores, rtol=1e-4, atol=1e-6)


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_the_cache_is_bounded(service):
    (e,) = ask(service).explanations
    cache = ResultCache(max_bytes=3 * size_of(e))
    for i in range(10):
        cache.add(i, [e])
        cache.add(i, [e])
    assert len(cache) == 3
    assert cache.bytes == 3 * size_of(e)
    assert cache.get(9) == [e]
    assert cache.get(0) is None


def test_a_result_that_is_larger_than_the_cache_is_not_stored():
    cache = ResultCache(max_bytes=10)
    cache.add("small", ["one"], 4)
    cache.add("other", ["two"], 4)
    cache.add("other", ["three"], 11)
    assert cache.get("small") == ["one"]
    assert cache.get("other") is None
    assert (len(cache), cache.bytes) == (1, 4)
    cache.add("exact", ["four"], 10)
    assert (cache.get("exact"), cache.get("small")) == (["four"], None)


def picture(size, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(out, kind)
    return out.getvalue()


def test_pictures_are_bounded_before_they_are_read(tmp_path):
    limits = Limits(pixels=100, upload=1000)
    (tmp_path / "small.png").write_bytes(picture((10, 10)))
    (tmp_path / "large.png").write_bytes(picture((10, 11)))
    (tmp_path / "none.png").write_bytes(b"no picture")
    (tmp_path / "heavy.png").write_bytes(picture((10, 10)) + b" " * 1000)
    noise = io.BytesIO()
    Image.effect_noise((10, 10), 50).save(noise, "PNG")
    (tmp_path / "cut.png").write_bytes(noise.getvalue()[:-40])
    limits.check_image(str(tmp_path / "small.png"))
    with pytest.raises(InputError, match="11 x 10"):
        limits.check_image(str(tmp_path / "large.png"))
    with pytest.raises(InputError, match="no picture"):
        limits.check_image(str(tmp_path / "none.png"))
    with pytest.raises(InputError, match="too large: 1,000 bytes at most"):
        limits.check_image(str(tmp_path / "heavy.png"))
    with pytest.raises(InputError, match="damaged") as told:
        limits.check_image(str(tmp_path / "cut.png"))
    assert str(tmp_path) not in str(told.value)
    with pytest.raises(InputError, match="too large"), uploaded_image("A" * 2000, limits):
        pass
    with pytest.raises(InputError, match="no base64"), uploaded_image("***", limits):
        pass
    with uploaded_image("data:image/png;base64," + base64.b64encode(picture((10, 10))).decode(), limits) as path:
        assert Image.open(path).size == (10, 10)
    assert not Path(path).exists()
    with uploaded_image("", limits) as path:
        assert path == ""


# -- what is logged, who may come ------------------------------------------------------------------------------------


def test_the_log_holds_no_texts_unless_asked(service, log):
    ask(service)
    (line,) = lines(log)
    assert line["event"] == "explain conservative-lrp"
    assert (line["model"], line["characters"], line["outcome"]) == ("sentiment", len(TEXT), "done")
    assert "gripping" not in log.getvalue()
    service.log.inputs = True
    ask(service, text="another\nfilm")
    assert lines(log)[-1]["text"] == "another\nfilm"


def test_a_defect_is_logged_without_what_its_message_quotes(service, log):
    callbacks = PageCallbacks(service, {}, Path())

    def fail():
        raise KeyError(" ".join(["my", "secret"]))

    found, said = callbacks._result_or_problem(fail)
    assert found is None
    assert "written to its log" in said
    (line,) = lines(log)
    assert (line["event"], line["error"]) == ("failure", "KeyError")
    assert "in fail" in line["traceback"]
    assert "my secret" not in log.getvalue()


def test_a_word_that_is_not_there_is_not_looked_at(service):
    assert ask(service, chosen=99).word_explanation is None


def test_the_password_is_in_a_file(tmp_path):
    (tmp_path / "secret").write_text("s3cret\n")
    assert credentials(f"ann:{tmp_path / 'secret'}") == ("ann", "s3cret")
    (tmp_path / "empty").write_text("\n")
    for given_, said in [
        ("ann", "user:password-file"), (":x", "user:password-file"), (f"ann:{tmp_path / 'absent'}", "cannot be read"),
        (f"ann:{tmp_path / 'empty'}", "is empty"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            credentials(given_)


@pytest.mark.parametrize(
    ("host", "is_own"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("pc", False)]
)
def test_who_can_reach_it(host, is_own):
    assert is_loopback(host) is is_own


def test_models_that_the_page_cannot_take_are_refused_at_the_start():
    model = tiny.bert()
    with pytest.raises(ModelError, match="reads tensors"):
        ModelRegistry.from_explainers({"mine": whence.Explainer(model)})
    with pytest.raises(InputError, match="no model"):
        ModelRegistry([])


def test_two_models_of_one_name_are_told_apart():
    models = ModelRegistry.load([str(MODELS / "digits"), str(MODELS / "digits")])
    assert list(models) == ["digits", "digits (2)"]


def test_wrong_calls_are_sentences():
    command_refused(2, "user:password-file", "serve", "--auth", "ann")
    command_refused(2, "cannot be served", "serve", "--host", "203.0.113.1")


def test_a_fault_of_the_engine_is_logged_as_what_was_raised_first(service, log):
    def fail():
        raise whence.EngineError("Whence failed on 'my secret'.") from KeyError("my secret")

    with pytest.raises(whence.WhenceError, match="written to its log"):
        service.log_defects(fail)
    (line,) = lines(log)
    assert (line["event"], line["error"]) == ("failure", "KeyError")
    assert "my secret" not in log.getvalue()
