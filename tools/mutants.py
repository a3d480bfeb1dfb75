"""Mutation score: change the library in one place at a time and count how often the tests notice.

    python tools/mutants.py                    a sample of each module (fixed seed)
    python tools/mutants.py --module phi       one module; may be repeated
    python tools/mutants.py --all              every mutant, which takes hours

The mutations come from Cosmic Ray: binary, unary and comparison operators, `and`/`or`, True/False, negated
conditions, and every number plus and minus one (which covers indices). Its own runner starts one pytest for each
mutant, most of whose time goes to importing JAX and PyTorch, so the runner is here: a worker imports the libraries
once, and each mutant is a fork of it that runs the module's test file on a private copy of the checkout, until the
first failure. (mutmut was the alternative. It mutates function bodies only, so tables and records escape it, and it
floods a numerical library with changed strings and dropped arguments.)

Each worker first runs the unchanged copy, which must pass, and a copy whose module raises, which must fail.

Not mutated, since no test of values can or should notice:

- docstrings, annotations, `__all__`, f-strings and the statements that make an error's text (`msg = ...`, `raise`);
- decorators, imports, the `/` and `*` of a signature;
- `strict=` of zip (it only guards), `copy=` of astype and `prevent_cse=` (they only cost time).

Nothing else is excluded: a mutant that equals the original in value (a threshold between two formulas that agree
there, say) counts as a survivor. Needs os.fork, so Linux or macOS. Exit status 1 if one of the modules in REQUIRED
is under THRESHOLD.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

MODULES = {
    "phi": ["phi.py"],
    "schedules": ["schedules.py"],
    "logsumexp": ["logsumexp.py"],
    "paths": ["paths.py", "_quadrature.py"],
    "solvers": ["solvers.py", "_tables.py"],
    "grids": ["grids.py"],
    "oracles": ["oracles.py"],
    "convergence": ["convergence.py"],
}
"""Module -> files in diffnum/ that its tests answer for."""

REQUIRED = ("phi", "schedules", "logsumexp", "paths", "solvers")
THRESHOLD = 0.90
SAMPLE = {True: 100, False: 50}
"""Mutants tried of a required module, and of another one."""

PRELOAD = (
    "numpy",
    "numpy.random",
    "scipy.special",
    "scipy.integrate",
    "scipy.optimize",
    "scipy.stats",
    "array_api_compat",
    "array_api_compat.numpy",
    "array_api_strict",
    "mpmath",
    "sklearn.datasets",
    "hypothesis.extra.numpy",
    "torch",
    "jax.numpy",
    "pytest",
)
"""Imported once in each worker; a fork has them. Never diffnum itself, nor anything that starts threads."""

PAIRS = [
    ("BinaryOperator", "Add Sub"),
    ("BinaryOperator", "Sub Add"),
    ("BinaryOperator", "Mul Div"),
    ("BinaryOperator", "Div Mul"),
    ("BinaryOperator", "Pow Mul"),
    ("BinaryOperator", "FloorDiv Mul"),
    ("BinaryOperator", "Mod Mul"),
    ("BinaryOperator", "BitAnd BitOr"),
    ("BinaryOperator", "BitOr BitAnd"),
    ("UnaryOperator", "USub UAdd"),
    ("UnaryOperator", "Delete Not"),
    ("UnaryOperator", "Delete Invert"),
    ("ComparisonOperator", "Eq NotEq"),
    ("ComparisonOperator", "NotEq Eq"),
    ("ComparisonOperator", "Lt LtE"),
    ("ComparisonOperator", "LtE Lt"),
    ("ComparisonOperator", "Gt GtE"),
    ("ComparisonOperator", "GtE Gt"),
    ("ComparisonOperator", "Lt GtE"),
    ("ComparisonOperator", "LtE Gt"),
    ("ComparisonOperator", "Gt LtE"),
    ("ComparisonOperator", "GtE Lt"),
    ("ComparisonOperator", "Is IsNot"),
    ("ComparisonOperator", "IsNot Is"),
]
OPERATORS = [f"core/Replace{kind}_{pair.replace(' ', '_')}" for kind, pair in PAIRS] + [
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/AddNot",
    "core/NumberReplacer",
]
AUGMENTED = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="}
"""Cosmic Ray leaves augmented assignments alone."""

QUIET_KEYWORDS = {"strict", "copy", "prevent_cse"}
IGNORED = shutil.ignore_patterns(
    ".*", "_build", "_static", "dist", "build", "__pycache__", "*.egg-info", "node_modules", "shared"
)

# -- which changes -----------------------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """Where a file of diffnum/ is changed: occurrence number `occurrence` of what `operator` can change."""

    file: str
    line: int
    operator: str
    occurrence: int


def spared(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Spans, as ((line, column), (line, column)), in which nothing is mutated."""
    nodes: list[Any] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr):
            nodes.append(node)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id in {"msg", "__all__"} for t in targets):
                nodes.append(node)
            if isinstance(node, ast.AnnAssign):
                nodes.append(node.annotation)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            nodes.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            nodes.extend(node.decorator_list)
            if not isinstance(node, ast.ClassDef):
                nodes.append(node.returns)
        elif isinstance(node, ast.arg):
            nodes.append(node.annotation)
        elif isinstance(node, ast.keyword) and node.arg in QUIET_KEYWORDS:
            nodes.append(node.value)
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in nodes if n is not None]


