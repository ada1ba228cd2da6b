"""The documentation says what is so: pages for all methods and errors, current numbers, a walk that succeeds."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import whence
from tools.docgen import methods, overhead, peers, rooms
from tools.docgen.page import between
from tools.docgen.snippets import everything, same
from whence import errors

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
ROWS = whence.list_methods().rows()
ERRORS = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception | Warning)]
SECTIONS = ("Equations", "Options", "Cost", "When to use it, and when not", "Example")


def page_of(row) -> str:
    return (DOCS / "methods" / f"{row['name']}.md").read_text()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_methods_page_has_its_equations_cost_and_use(row):
    text = page_of(row)
    missing = [name for name in SECTIONS if f"\n## {name}\n" not in text]
    assert not missing
    assert re.search(r"## Equations\n\n(?:(?!##).*\n)*?    \S", text), "no equation stands under Equations"
    assert "**Use it**" in text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_methods_page_names_every_option_with_its_default(row):
    options = page_of(row).split("## Options")[1].split("\n## ")[0]
    for name, default in row["options"].items():
        line = next((line for line in options.splitlines() if line.startswith("|") and f"`{name}`" in line), "")
        assert line, f"no row for {name}"
        said = re.findall(r"`([^`]*)`", line.split("|")[2])
        assert default in [ast.literal_eval(text) for text in said], f"{name}: {said}"


def test_the_facts_on_the_methods_pages_are_current():
    cost = methods.costs()
    old = [
        row["name"]
        for row in ROWS
        if between(page_of(row), "facts", methods.facts(row, cost.get(row["name"], {}))) != page_of(row)
    ]
    assert not old, "run `python -m tools.docgen`"


def test_costs_are_read_from_the_tables_of_performance():
    cost = methods.costs()
    assert set(cost["conservative-lrp"]) - {"tiny BERT"} == {"ViT-B/16", "BERT-base", "decoder, 1,024 tokens"}
    every = [one for found in cost.values() for one in found.values()]
    assert all(0.3 < float(one.time) < 2000 and float(one.memory or 1) > 0 for one in every)
    assert len(every) > 50


def test_every_method_is_in_the_list():
    listed = (DOCS / "methods.md").read_text()
    assert [row["name"] for row in ROWS if f"](methods/{row['name']}.md)" not in listed] == []


@pytest.mark.parametrize("made", [peers.pages, overhead.pages])
def test_tables_of_measurements_are_current(made):
    assert all(path.read_text() == text for path, text in made().items()), "run `python -m tools.docgen`"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_page_with_an_example_that_raises_it(error):
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", error.__name__).lower()
    text = (DOCS / "errors" / f"{name}.md").read_text()
    assert f"\n    {error.__name__}: " in text  # what an example prints, and test_docs.py runs
    assert f"](errors/{name}.md)" in (DOCS / "errors.md").read_text()


def test_the_reference_has_all_that_is_public():
    pages = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    assert [name for name in whence.__all__ if f"heading: whence.{name}\n" not in pages] == []
    for path in re.findall(r"^::: (\S+)\n", pages, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert getattr(__import__(module, fromlist=[name]), name)


def test_the_rooms_are_those_of_the_import_contract():
    for path, text in rooms.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run python -m tools.docgen"


def test_the_walks_name_files_and_functions_that_are_there():
    """Each row names a file, in its room, and often a function or class in it; files of the same room stand alone."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("|")]
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r"`((?:\w+/)*\w+\.py)`(?: `([\w.]+)`)?", row)
        room = next((Path(file).parent for file, _ in named if "/" in file), Path())
        for file, name in named:
            path = ROOT / "src" / "whence" / (file if "/" in file else room / file)
            assert path.exists(), file
            assert all(re.search(rf"\b(def|class) {part}\b", path.read_text()) for part in name.split(".") if part), row


def test_every_room_says_what_it_holds():
    assert [room for layer in rooms.layers() for room in layer if not rooms.holds(room)] == []


def test_links_of_the_pages_lead_somewhere():
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_links_out_of_docs_are_pages_of_the_site():
    hooks = pytest.importorskip("tools.docgen.hooks", reason="mkdocs is not installed")
    assert hooks.moved("../CONTRIBUTING.md", "docs/adding-a-method.md", "adding-a-method.md") == "contributing.md"
    assert hooks.moved("../../LICENSE", "docs/methods/lrp.md", "methods/lrp.md") == "../LICENSE.txt"
    assert hooks.moved("docs/methods.md", "README.md", "index.md") == "methods.md"
    assert hooks.moved("notebooks/text.ipynb", "docs/quickstart.md", "quickstart.md") == "notebooks/text.md"
    assert hooks.moved("nothing/here.md", "README.md", "index.md") == "nothing/here.md"  # a strict build names it
    assert hooks.moved("pyproject.toml", "README.md", "index.md") is None


@pytest.mark.parametrize(
    "html", ['<script src="https://a.example/x.js">', '<link rel="stylesheet" href="//a.example/x.css">']
)
def test_a_page_that_loads_something_from_elsewhere_is_refused(html):
    hooks = pytest.importorskip("tools.docgen.hooks", reason="mkdocs is not installed")
    with pytest.raises(hooks.PluginError, match="from elsewhere"):
        hooks.on_post_page(html, page=type("Page", (), {"file": type("File", (), {"src_uri": "a.md"})}))


def shown(cell) -> list:
    """What a cell of a notebook shows: texts, and of pictures that there is one."""
    return ["".join(o["text"]) if "text" in o else sorted(o["data"]) for o in cell.get("outputs", [])]


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path):
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    from tools.docgen.notebook import executed

    for was, now in zip(json.loads(path.read_text())["cells"], executed(path).cells, strict=True):
        old, new = shown(was), shown(now)
        assert len(old) == len(new)
        assert all(same(a, b) if isinstance(a, str) else a == b for a, b in zip(old, new, strict=True)), new
    assert path.stat().st_size < 200_000


def test_the_walk_sees_commands_and_what_they_print(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Do\n\n    whence methods\n    make demo  # why\n\n```text\ndone\n```\n\n```python\nprint(1)\n```\n\n    1\n"
    )
    found = [(snippet.code.strip(), snippet.shown.strip(), snippet.python) for snippet in everything(page)]
    assert found == [("whence methods", "", False), ("make demo  # why", "done", False), ("print(1)", "1", True)]


def test_the_walk_says_what_is_not_as_shown(tmp_path, capsys):
    from tools.docgen.walk import walk

    page = tmp_path / "page.md"
    page.write_text("Do\n\n    make demo\n\n```python\nprint(1)\n```\n\n    2\n\n```python\n1 / 0\n```\n")
    wrong = walk((page,))
    assert wrong == [
        "page.md: print(1): prints '1', shown is '2'",
        "page.md: 1 / 0: ZeroDivisionError: division by zero",
    ]
    assert "left out  make demo" in capsys.readouterr().out


def test_a_stranger_who_follows_readme_and_quickstart_sees_what_they_show():
    from tools.docgen.walk import walk

    assert walk() == []
