"""An archive in a clean environment: does it install, import and run?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: what is imported when Whence is, beside the standard library
IMPORTS = """
import sys
import whence
found = {name.partition('.')[0] for name in sys.modules}
print(whence.__version__)
print(*sorted(found & {'transformers', 'PIL', 'matplotlib', 'typer', 'rich', 'pyarrow', 'scipy', 'gradio', 'ray'}))
"""
EXPLAINS = """
import torch, whence
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
e = whence.explain(torch.nn.Sequential(layer, torch.nn.Linear(8, 3)).eval(), torch.randn(2, 5, 8),
                   target=lambda y: y.mean(1)[:, 0])
assert e.scores.shape == (2, 5), e.scores.shape
"""


class Environment:
    """A virtual environment that is deleted in the end.

    Args:
        root: the repository, whose ``constraints.txt`` pins torch.
        folder: an empty directory.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.run(sys.executable, "-m", "venv", str(folder / "venv"))
        self.bin = folder / "venv" / "bin"

    def run(self, *command: str, code: int = 0) -> str:
        """What a command printed; another exit code than expected ends all."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, env=kept)
        if done.returncode != code:
            raise SystemExit(
                f"{' '.join(command)} answered {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done.stdout + done.stderr

    def install(self, *what: str) -> None:
        """Install with the pinned versions."""
        pip = (
            str(self.bin / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        )
        self.run(*pip, "-c", str(self.root / "constraints.txt"), *what)

    def python(self, code: str) -> str:
        """What a program printed."""
        return self.run(str(self.bin / "python"), "-c", code)

    def whence(self, *arguments: str, code: int = 0) -> str:
        """What the command printed."""
        return self.run(str(self.bin / "whence"), *arguments, code=code)


def bare(environment: Environment, archive: Path, version: str) -> None:
    """Without extras: it imports nothing but torch and numpy, explains, and names what its command needs."""
    environment.install(str(archive))
    said, others = environment.python(IMPORTS).split("\n")[:2]
    if said != version or others:
        raise SystemExit(f"{archive.name}: version {said}, and importing it also imports: {others or 'nothing'}.")
    environment.python(EXPLAINS)
    told = environment.whence("--version", code=1)
    if "pip install 'whence[cli]'" not in told:
        raise SystemExit(f"{archive.name}: without extras the command does not name the one it needs, but says: {told}")


def full(environment: Environment, archive: Path, version: str) -> None:
    """With the extras of the demonstration: the command, its version, the report of both shipped models."""
    environment.install(f"{archive}[cli,hf,vision,figures]")
    if version not in environment.whence("--version"):
        raise SystemExit(f"{archive.name}: whence --version does not say {version}.")
    environment.whence("demo", "--no-open", "--out", "report.html")
    size = (environment.folder / "report.html").stat().st_size
    if size < 100_000:
        raise SystemExit(f"{archive.name}: the report of whence demo has only {size:,} bytes.")


def smoke(root: Path, archive: Path, version: str) -> None:
    """All of it, in one environment."""
    with tempfile.TemporaryDirectory(prefix="whence-dist-") as folder:
        environment = Environment(root, Path(folder))
        bare(environment, archive, version)
        full(environment, archive, version)