def operators() -> dict[str, Any]:
    """Name -> mutation operator, all with the interface of Cosmic Ray."""
    from cosmic_ray.operators.operator import Operator
    from cosmic_ray.plugins import get_operator

    class Augmented(Operator):
        def mutation_positions(self, node):
            if node.type == "operator" and node.value in AUGMENTED:
                yield (node.start_pos, node.end_pos)

        def mutate(self, node, index):
            node.value = AUGMENTED[node.value]
            return node

        @classmethod
        def examples(cls):
            return ()

    return {name.removeprefix("core/"): get_operator(name)() for name in OPERATORS} | {"Augmented": Augmented()}


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    from cosmic_ray.ast import ast_nodes, get_ast

    spans = spared(source)
    lines = source.splitlines()
    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name, operator in operators().items():
        places = [(node, place) for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (node, ((line, column), _)) in enumerate(places):
            # ast counts columns in bytes, parso in characters
            place = (line, len(lines[line - 1][:column].encode()))
            # a negated comparison is the opposite comparison, and a star or slash of a signature is no operator
            repeated = name == "AddNot" and node.children[2 * (node.type == "test") + (node.type != "test")].type in {
                "comparison",
                "not_test",
            }
            signature = node.type == "operator" and node.parent.type in {"parameters", "param"}
            if not (repeated or signature or any(start <= place < end for start, end in spans)):
                found.append(Mutant(file, line, name, occurrence))
    return sorted(found, key=lambda m: (m.line, m.operator, m.occurrence))


def apply(mutant: Mutant, source: str) -> str:
    """The changed file."""
    from cosmic_ray.mutating import mutate_code

    changed = mutate_code(source, operators()[mutant.operator], mutant.occurrence)
    if changed is None or changed == source:
        msg = f"no change: {mutant}"
        raise ValueError(msg)
    ast.parse(changed)
    return changed


def change(before: str, after: str) -> str:
    """The lines that differ, as a diff without its head."""
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in diff if not line.startswith(("---", "+++", "@@")))


# -- one worker --------------------------------------------------------------------------------------------------------


@dataclass
class Baseline:
    """What the unchanged module's tests did in this worker."""

    seconds: float
    durations: dict[str, float]
    kills: Counter
    problem: str = ""


class Outcome(NamedTuple):
    """What the tests said: "killed", "timeout", "survived" or "error"."""

    module: str
    mutant: Mutant
    verdict: str
    test: str
    change: str


COPY = Path()
BASELINES: dict[str, Baseline] = {}
FOLDER: tempfile.TemporaryDirectory | None = None


def start_worker(snapshot: str) -> None:
    """Import the libraries and make this worker's copy of the checkout."""
    global COPY, FOLDER  # noqa: PLW0603  a worker process is this module's state
    import importlib

    sys.dont_write_bytecode = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PRELOAD:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    from hypothesis import settings

    # the same examples for every mutant, none remembered
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    settings.load_profile("mutants")
    FOLDER = tempfile.TemporaryDirectory(prefix="mutants-")
    COPY = Path(FOLDER.name) / "checkout"
    shutil.copytree(snapshot, COPY)


def attempt(task: tuple[str, Mutant]) -> Outcome:
    """Run a module's tests on one mutant."""
    module, mutant = task
    changed = ""
    try:
        if module not in BASELINES:
            BASELINES[module] = measure(module)
        base = BASELINES[module]
        if base.problem:
            return Outcome(module, mutant, "error", base.problem, "")
        source = (COPY / "diffnum" / mutant.file).read_text(encoding="utf-8")
        altered = apply(mutant, source)
        changed = change(source, altered)
        code, tests, _ = run_tests(module, mutant.file, altered, base)
    except Exception:  # noqa: BLE001  the pool would lose the mutant's name
        return Outcome(module, mutant, "error", traceback.format_exc(), changed)
    if code == 0:
        return Outcome(module, mutant, "survived", "", changed)
    if code is None:
        return Outcome(module, mutant, "timeout", "", changed)
    if code == 5:
        return Outcome(module, mutant, "error", "no test ran", changed)
    failed = next((name for name, (failed, _) in tests.items() if failed), "")
    base.kills[failed] += 1
    return Outcome(module, mutant, "killed", failed or "at import", changed)


