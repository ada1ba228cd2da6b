"""The web page on a free port, visited in a browser; and small models that are not of the shipped kind."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager

import pytest
import torch
from transformers import DetrConfig, DetrForObjectDetection, LlamaConfig, LlamaForCausalLM, ResNetConfig
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

import whence
from tests.support.processors import WORDS
from whence.app.log import Log
from whence.app.model_registry import ModelRegistry
from whence.app.service import ExplanationService
from whence.models import MODELS

pytest.importorskip("gradio", reason="gradio is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")

DIGIT = sorted((MODELS / "digits" / "examples").glob("*.png"))[0]


PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


class Server:
    """The application on a free port of this machine."""

    def __init__(self, models, auth=None, limits=None, slots=1):
        from whence.app.serve import application

        self.log = io.StringIO()
        self.folder = tempfile.TemporaryDirectory()
        self.service = ExplanationService(models, limits, Log(self.log), slots)
        app = application(self.service, self.folder.name, auth)
        config = uvicorn.Config(app, port=0, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=30) as response:
            return response.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        self.folder.cleanup()


class Visit:
    """A page, and all that it did unasked."""

    def __init__(self, browser, address, expected=(), **options):
        self.unasked: list[str] = []
        self.expected = expected
        self.address = address.split("#")[0].split("?")[0]
        self.page = browser.new_context(accept_downloads=True, **options).new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda e: self.unasked.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.unasked.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", self._requested)
        self.page.goto(address)
        self.page.wait_for_selector("#whence-explain")

    def _console(self, message):
        known = ("Method not implemented.", *self.expected)  # Gradio's own, of a picture that is uploaded
        if message.type in ("error", "warning") and not any(e in message.text for e in known):
            self.unasked.append(f"{message.type}: {message.text}")

    def _requested(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.unasked.append(f"request: {request.url}")

    def explain(self):
        self.begin()
        self.done()

    def begin(self):
        """Press the button; the browser counts how often work has ended."""
        self.page.evaluate(
            """() => {
              window.ended = 0;
              let busy = false;
              new MutationObserver(() => {
                const now = !!document.querySelector("#whence-cancel");
                if (busy && !now) window.ended += 1;
                busy = now;
              }).observe(document.body, { childList: true, subtree: true });
            }"""
        )
        self.page.click("#whence-explain")

    def done(self):
        self.page.wait_for_function("window.ended > 0")
        self.page.wait_for_selector("#whence-explain", state="visible")

    def choose(self, what, *options):
        for option in options:
            box = self.page.locator(f"#{what} input")
            box.click()
            box.fill(option)
            self.page.locator(f"#{what} [role=option]", has_text=option).first.click()
        self.page.keyboard.press("Escape")

    def tab(self, name):
        self.page.get_by_role("tab", name=name).click()

    def text(self, what):
        return self.page.locator(f"#{what}").inner_text()


@contextmanager
def visiting(browser, address):
    """A function that opens the page; in the end nothing may have happened unasked."""
    visits = []

    def go(other=None, **options):
        visits.append(Visit(browser, other or address, **options))
        return visits[-1]

    yield go
    for one in visits:
        assert one.unasked == []
        one.page.context.close()


@contextmanager
def serving(**models):
    server = Server(ModelRegistry.from_explainers(models))
    try:
        yield server
    finally:
        server.stop()


def writer():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=64, initializer_range=0.3, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return whence.Explainer(LlamaForCausalLM(config).eval(), WORDS)


def finder():
    """A detector that finds the same class wherever it looks."""
    torch.manual_seed(0)
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        backbone_config=backbone, num_queries=3, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, encoder_attention_heads=2, decoder_attention_heads=2, d_model=16, num_labels=3,
        id2label={0: "cat", 1: "dog", 2: "cow"},
    )  # fmt: skip
    model = DetrForObjectDetection(config).eval()
    with torch.no_grad():
        model.class_labels_classifier.bias[1] = 10.0
    return whence.Explainer(model, DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64}))
