"""One combination of versions: an environment of its own, and the tests run in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: torch and transformers: the oldest that pyproject.toml allows, what constraints.txt pins, the newest to be had
CHOICES = (("oldest", "oldest"), ("pinned", "oldest"), ("pinned", "pinned"), ("newest", "newest"))
EXTRAS = "hf,vision,audio,figures,flow,captum,cli,data,evaluation"
TOOLS = ("pytest>=8", "hypothesis>=6.100", "networkx>=3")
#: two minutes: rules, published numbers of every golden case, the trace, files, inputs
TESTS = (
    "unit/propagation/test_rules.py",
    "unit/propagation/test_gradient_rules.py",
    "goldens/test_rules.py",
    "goldens/test_float32.py",
    "goldens/test_attnlrp.py",
    "unit/propagation/test_fused_attention.py",
    "unit/runs/test_batched_targets.py",
    "unit/tracing/test_axes.py",
    "unit/tracing/test_tracer.py",
    "unit/results/test_serialization.py",
    "unit/explainer/test_explainer.py",
    "unit/test_security.py",
    "unit/test_package.py",
)


@dataclass(frozen=True)
class Found:
    """How a cell ended.

    Attributes:
        name: ``3.11, pinned torch, oldest transformers``.
        versions: what was installed, by package.
        passed, failed: how many tests did.
        seconds: how long they took.
        why: why there is no result, or the first lines of what failed.
    """

    name: str
    versions: dict[str, str]
    passed: int
    failed: int
    seconds: float
    why: str

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Cell:
    """Which versions.

    Attributes:
        python: ``3.11``.
        torch: ``oldest``, ``pinned`` or ``newest``.
        transformers: likewise.
    """

    python: str
    torch: str
    transformers: str

    @property
    def key(self) -> str:
        """Short, for files and the command line."""
        return f"{self.python}-{self.torch}-{self.transformers}"

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.python}, {self.torch} torch, {self.transformers} transformers"

    def run(self, venv: Path) -> Found:
        """Make the environment, run the tests in it, and delete it."""
        interpreter = find(self.python)
        if interpreter is None:
            return self._without(f"there is no Python {self.python} on this machine")
        try:
            _run([interpreter, "-m", "venv", str(venv)])
            python = str(venv / "bin" / "python")
            wanted = [requirement("torch", self.torch), requirement("transformers", self.transformers)]
            install = [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-compile",
                "--upgrade",
            ]
            _run([*install, *wanted, *TOOLS, f"{ROOT}[{EXTRAS}]"])
            return self._tested(python)
        except subprocess.CalledProcessError as error:
            return self._without(_last_error(error.output))
        finally:
            shutil.rmtree(venv, ignore_errors=True)

    def _tested(self, python: str) -> Found:
        versions = {name: _version(python, name) for name in ("torch", "transformers", "numpy")}
        versions["python"] = _run([python, "-c", "import platform; print(platform.python_version())"]).strip()
        begin = time.monotonic()
        files = [f"tests/{name}" for name in TESTS]
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "--tb=line", *files]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=_environment())
        passed, failed = (sum(map(int, re.findall(rf"(\d+) {w}", done.stdout))) for w in ("passed", "(?:failed|error)"))
        failures = "\n".join(re.findall(r"^(?:FAILED|ERROR|E  ) .*$", done.stdout, re.M))
        why = "" if done.returncode == 0 else failures or done.stdout[-1500:] + done.stderr[-500:]
        return Found(self.name, versions, passed, failed, time.monotonic() - begin, why)

    def _without(self, why: str) -> Found:
        return Found(self.name, {}, 0, 0, 0.0, why)


def cells() -> list[Cell]:
    """All of them."""
    return [Cell(python, *choice) for python in PYTHONS for choice in CHOICES]


def find(version: str) -> str | None:
    """An interpreter of a version that works, from the path or pyenv."""
    candidates = [shutil.which(f"python{version}") or ""]
    candidates += [str(p) for p in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for candidate in filter(None, candidates):
        asked = subprocess.run([candidate, "-m", "venv", "-h"], capture_output=True, check=False)
        if asked.returncode == 0:
            return candidate
    return None


def requirement(package: str, which: str) -> str:
    """What pip is asked for."""
    if which == "newest":
        return package
    if which == "pinned":
        pins = re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
        assert pins, f"constraints.txt does not pin {package}"
        return f"{package}=={pins[1]}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["hf"]]
    oldest = next(m[1] for line in lines if (m := re.fullmatch(rf"{package}>=([\d.]+),.*", line)))
    return f"{package}=={oldest}.*"


def _version(python: str, package: str) -> str:
    return _run([python, "-c", f"from importlib.metadata import version; print(version({package!r}))"]).strip()


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment()
    )
    return done.stdout


def _environment() -> dict[str, str]:
    """Without what would let the package be found elsewhere than in the environment."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return {**kept, "OMP_NUM_THREADS": "1"}


def _last_error(output: str | None) -> str:
    lines = [line for line in (output or "").splitlines() if line.startswith("ERROR")]
    return lines[-1].removeprefix("ERROR: ") if lines else (output or "").strip()[-300:]
