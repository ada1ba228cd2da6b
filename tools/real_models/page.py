"""``python -m tools.real_models.page``: explain the real models end to end, and write ``docs/real-models.md``.

The snippets below are run in the order of the page, and what they print and save stands beside them.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "real-models.md"

HEAD = """# Real models, end to end

Made by `python -m tools.real_models` (which gets the models from ordinary packages) and `python -m
tools.real_models.page`, not by hand: each snippet was run, and what it printed and saved is below it. `models` is the
directory of the converted models, `recording` eleven seconds of a speech of 1961, `out` the directory of the figures.
"""

SECTIONS = (
    (
        "A language model: SmolLM2-135M-Instruct",
        "Which words of the prompt, and of the text so far, did each generated token come from?",
        """
explainer = whence.Explainer.from_pretrained(models / "smollm2-135m")
g = explainer.generate("The capital of Italy is", max_new_tokens=8, method="attn-lrp")
print(repr(g.text))
for e in g:
    print(repr(e.target_names[0]), [(w.text, round(w.score, 1)) for w in e.top(2)[0]])
g.save(out / "smollm2.png")
""",
        "smollm2.png",
    ),
    (
        "Speech: Whisper-tiny",
        "Which seconds of the recording did each word come from? A frame holds a third of its positive relevance.",
        """
explainer = whence.Explainer.from_pretrained(models / "whisper-tiny")
g = explainer.generate(audio=recording, method="generic-attention")
print(g.text)
for word in g.timed_words()[:6]:
    print(f"{word.text:10} {word.start:.2f} s to {word.end:.2f} s")
g.save(out / "whisper.png")
""",
        "whisper.png",
    ),
    (
        "An encoder-decoder: flan-t5-small, fine-tuned to give titles",
        "Which words of the source did each word of the title come from?",
        """
explainer = whence.Explainer.from_pretrained(models / "flan-t5-small")
text = "fix the login page, which shows a blank screen after the password is reset on mobile phones"
g = explainer.generate(text, max_new_tokens=12, method="generic-attention")
print(g.text)
g.table("encoder").save(out / "title.png")
""",
        "title.png",
    ),
    (
        "A token classifier: DistilBERT that corrects grammar",
        "Which words made it want to change *have*? `token` names the word whose class is explained.",
        """
explainer = whence.Explainer.from_pretrained(models / "grammar")
e = explainer("He have two cat .", token="have")
print(e.prediction_names, [(w.text, round(w.score, 2)) for w in e.top(3)[0]])
e.save(out / "grammar.png")
""",
        "grammar.png",
    ),
    (
        "A protein language model: AntiBERTy",
        "Which residues does it fill in a masked cysteine from? Each is printed with its number.",
        """
explainer = whence.Explainer.from_pretrained(models / "antiberty")
heavy = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
masked = " ".join(heavy[:95]) + " [MASK] " + " ".join(heavy[96:])
e = explainer(masked)
print(e.prediction_names, [(w.text, 1 + masked[: w.start].count(" "), round(w.score, 2)) for w in e.top(5)[0]])
e.save(out / "antibody.png")
""",
        "antibody.png",
    ),
)


def run(code: str, names: dict[str, object]) -> str:
    """Return what a snippet prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue().strip()


def main() -> None:
    """Run all snippets and write the page."""
    import whence

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out = PAGE.parent / PAGE.stem
    out.mkdir(exist_ok=True)
    shared = Path(os.environ.get("WHENCE_SHARED", PROJECT.parent / "shared"))
    names: dict[str, object] = {
        "whence": whence,
        "models": PROJECT / "build" / "models",
        "recording": shared / "data" / "speech_jfk.flac",
        "out": out,
    }
    text = HEAD
    for title, question, code, figure in SECTIONS:
        printed = run(code, names)
        print(f"## {title}\n{printed}\n", flush=True)
        text += f"\n## {title}\n\n{question}\n\n```text\n{code.strip()}\n```\n\n```text\n{printed}\n```\n"
        text += f"\n![{title}]({PAGE.stem}/{figure})\n"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
