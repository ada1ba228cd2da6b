"""The tools around a release: versions that agree, archives without surprises, mutants that are what they say."""

from __future__ import annotations

import ast
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.mutation.changes import changes
from tools.mutation.mutant import chosen, mutants
from tools.release.archive import NEEDED, faults, members
from tools.release.version import changes as versions
from tools.release.version import disagreements, written

ROOT = Path(__file__).resolve().parents[3]


def test_version_and_changelog_agree_in_this_checkout():
    assert disagreements(written(ROOT), [], versions(ROOT)) == []


@pytest.mark.parametrize(
    ("tags", "listed", "said"),
    [
        (["v1.2.3"], [("1.2.3", "2026-01-31")], []),
        ([], [("1.2.3", "unreleased"), ("1.2.2", "2026-01-30")], []),
        (["v1.2.4"], [("1.2.3", "2026-01-31")], ["tagged v1.2.4"]),
        (["v1.2.3"], [("1.2.3", "unreleased")], ["in place of a date"]),
        ([], [("1.2.2", "2026-01-31")], ["begins with 1.2.2"]),
        ([], [], ["begins with nothing"]),
        ([], [("1.2.3", "2026-01-31"), ("1.2.2", "unreleased")], ["earlier version without a date"]),
    ],
)
def test_a_version_that_does_not_agree_is_named(tags, listed, said):
    found = disagreements("1.2.3", tags, listed)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


def wheel(path, names):
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "x")
    return path


def test_what_a_wheel_lacks_or_should_not_have_is_named(tmp_path):
    assert faults(wheel(tmp_path / "good.whl", NEEDED)) == []
    assert faults(wheel(tmp_path / "poor.whl", NEEDED[1:])) == [f"poor.whl lacks {NEEDED[0]}."]
    assert faults(wheel(tmp_path / "rich.whl", [*NEEDED, "tests/goldens/cases/a.npz"])) == [
        "rich.whl has tests/goldens/cases/a.npz."
    ]


def test_an_sdist_is_read_without_its_first_folder(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as file:
        info = tarfile.TarInfo("whence-1.2.3/src/whence/__init__.py")
        info.size = 3
        file.addfile(info, io.BytesIO(b"abc"))
    assert members(tmp_path / "a.tar.gz") == {"whence/__init__.py": 3}


# -- mutants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a - b", {"a + b", "a", "-b", "b - a"}),
        ("a * b", {"a / b", "a", "b"}),
        ("a @ b", {"b @ a"}),
        ("x.detach()", {"x"}),
        ("-x", {"x"}),
        ("a < b", {"a <= b", "a > b"}),
        ("a is None", {"a is not None"}),
        ("a and b", {"a or b"}),
        ("-1", {"-2"}),
        ("0.5", {"1.0"}),
        ("True", {"False"}),
        ("torch.where(c, a, b)", {"torch.where(c, b, a)"}),
        ("x.amax(1)", {"x.amin(1)"}),
        ("f(x)", set()),
    ],
)
def test_slips_of_an_expression(before, after):
    assert {ast.unparse(new) for _, new in changes(ast.parse(before, mode="eval").body)} == after


SOURCE = '''
LIMIT = 3


def rule(x, eps: float = 0.5):
    """A docstring - with a minus."""
    if x is None:
        raise ValueError(f"{1 + 1} is left alone")
    return (x - eps).abs()
'''


def test_mutants_change_one_place_and_nothing_that_is_no_equation():
    found = list(mutants("rule.py", SOURCE))
    assert {(m.before, m.after) for m in found} == {
        ("0.5", "1.0"), ("x is None", "x is not None"), ("(x - eps).abs()", "x - eps"),
        ("x - eps", "x + eps"), ("x - eps", "x"), ("x - eps", "-eps"), ("x - eps", "eps - x"),
    }  # fmt: skip
    for mutant in found:
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(SOURCE))
        assert mutant.source.count("\n") == SOURCE.count("\n")
        assert mutant.function == "rule"


def test_a_few_of_each_function_are_drawn_the_same_each_time():
    found = list(mutants("rule.py", SOURCE))
    assert chosen(found, 3, 0) == chosen(found, 3, 0)
    assert len(chosen(found, 3, 0)) == 3
    assert len(chosen(found, 0, 0)) == len(found)
