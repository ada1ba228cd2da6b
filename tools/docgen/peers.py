"""The README's table of other libraries: what was measured beside them in ``docs/performance.md``, a row for each."""

from __future__ import annotations

from pathlib import Path

from tools.docgen.page import between

ROOT = Path(__file__).resolve().parents[2]
#: of each library: the method that is compared, on which model, and how the library gets into a model
PEERS = {
    "captum": ("LayerGradientXActivation, all embeddings", "bert", "hooks on the layers that you name"),
    "autolrp": ("epsilon rules", "convnet without biases", "wraps the input, and hooks on the autograd graph"),
    "lxt": ("AttnLRP", "decoder", "replaces functions of the architectures that it has a map for"),
    "zennit": ("Gamma(0.25)", "convnet", "hooks on modules: `+`, `@` and `softmax()` are not seen"),
    "inseq": ("integrated_gradients, 32 steps", "decoder", "loads HuggingFace models itself, hooks through Captum"),
    "transformers-interpret": (
        "SequenceClassificationExplainer, 50 steps",
        "bert",
        "HuggingFace heads, through Captum",
    ),
    "grad-cam": ("HiResCAM, input of the first block", "vit torchvision", "hooks on the layer that you name"),
}
NAMES = {"grad-cam": "pytorch-grad-cam"}
MODELS = {
    "bert": "BERT",
    "convnet": "a convolutional net",
    "convnet without biases": "a convolutional net",
    "decoder": "decoder",
    "vit torchvision": "ViT",
}
HEAD = (
    "| library | how it gets into a model | asked for the same | differs by | time: its, ours, warm | "
    "MiB: its, ours, warm |\n"
    "|---|---|---|---|---|---|"
)
PAPERS = (
    "| the papers' own code | copies of the models, rewritten | as published (`tests/goldens/cases`) | 1e-9 | | |\n"
    "| **Whence** | looks at operations while the model runs | [all methods](docs/methods.md) | | | |"
)


def rows() -> list[dict[str, str]]:
    """The table of performance.md, a dictionary for each row."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split("## Other libraries")[1]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def table() -> str:
    """The README's table."""
    measured = {(row["peer"], row["its method"], row["model"]): row for row in rows()}
    out = [HEAD]
    for peer, (method, model, way) in PEERS.items():
        row = measured.get((peer, method, model))
        if row is None:
            continue
        ours = row["Whence"].strip("`").split("(")[0]
        time, memory = (
            ", ".join(row.get(column, "-") for column in (f"its {what}", f"our {what}", f"our {what}, warm"))
            for what in ("time", "MiB")
        )
        asked = f"`{ours}`, {MODELS[model]}"
        out.append(f"| {NAMES.get(peer, peer)} | {way} | {asked} | {row['largest difference']} | {time} | {memory} |")
    return "\n".join([*out, PAPERS])


def pages() -> dict[Path, str]:
    """The README with its table made anew."""
    path = ROOT / "README.md"
    return {path: between(path.read_text(encoding="utf-8"), "other libraries", table())}