def measure(module: str) -> Baseline:
    """Run the tests on the unchanged copy and on one that cannot be imported."""
    base = Baseline(math.inf, {}, Counter())
    file = MODULES[module][0]
    source = (COPY / "diffnum" / file).read_text(encoding="utf-8")
    code, tests, seconds = run_tests(module, file, source, base)
    base.seconds, base.durations = seconds, {name: duration for name, (_, duration) in tests.items()}
    if code != 0:
        failed = [name for name, (failed, _) in tests.items() if failed]
        base.problem = f"the unchanged module fails its tests (pytest exit status {code}): {failed}\n{log_tail()}"
    elif run_tests(module, file, f"{source}\nraise RuntimeError('canary')\n", base)[0] in {0, None}:
        base.problem = "a module that raises at import passes its tests: the copy is not what they import"
    return base


def log_tail() -> str:
    """End of what the last fork printed."""
    return (COPY.parent / "log").read_text(encoding="utf-8", errors="replace")[-3000:]


def run_tests(
    module: str, file: str, source: str, base: Baseline
) -> tuple[int | None, dict[str, tuple[bool, float]], float]:
    """Exit status of pytest (None: too slow), test -> (failed, seconds), and seconds; the copy is restored after."""
    target = COPY / "diffnum" / file
    original = target.read_text(encoding="utf-8")
    report = COPY.parent / "report.json"
    report.unlink(missing_ok=True)
    limit = 900.0 if math.isinf(base.seconds) else 3.0 * base.seconds + 20.0
    target.write_text(source, encoding="utf-8")
    start = time.monotonic()
    try:
        pid = os.fork()
        if pid == 0:
            in_fork(module, base, report)
        code = wait(pid, start + limit)
    finally:
        target.write_text(original, encoding="utf-8")
    seconds = time.monotonic() - start
    tests = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return code, {name: tuple(value) for name, value in tests.items()}, seconds


def wait(pid: int, deadline: float) -> int | None:
    """Exit status of a fork; None, and the fork's processes killed, where the deadline passes."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.005)


def in_fork(module: str, base: Baseline, report: Path) -> None:
    """Run pytest on the copy, in a process that then ends."""
    status = 70
    try:
        os.setsid()
        log = os.open(COPY.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(COPY)
        sys.path[:] = [str(COPY), *(path for path in sys.path if path not in {"", str(ROOT), str(ROOT / "tools")})]
        import pytest

        recorder = Recorder(base, report)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "--rootdir", str(COPY)]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already
        status = int(pytest.main([*options, *test_files(module)], plugins=[recorder]))
        loaded = sys.modules.get("diffnum")
        if loaded is not None and not str(loaded.__file__).startswith(str(COPY)):
            status = 5
    except BaseException:  # noqa: BLE001  whatever it is, a fork must not go on as a worker
        traceback.print_exc()
    finally:
        os._exit(status)


def test_files(module: str) -> list[str]:
    """The test file of a module, and those of the private files it answers for."""
    stems = [Path(file).stem.lstrip("_") for file in MODULES[module]]
    return [f"tests/test_{stem}.py" for stem in stems if (COPY / f"tests/test_{stem}.py").exists()]


class Recorder:
    """pytest plugin: the tests likeliest to fail for their time run first; outcomes go to a file."""

    def __init__(self, base: Baseline, report: Path) -> None:
        self.base, self.report = base, report
        self.tests: dict[str, list] = {}

    def pytest_collection_modifyitems(self, items):
        durations, kills = self.base.durations, self.base.kills
        items.sort(key=lambda item: (durations.get(item.nodeid, 0.0) + 0.01) / (kills[item.nodeid] + 0.2))

    def pytest_runtest_logreport(self, report):
        entry = self.tests.setdefault(report.nodeid, [False, 0.0])
        entry[0] = entry[0] or report.failed
        entry[1] += report.duration

    def pytest_sessionfinish(self):
        self.report.write_text(json.dumps(self.tests), encoding="utf-8")


# -- the whole run -----------------------------------------------------------------------------------------------------


def interval(killed: int, tried: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion."""
    z, p = 1.96, killed / tried
    centre, half = p + z * z / (2 * tried), z * math.sqrt(p * (1 - p) / tried + z * z / (4 * tried * tried))
    return (centre - half) / (1 + z * z / tried), (centre + half) / (1 + z * z / tried)


