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
    "errors", "extras", "magnitudes", "axes", "node", "call", "coverage", "operations", "kinds", "attention",
    "propagate", "ledger", "trace", "target", "diagnosis", "run", "streams", "rollup", "rules", "rules.gradient",
    "rules.relevance", "methods", "words", "origin", "view", "render", "files", "store", "arithmetic", "result",
    "views", "explanation", "explain", "inputs", "mapping", "answers", "pretrained", "progress", "explainer", "check",
    "demo", "cli", "__main__",
]  # fmt: skip


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
    """Methods, renderers and kinds of input stand together."""
    return name.split(".")[0] if name.split(".")[0] in ("methods", "render", "inputs") else name


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
import sys, time, torch, numpy
before = set(sys.modules)
start = time.perf_counter()
import whence
spent = time.perf_counter() - start
new = {m.split('.')[0] for m in set(sys.modules) - before}
print(sorted(new - {'whence', 'torch', 'numpy'} - set(sys.stdlib_module_names)), spent)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules, spent = out.rsplit("]", 1)
    assert modules == "["
    assert float(spent) < 0.5


def test_methods_are_listed_with_what_they_are():
    listed = whence.methods()
    assert {"conservative-lrp", "generic-attention", "gradient-x-input", "transformer-attribution"} <= set(listed)
    for name, method in listed.items():
        assert method.name == name
        assert method.paper
        assert method.__doc__
