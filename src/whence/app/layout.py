"""The page: what stands where, and which question each thing asks."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
from gradio import events

from ..methods.registry import list_methods as all_methods
from ..render.html.markup import tag
from . import html_fragments
from .callbacks import Answering
from .json_api import answering
from .limits import Limits
from .query import DEFAULT, SAID
from .service import THREADS, Desk
from .upload_widget import Picture

TITLE = "Whence"
FILES = {"html": "HTML page", "png": "PNG figure", "json": "JSON data"}
LEAD = "From where did this prediction come? Ask a model, and see which words or patches its answer rests on."
LAYERS = (
    "A model works in layers, from 0, which reads the input, to the last, which answers. Move the slider: which words "
    "or patches held what counted, on the way into each?"
)
CHANGE = "Which words or patches have to go before the model says something else? The model itself checks each try."
#: a click on anything that asks something is told to the server
ASKING = """
element.addEventListener("click", (event) => {
  const asked = event.target.closest("[data-ask]");
  if (asked) trigger("click", { asked: asked.dataset.ask });
});
"""
#: what was made is given to the browser to keep
KEEP = """
(made) => {
  if (!made) return;
  const bytes = Uint8Array.from(atob(made.content), (c) => c.charCodeAt(0));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes], { type: made.type }));
  link.download = made.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
"""
LINK = "(mark) => { if (mark) history.replaceState(null, '', '#' + mark); return location.href; }"
#: on a phone the answer is below what was asked
SHOW = """
() => {
  const answer = document.querySelector("#whence-result");
  if (answer.getBoundingClientRect().top > innerHeight / 2) answer.scrollIntoView({ block: "start" });
}
"""
PLAIN: dict[str, Any] = {"padding": False, "apply_default_css": False}  # of parts that wear Whence's own style


def build(desk: Desk, folder: Path) -> Any:
    """The page as Gradio's blocks; pictures are served from ``folder``."""
    c = SimpleNamespace()  # its components, by name
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        gr.HTML(html_fragments.island(tag("h1", TITLE), tag("p", LEAD)), elem_id="whence-head", **PLAIN)
        c.question, c.linked, c.last, c.changed = gr.State(None), gr.State(None), gr.State({}), gr.State("")
        c.mark = gr.Textbox(visible="hidden", elem_id="whence-mark", label="Mark")
        c.address = gr.Textbox(visible="hidden", elem_id="whence-address", label="Address")
        with gr.Row(elem_id="whence-page", equal_height=False):
            with gr.Column(scale=4, min_width=320, elem_id="whence-asking"):
                _asking(c, desk, folder)
            with gr.Column(scale=7, min_width=320, elem_id="whence-result"):
                _result(c)
        _wire(c, Answering(desk, vars(c), folder), page)
    page.queue(default_concurrency_limit=THREADS, max_size=desk.turns.most, api_open=False)
    return page


def _asking(c: Any, desk: Desk, folder: Path) -> None:
    """What is asked: the model, the input, how and for which answers."""
    shelf, first = desk.shelf, desk.shelf.first
    classes = [SAID, *first.labels]
    c.served = gr.State(first.name)  # the model that the page shows
    c.model = gr.Dropdown(list(shelf), value=first.name, label="Model", visible=len(shelf) > 1, elem_id="whence-model")
    c.text = gr.Textbox(
        label="Text", lines=3, max_lines=12, value=(first.texts or ("",))[0], visible=first.reads_text,
        placeholder="Write or paste a text", elem_id="whence-text",
    )  # fmt: skip
    c.image = Picture(
        label="Picture", type="filepath", sources=["upload", "clipboard"], visible=first.reads_picture, height=240,
        elem_id="whence-image", buttons=[], value=next((first.lend(name, folder) for name in first.pictures), None),
    )  # fmt: skip
    c.explain = gr.Button("Explain", variant="primary", elem_id="whence-explain")
    c.cancel = gr.Button("Cancel", visible=False, elem_id="whence-cancel")
    c.status = gr.HTML("", elem_id="whence-status", **PLAIN)
    c.examples = gr.HTML(html_fragments.examples(first), elem_id="whence-examples", js_on_load=ASKING, **PLAIN)
    c.methods = gr.Dropdown(
        list(all_methods()), value=[DEFAULT], multiselect=True, max_choices=desk.limits.methods, label="Methods",
        elem_id="whence-methods",
    )  # fmt: skip
    c.words = gr.HTML(html_fragments.method_words([DEFAULT]), elem_id="whence-words", **PLAIN)
    with gr.Row(visible=bool(first.labels)) as c.targets:
        c.target = gr.Dropdown(classes, value=SAID, label="Answer to explain", min_width=120, elem_id="whence-target")
        c.rival = gr.Dropdown(
            [(html_fragments.NONE, ""), *classes], value="", label="Beside it", min_width=120, elem_id="whence-rival"
        )  # fmt: skip
    with gr.Accordion("A second text", open=False, visible=first.reads_text and not first.writes) as c.pair:
        c.second = gr.Textbox(label="For models that compare two texts", lines=2, elem_id="whence-second")


