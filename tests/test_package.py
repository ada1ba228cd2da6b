"""The package: what it needs, what it costs to import, and which module may know which."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import whence

SOURCE = Path(whence.__file__).parent

#: from the ground up: a module imports only what stands before it
ORDER = [
    "errors", "options", "plain", "extras", "raster", "settings", "fingerprint", "progress", "magnitudes", "einsum",
    "collector", "axes", "padding", "layout", "node", "steps", "custom", "fused", "undisturbed", "checkpoints", "call",
    "rows", "head", "residuals", "coverage", "operations", "learned", "kinds", "attention", "propagate", "ledger",
    "trace", "target", "detectors", "scalars", "diagnosis", "heads", "boundary", "elsewhere",
    "run", "inside", "together", "maps",
    "locality", "streams", "blocks", "routes", "biases", "rollup", "relations", "rules", "rules.linear",
    "rules.gradient", "rules.relevance", "rules.attention", "methods", "words", "origin", "view", "files", "render",
    "table", "store", "arithmetic", "result", "sound", "tables", "views", "explanation", "arguments", "switch",
    "assemble", "explain", "vocabulary", "inputs", "chat", "writing", "generation", "mapping", "answers",
    "pretrained", "explainer", "windows", "data", "evaluation", "check", "counterfactual", "localisation", "jobs",
    "templates", "probe", "demo", "app", "cli", "__main__",
]  # fmt: skip


TOGETHER = ("methods", "render", "inputs", "data", "evaluation", "jobs", "counterfactual", "localisation", "app", "cli")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            package = path.relative_to(SOURCE).parts[: len(path.relative_to(SOURCE).parts) - node.level]
            base = [*package, *(node.module or "").split(".")]
            found |= (
                {".".join(p for p in base if p)} if node.module else {".".join([*package, a.name]) for a in node.names}
            )
    return {name for name in found if name}


def family(name: str) -> str:
    """Methods, renderers, kinds of input, datasets, measures and commands stand together."""
    return name.split(".")[0] if name.split(".")[0] in TOGETHER else name


def test_arrows_point_one_way():
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if name == "__init__":
            continue
        place = family(name)
        for other in map(family, imports(path)):
            assert ORDER.index(other) <= ORDER.index(place), f"{name} imports {other}"


def test_files_are_one_noun_long():
    assert {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400} == {}


def test_importing_whence_needs_only_torch_and_numpy():
    code = """
import sys, torch, numpy
before = set(sys.modules)
import whence
new = {m.split('.')[0] for m in set(sys.modules) - before}
print(sorted(new - {'whence', 'torch', 'numpy'} - set(sys.stdlib_module_names)))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_methods_are_listed_with_what_they_are():
    listed = whence.methods()
    assert {"conservative-lrp", "generic-attention", "gradient-x-input", "transformer-attribution"} <= set(listed)
    for name, method in listed.items():
        assert method.name == name
        assert method.paper
        assert method.__doc__


def test_the_list_of_methods_can_be_read():
    listed = whence.methods()
    wide, narrow = listed.table(), listed.table(80)
    assert len(wide.splitlines()) == 1 + len(listed)
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.splitlines()[0].split() == wide.splitlines()[0].split()[:6]
    for name, method in listed.items():
        cost = [str(method.forwards), str(method.backwards)]
        marks = ["yes" if mark else "no" for mark in (method.class_specific, method.conservative, method.lrp)]
        line = next(line for line in wide.splitlines() if line.startswith(f"{name} "))
        assert line.split() == [name, *marks, *" ".join(cost).split(), *method.needs.split(), *method.paper.split()]
        assert " ".join([name, *marks, *cost, "needs", method.needs + ";", method.paper]) in " ".join(narrow.split())


def test_the_list_of_methods_is_made_for_the_terminal_it_is_printed_on(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert repr(whence.methods()) == whence.methods().table()
    monkeypatch.setenv("COLUMNS", "70")
    assert str(whence.methods()) == whence.methods().table(70)
    assert whence.methods() == dict(whence.methods())


def test_every_form_of_lrp_is_marked_as_one():
    """By its name, or by rules of LRP in its rulebook; the page that says what that means names them all."""
    marked = {name for name, method in whence.methods().items() if method.lrp}
    assert {name for name in whence.methods() if "lrp" in name} <= marked
    assert marked >= {"transformer-attribution", "libragrad", "dave"}
    told = (Path(__file__).parent.parent / "docs" / "legal.md").read_text()
    assert all(f"`{name}`" in told for name in marked)