def plan(snapshot: Path, options: argparse.Namespace) -> tuple[list[tuple[str, Mutant]], dict[str, int]]:
    """(module, mutant) pairs to try, and how many mutants each module has."""
    tasks, totals = [], {}
    for module in options.module or MODULES:
        files = [file for file in MODULES[module] if (snapshot / "diffnum" / file).exists()]
        if not files or not (snapshot / f"tests/test_{module}.py").exists():
            print(f"{module}: no module or no test file yet")
            continue
        every = [m for file in files for m in mutants_of(file, (snapshot / "diffnum" / file).read_text("utf-8"))]
        totals[module] = len(every)
        size = options.sample or SAMPLE[module in REQUIRED]
        if not options.all and len(every) > size:
            every = random.Random(f"{options.seed} {module}").sample(every, size)
        tasks += [(module, mutant) for mutant in every]
    return tasks, totals


def score(module: str, outcomes: list[Outcome], total: int, folder: Path) -> dict[str, Any]:
    """Write a module's survivors to a file; its line of the table."""
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    tried = len(outcomes) - verdicts["error"]
    killed = verdicts["killed"] + verdicts["timeout"]
    errors = sorted({outcome.test for outcome in outcomes if outcome.verdict == "error"})
    survivors = sorted((o for o in outcomes if o.verdict == "survived"), key=lambda o: o.mutant)
    text = [f"{module}: {killed} of {tried} mutants killed, {total} exist\n", *errors]
    text += [f"diffnum/{o.mutant.file}:{o.mutant.line}  {o.mutant.operator}\n{o.change}\n" for o in survivors]
    (folder / f"{module}.txt").write_text("\n".join(text), encoding="utf-8")
    for line in text[1:]:
        print(line)
    low, high = interval(killed, tried) if tried else (0.0, 1.0)
    return {
        "module": module,
        "mutants": total,
        "tried": tried,
        "killed": killed,
        "timeouts": verdicts["timeout"],
        "score": killed / tried if tried else 0.0,
        "low": low,
        "high": high,
        "errors": len(errors),
        "survivors": [{"file": o.mutant.file, "line": o.mutant.line, "change": o.change} for o in survivors],
    }


def main() -> int:
    """Try the mutants and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=sorted(MODULES))
    parser.add_argument("--all", action="store_true", help="every mutant, not a sample")
    parser.add_argument("--sample", type=int, default=0, help="mutants to try in each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "mutants")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        snapshot = Path(folder) / "snapshot"
        shutil.copytree(ROOT, snapshot, ignore=IGNORED)
        tasks, totals = plan(snapshot, options)
        outcomes: dict[str, list[Outcome]] = {module: [] for module in totals}
        rows = []
        wanted = Counter(module for module, _ in tasks)
        context = multiprocessing.get_context("spawn")
        with context.Pool(min(options.workers, len(tasks) or 1), start_worker, (str(snapshot),)) as pool:
            for outcome in pool.imap_unordered(attempt, tasks):
                done = outcomes[outcome.module]
                done.append(outcome)
                if len(done) == wanted[outcome.module]:
                    rows.append(score(outcome.module, done, totals[outcome.module], options.output))
                    minutes = (time.monotonic() - start) / 60
                    print(f"-- {outcome.module}: {rows[-1]['score']:.1%}, after {minutes:.1f} min\n", flush=True)
    (options.output / "mutants.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")

    print(f"{'module':<12} {'mutants':>7} {'tried':>6} {'killed':>6} {'score':>7}   95 % interval")
    for row in rows:
        note = "" if row["module"] in REQUIRED else "  (no threshold)"
        note = "  ERROR, see above" if row["errors"] else note
        print(
            f"{row['module']:<12} {row['mutants']:>7} {row['tried']:>6} {row['killed']:>6} {row['score']:>7.1%}   "
            f"{row['low']:.1%} to {row['high']:.1%}{note}"
        )
    bad = [row["module"] for row in rows if row["errors"] or (row["module"] in REQUIRED and row["score"] < THRESHOLD)]
    asked = set(options.module or MODULES)
    missing = sorted(set(REQUIRED) & asked - {row["module"] for row in rows})
    minutes = (time.monotonic() - start) / 60
    if bad or missing:
        print(f"mutants: FAILED: {', '.join(bad + missing)} ({minutes:.0f} min); survivors in {options.output}")
        return 1
    print(f"mutants: passed: at least {THRESHOLD:.0%} killed in {minutes:.0f} min; survivors in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