def _result(c: Any) -> None:
    """What is answered, and what can be asked of the answer."""
    c.answer = gr.HTML("", elem_id="whence-answer", **PLAIN)
    c.choice = gr.HTML("", elem_id="whence-choice", js_on_load=ASKING, **PLAIN)
    c.shown = gr.HTML(html_fragments.empty(), elem_id="whence-shown", **PLAIN)
    with gr.Column(visible=False, elem_id="whence-more") as c.more:
        c.which = gr.Dropdown([], label="Look closer at", visible=False, elem_id="whence-which")
        with gr.Tabs():
            with gr.Tab("Trust it?"):
                c.ledger = gr.HTML("", elem_id="whence-ledger", **PLAIN)
                _work(c, "attempt", "Try it against random orders")
                c.trial = gr.HTML("", elem_id="whence-trial", **PLAIN)
            with gr.Tab("Layers"):
                gr.HTML(html_fragments.island(tag("p", LAYERS)), **PLAIN)
                c.layer = gr.Slider(0, 1, value=0, step=1, label="Layer", elem_id="whence-layer", buttons=[])
                c.layered = gr.HTML("", elem_id="whence-layered", **PLAIN)
                c.heads = gr.HTML("", elem_id="whence-heads", **PLAIN)
            with gr.Tab("What if?"):
                gr.HTML(html_fragments.island(tag("p", CHANGE)), **PLAIN)
                _work(c, "flip", "Find the smallest change that flips it")
                c.flipped = gr.HTML("", elem_id="whence-flipped", **PLAIN)
                c.use = gr.Button("Take this text", size="sm", visible=False, elem_id="whence-use")
            with gr.Tab("Save"):
                with gr.Row():
                    for ending, word in FILES.items():
                        setattr(c, f"save_{ending}", gr.Button(word, size="sm", elem_id=f"whence-save-{ending}"))
                c.code = gr.Textbox(
                    label="The same in Python", lines=4, interactive=False, buttons=["copy"], elem_id="whence-code"
                )
                c.link = gr.Textbox(label="A link to it", interactive=False, buttons=["copy"], elem_id="whence-link")
                c.made = gr.JSON(visible=False)


def _work(c: Any, name: str, words: str) -> None:
    """A button that begins something slow, and in its place, while that goes on, one that ends it."""
    setattr(c, name, gr.Button(words, size="sm", elem_id=f"whence-{name}"))
    setattr(c, f"{name}_cancel", gr.Button("Cancel", size="sm", visible=False, elem_id=f"whence-{name}-cancel"))


def _wire(c: Any, told: Answering, page: gr.Blocks) -> None:
    """What happens when."""
    events.api(answering(told.desk), api_name="explain", queue=False)  # first: the name is given to who comes first
    hidden: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    asked = [c.model, c.text, c.second, c.image, c.methods, c.target, c.rival, c.last, c.linked]
    fields = [c.model, c.served, c.text, c.second, c.pair, c.image, c.examples, c.methods, c.targets, c.target, c.rival]
    closer = [c.ledger, c.trial, c.layer, c.layered, c.heads]
    results = [
        c.explain, c.cancel, c.status, c.answer, c.choice, c.shown, c.more, c.which, *closer, c.flipped, c.use, c.code,
        c.mark, c.question, c.last,
    ]  # fmt: skip
    linked: dict[str, Any] = {"fn": None, "inputs": c.mark, "outputs": c.link, "js": LINK}
    page.load(None, None, c.address, js="() => location.hash")  # without one nothing is asked
    arrived = c.address.change(told.arrive, c.address, [*fields, c.status, c.linked], **hidden)
    arrived.then(told.resume, asked, results, **hidden).then(**linked)
    c.model.input(told.model, [c.model, c.served], [*fields, *results], **hidden)
    c.examples.click(told.example, c.model, [c.text, c.image], **hidden)
    c.methods.change(told.methods, c.methods, c.words, **hidden)
    for event in (c.explain.click, c.text.submit):
        event(told.explain, asked, results, **hidden).then(**linked).then(None, None, None, js=SHOW)
    c.text.input(told.follow, asked, results, trigger_mode="always_last", **hidden).then(**linked)
    for button in (c.cancel, c.attempt_cancel, c.flip_cancel):
        button.click(told.cancel, None, None, queue=False, **hidden)
    c.choice.click(told.choose, c.question, results, **hidden).then(**linked)
    c.which.input(told.closer, [c.question, c.which], closer, **hidden)
    c.layer.input(told.layer, [c.question, c.which, c.layer], c.layered, trigger_mode="always_last", **hidden)
    c.attempt.click(told.trial, [c.question, c.which], [c.trial, c.attempt, c.attempt_cancel], **hidden)
    c.flip.click(told.flip, c.question, [c.flipped, c.flip, c.flip_cancel, c.use, c.changed], **hidden)
    taken = c.use.click(lambda text: text, c.changed, c.text, **hidden)
    taken.then(told.explain, asked, results, **hidden).then(**linked)
    for ending in FILES:
        button = getattr(c, f"save_{ending}")
        button.click(told.save(ending), c.question, [c.made, c.status], **hidden).then(None, c.made, None, js=KEEP)


def style() -> str:
    """The page's own style, that of explanations first."""
    from ..render.html.page import style as explanations

    return f"{explanations()}\n{_file('app.css')}"


def head(limits: Limits) -> str:
    """The style, and what makes explanations live: the script of the HTML export, once the page is there."""
    from ..render.html.page import script as explanations

    live = _file("app.js").replace("__UPLOAD__", str(limits.upload)).replace("__SIZE__", limits.upload_size)
    return f"<style>{style()}</style><script>{live.replace('__EXPLANATIONS__', explanations())}</script>"


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
