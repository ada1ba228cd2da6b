"""The package: what it needs, and what it says of its methods."""

from __future__ import annotations

import subprocess
import sys

import whence
from tests.support.goldens import ROOT


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
    listed = whence.list_methods()
    assert {"conservative-lrp", "generic-attention", "gradient-x-input", "transformer-attribution"} <= set(listed)
    for name, method in listed.items():
        assert method.name == name
        assert method.paper
        assert method.__doc__


def test_the_list_of_methods_can_be_read():
    listed = whence.list_methods()
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
    assert repr(whence.list_methods()) == whence.list_methods().table()
    monkeypatch.setenv("COLUMNS", "70")
    assert str(whence.list_methods()) == whence.list_methods().table(70)
    assert whence.list_methods() == dict(whence.list_methods())


def test_every_form_of_lrp_is_marked_as_one():
    """By its name, or by rules of LRP in its rulebook; the page that says what that means names them all."""
    marked = {name for name, method in whence.list_methods().items() if method.lrp}
    assert {name for name in whence.list_methods() if "lrp" in name} <= marked
    assert marked >= {"transformer-attribution", "libragrad", "dave"}
    told = (ROOT / "docs" / "legal.md").read_text()
    assert all(f"`{name}`" in told for name in marked)
