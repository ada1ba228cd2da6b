"""docs/licences.md: licences of direct dependencies, from their installed metadata, and of what is shipped.

`make licences` runs it.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Third-party licences

Whence itself is Apache-2.0 and contains no third-party code. This page lists what it installs and ships.
`make licences` makes it from the metadata of what is installed.

## Packages

Direct dependencies, by the extra that asks for them. None is inside the wheel; pip installs them beside it, each under
its own licence. What they need in turn is theirs to list (`pip-licenses`, `make audit`).

| package | asked for by | range | seen | licence by its metadata |
|---|---|---|---|---|
"""
MODELS = (
    (
        "`whence/models/sentiment`, weights and vocabulary",
        "trained for this project by `training/sentiment.py` on SST-2 (Socher et al. 2013, in GLUE) and unlabelled "
        "IMDB sentences (Maas et al. 2011), with a MiniLM-L6 (Apache-2.0) as its teacher",
        "the weights are part of this project, Apache-2.0; both datasets are published for research, without a licence "
        "that speaks of models trained on them. Who needs certainty trains another model",
    ),
    (
        "`whence/models/sentiment/examples.txt`",
        "eight sentences written for this project, four of SST-2 dev",
        "the four: research use",
    ),
    (
        "`whence/models/digits`, weights",
        "trained for this project by `training/digits.py` on MNIST (LeCun et al. 1998)",
        "the weights are part of this project, Apache-2.0; MNIST is CC BY-SA 3.0",
    ),
    ("`whence/models/digits/examples`", "six scenes of MNIST test digits", "CC BY-SA 3.0"),
)
BETWEEN = """
igraph, under the GPL, is needed for `attention-flow` alone. Whence imports it when that method is asked for and works
without it; who must not have it installs the extras one by one, without `flow` and `all`.

## Models and data in the wheel

| what | made from | terms |
|---|---|---|
"""
TAIL = """
Beside the package, in the repository only: `tests/goldens/cases` has outputs of published implementations on random
models and none of their code (`tests/goldens/cases/README.md`); no dataset is in the repository. What `whence.datasets`
reads by name brings its terms along (`whence.datasets.load(name).licence`).
"""
#: where metadata has no SPDX expression, the words of its classifier or its text, shortened
SHORT = (
    (r"^Apache.*", "Apache-2.0"),
    (r"^BSD License$", "BSD"),
    (r"^MIT.*", "MIT"),
    (r"^3-Clause BSD.*", "BSD-3-Clause"),
)


def licence(package: str) -> tuple[str, str]:
    """The version that is installed and its licence, as its metadata says."""
    try:
        found = metadata(package)
    except PackageNotFoundError:
        return "not installed", ""
    expression = (found.get_all("License-Expression") or [""])[0]
    if expression:
        return found["Version"], expression
    classifiers = [c.rpartition(" :: ")[2] for c in found.get_all("Classifier") or [] if c.startswith("License ::")]
    text = (found.get_all("License") or [""])[0].strip().splitlines()
    said = next((c for c in classifiers if c != "OSI Approved"), "") or (text[0] if text else "not said")
    for pattern, short in SHORT:
        said = re.sub(pattern, short, said)
    return found["Version"], said


def rows() -> list[str]:
    """One row a package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"always": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, tuple[list[str], str]] = {}
    for group, lines in groups.items():
        for line in lines:
            name = re.match(r"[\w.-]+", line)
            if name is None or name[0] == "whence":
                continue
            asked, _ = found.setdefault(name[0], ([], re.sub(r"^[\w.-]+(\[\w+\])?", "", line)))
            asked.append(group)
    return [
        f"| {name} | {', '.join(asked)} | `{span}` | {' | '.join(licence(name))} |"
        for name, (asked, span) in sorted(found.items(), key=lambda item: (item[1][0] == ["dev"], item[0].lower()))
    ]


if __name__ == "__main__":
    models = [f"| {' | '.join(row)} |" for row in MODELS]
    (ROOT / "docs" / "licences.md").write_text("\n".join([HEAD + "\n".join(rows()), BETWEEN + "\n".join(models), TAIL]))
