"""``python -m tools.mutation``: break the equations one place at a time; write docs/mutation.md."""

from __future__ import annotations

import argparse
import os
import time
from importlib import import_module
from pathlib import Path

from .copy import ROOT, copied
from .equivalent import reasons
from .mutant import Mutant, chosen, mutants
from .record import Record, key
from .report import report
from .suite import AROUND as FILES_AROUND
from .suite import EQUATIONS, suite
from .trial import trial

PACKAGE = ROOT / "src" / "whence"
RULES = tuple(f"propagation/rules/{name}.py" for name in ("linear", "gradient", "relevance", "fused_attention"))
METHODS = tuple(f"methods/{p.name}" for p in sorted((PACKAGE / "methods").glob("*.py")) if p.name != "__init__.py")
AROUND = (
    "propagation/relevance_function.py", "readout/rollup.py", "readout/cross_stream_rollup.py", "tracing/residuals.py",
    "tracing/fused_attention.py", "readout/bias_relevance.py", "readout/head_routes.py", "tracing/attention_record.py",
)  # fmt: skip
#: at most so many mutants of a function, in rules and elsewhere
CAPS = {"rules": 8, "rest": 4}
SEED = 0
#: imported once, before any mutant: what takes long and is not Whence
HEAVY = (
    "torch", "numpy", "pytest", "hypothesis", "transformers", "captum.attr", "scipy.stats", "networkx", "igraph",
    "PIL.Image", *(
        f"transformers.models.{n}.modeling_{n}"
        for n in ("bert", "vit", "gpt2", "llama", "lxmert", "detr", "clip", "t5", "distilbert")
    ),
)  # fmt: skip


def planned(only: list[str]) -> tuple[list[Mutant], list[Mutant]]:
    """The mutants to try, and all that there are."""
    every: list[Mutant] = []
    drawn: list[Mutant] = []
    for module in (*RULES, *AROUND, *METHODS):
        if only and not any(word in module for word in only):
            continue
        found = list(mutants(module, (PACKAGE / module).read_text()))
        every += found
        drawn += chosen(found, CAPS["rules" if module in RULES else "rest"], SEED)
    return drawn, every


def main() -> None:
    """Try what has not been tried, and what survived; then write the report."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("only", nargs="*", help="only modules whose name has one of these words in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutation", help="what was found so far")
    parser.add_argument("--report", action="store_true", help="write the report of what was found so far, and stop")
    arguments = parser.parse_args()
    record = Record(arguments.out)
    drawn, every = planned(arguments.only)
    known = reasons(every) if not arguments.only else reasons()
    if not arguments.report:
        attempt(drawn, known, record, arguments.jobs, arguments.out)
    if not arguments.only:
        text = report(
            drawn,
            len(every),
            record.verdicts(),
            known,
            {"caps": CAPS, "seed": SEED, "files": (EQUATIONS, FILES_AROUND)},
        )
        (ROOT / "docs" / "mutation.md").write_text(text)


def attempt(drawn: list[Mutant], known: dict[str, str], record: Record, jobs: int, out: Path) -> None:
    """Put on trial every mutant that no test is known to kill, in several processes."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    for name in HEAVY:
        import_module(name)
    verdicts = record.verdicts()
    left = [m for m in drawn if m.name not in known and not (key(m) in verdicts and verdicts[key(m)].killed)]
    print(f"{len(drawn)} mutants, {len(left)} to be tried", flush=True)
    with copied() as copy:
        of_rules = all(m.module in RULES for m in left)
        watched = suite(copy, out, jobs, EQUATIONS if of_rules else (*EQUATIONS, *FILES_AROUND))
    children = []
    for worker in range(min(jobs, len(left))):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with copied() as copy:
                    for mutant in left[worker::jobs]:
                        verdict = trial(copy, watched, mutant)
                        record.add(mutant, verdict, time.time(), worker)
                        print(f"{verdict.how:16s} {verdict.seconds:5.1f} s  {mutant.line:4d} {mutant.name}", flush=True)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit("A process of the trials ended early: see above, and run the command again to go on.")


if __name__ == "__main__":
    main()
