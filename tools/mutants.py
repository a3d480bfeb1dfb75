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

Beside these rules, tools/equivalent_mutants.toml lists, with a reason each, mutants that compute the same as the
original (one more term of a series that has converged, say). They are left out of the score and counted in the table;
with --all they are tried too, and one that is killed is an error, as is an entry that matches no mutant. Any other
equivalent mutant counts as a survivor. Needs os.fork, so Linux or macOS. Exit status 1 if one of the modules in
REQUIRED is under THRESHOLD.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
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
    "cross_entropy": [
        "cross_entropy.py",
        "_linear_cross_entropy.py",
        "_linear_loss.py",
        "_blocks.py",
        "_vocabulary.py",
        "_memory.py",
    ],
    "paths": ["paths.py", "_quadrature.py", "_guarded.py", "_arguments.py"],
    "solvers": ["solvers.py", "_tables.py", "_runner.py"],
    "samplers": ["samplers.py", "_rules.py"],
    "grids": ["grids.py", "_optimal.py"],
    "adaptive": ["adaptive.py"],
    "guidance": ["guidance.py"],
    "oracles": ["oracles.py"],
    "parameterization": ["parameterization.py", "_targets.py", "_weights.py", "_laws.py", "_times.py"],
    "likelihood": ["likelihood.py"],
    "kernels/gaussian": ["kernels/gaussian.py"],
    "kernels/categorical": [
        "kernels/categorical.py",
        "kernels/_keep.py",
        "kernels/_families.py",
        "kernels/_draws.py",
        "kernels/_logspace.py",
        "kernels/_tokens.py",
    ],
    "discrete/elbo": [
        "discrete/elbo.py",
        "discrete/_terms.py",
        "discrete/_scores.py",
        "discrete/_exact.py",
        "discrete/_oracles.py",
    ],
    "discrete/samplers": [
        "discrete/samplers.py",
        "discrete/_sampler_laws.py",
        "discrete/_sampler_steps.py",
        "discrete/_sampler_loop.py",
        "discrete/_sampler_enumeration.py",
        "discrete/_sampler_events.py",
        "discrete/_sampler_orders.py",
        "discrete/_sampler_shaping.py",
    ],
    "convergence": ["convergence.py", "_moments.py", "_problems.py"],
}
"""Module -> files in diffnum/ that its tests answer for."""

REQUIRED = ("phi", "schedules", "logsumexp", "paths", "solvers")
THRESHOLD = 0.90
SAMPLE = {True: 60, False: 12}
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

EQUIVALENT = "tools/equivalent_mutants.toml"
QUIET_KEYWORDS = {"strict", "copy", "prevent_cse"}
IGNORED = shutil.ignore_patterns(
    ".*", "_build", "_static", "dist", "build", "__pycache__", "*.egg-info", "node_modules"
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

    seconds: float  # of CPU time: other programs on the machine do not stretch it
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
SLACK = 10.0
"""Seconds of CPU time that a fork may take beyond three times those of the unchanged tests."""

PATIENCE = 10.0
"""A fork may take this many times its CPU time before it counts as asleep."""


def start_worker(snapshot: str) -> None:
    """Import the libraries and make this worker's copy of the checkout."""
    global COPY  # noqa: PLW0603  a worker process is this module's state
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `wait` ends its fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PRELOAD:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    from hypothesis import settings

    # the same examples for every mutant, none remembered
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    settings.load_profile("mutants")
    COPY = Path(tempfile.mkdtemp(dir=Path(snapshot).parent)) / "checkout"
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
    """Exit status of pytest (None: too slow), test -> (failed, seconds), and CPU time; the copy is restored after."""
    target = COPY / "diffnum" / file
    original = target.read_text(encoding="utf-8")
    report = COPY.parent / "report.json"
    report.unlink(missing_ok=True)
    limit = 600 if math.isinf(base.seconds) else math.ceil(3.0 * base.seconds + SLACK)
    target.write_text(source, encoding="utf-8")
    try:
        pid = os.fork()
        if pid == 0:
            in_fork(module, base, report, limit)
        code, seconds = wait(pid, time.monotonic() + PATIENCE * limit)
    finally:
        target.write_text(original, encoding="utf-8")
    tests = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return code, {name: tuple(value) for name, value in tests.items()}, seconds


def wait(pid: int, deadline: float) -> tuple[int | None, float]:
    """Exit status and CPU time of a fork; the status is None if it used up its time or the deadline passed."""
    try:
        while True:
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return None if code == -signal.SIGXCPU else code, usage.ru_utime + usage.ru_stime
            if time.monotonic() > deadline:
                kill(pid)
                return None, os.wait4(pid, 0)[2].ru_utime
            time.sleep(0.005)
    except BaseException:
        kill(pid)
        raise


def kill(pid: int) -> None:
    """End a fork and what it started."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def in_fork(module: str, base: Baseline, report: Path, limit: int) -> None:
    """Run pytest on the copy for at most `limit` seconds of CPU time, in a process that then ends."""
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        log = os.open(COPY.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(COPY)
        sys.path[:] = [str(COPY), *(path for path in sys.path if path not in {"", str(ROOT), str(ROOT / "tools")})]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a third of a second of each fork
        import pytest

        recorder = Recorder(base, report)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--rootdir", str(COPY)]
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
    paths = [test_file(file) for file in MODULES[module]]
    return [path for path in paths if (COPY / path).exists()]


def test_file(file: str) -> str:
    """Where the tests of a file in diffnum/ are, private or public."""
    path = Path("tests", file)
    return path.with_name(f"test_{path.stem.lstrip('_')}.py").as_posix()


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


class Plan(NamedTuple):
    """What to try in a module: `total` mutants exist, `equivalent` of them are known to change nothing."""

    module: str
    total: int
    equivalent: frozenset[Mutant]
    chosen: list[Mutant]
    stale: list[str]


def plan(module: str, snapshot: Path, options: argparse.Namespace) -> Plan:
    """Choose the mutants of a module."""
    sources = {file: (snapshot / "diffnum" / file) for file in MODULES[module]}
    sources = {file: path.read_text(encoding="utf-8") for file, path in sources.items() if path.exists()}
    every = [mutant for file, source in sources.items() for mutant in mutants_of(file, source)]
    known, stale = equivalents(sources, every, snapshot / EQUIVALENT)
    chosen = every if options.all else [mutant for mutant in every if mutant not in known]
    size = options.sample or SAMPLE[module in REQUIRED]
    if not options.all and len(chosen) > size:
        chosen = random.Random(f"{options.seed} {module}").sample(chosen, size)
    return Plan(module, len(every), frozenset(known), chosen, stale)


def equivalents(sources: dict[str, str], every: list[Mutant], listing: Path) -> tuple[set[Mutant], list[str]]:
    """The mutants of `listing`, and its entries that match none."""
    if not listing.exists():
        return set(), []
    known, stale = set(), []
    for entry in tomllib.loads(listing.read_text(encoding="utf-8"))["equivalent"]:
        file, before, after = entry["file"], entry["before"], entry["after"]
        if file not in sources:
            continue
        lines = sources[file].splitlines()
        found = [
            mutant
            for mutant in every
            if mutant.file == file
            and before in lines[mutant.line - 1]
            and after in change(sources[file], apply(mutant, sources[file]))
        ]
        known.update(found)
        if not (found and entry["reason"]):
            stale.append(f"{EQUIVALENT}: no such mutant of {file}: {before} -> {after}")
    return known, stale


def described(outcome: Outcome) -> str:
    """A survivor: where it is, what made it, what changed."""
    mutant = outcome.mutant
    return f"diffnum/{mutant.file}:{mutant.line}  {mutant.operator}\n{outcome.change}\n"


def score(plan: Plan, outcomes: list[Outcome], folder: Path) -> dict[str, Any]:
    """Write a module's survivors to a file; its line of the table."""
    module = plan.module
    judged = [outcome for outcome in outcomes if outcome.verdict != "error" and outcome.mutant not in plan.equivalent]
    verdicts = Counter(outcome.verdict for outcome in judged)
    tried, killed = len(judged), verdicts["killed"] + verdicts["timeout"]
    errors = sorted({outcome.test for outcome in outcomes if outcome.verdict == "error"}) + plan.stale
    errors += [
        f"{EQUIVALENT} lists a mutant that {outcome.test or outcome.verdict} kills:\n{described(outcome)}"
        for outcome in outcomes
        if outcome.mutant in plan.equivalent and outcome.verdict in {"killed", "timeout"}
    ]
    survivors = sorted((o for o in judged if o.verdict == "survived"), key=lambda o: o.mutant)
    text = [f"{module}: {killed} of {tried} mutants killed; {plan.total} exist, {len(plan.equivalent)} equivalent\n"]
    text += [*errors, *map(described, survivors)]
    (folder / f"{module.replace('/', '-')}.txt").write_text("\n".join(text), encoding="utf-8")
    for error in errors:
        print(f"{module}: {error}")
    low, high = interval(killed, tried) if tried else (0.0, 1.0)
    return {
        "module": module,
        "mutants": plan.total,
        "equivalent": len(plan.equivalent),
        "tried": tried,
        "killed": killed,
        "timeouts": verdicts["timeout"],
        "score": killed / tried if tried else 0.0,
        "low": low,
        "high": high,
        "errors": errors,
        "survivors": [{"file": o.mutant.file, "line": o.mutant.line, "change": o.change} for o in survivors],
    }


def run(plans: dict[str, Plan], snapshot: Path, workers: int, folder: Path, start: float) -> list[dict[str, Any]]:
    """Try all chosen mutants; the lines of the table."""
    tasks = [(module, mutant) for module, one in plans.items() for mutant in one.chosen]
    outcomes: dict[str, list[Outcome]] = {module: [] for module in plans}
    rows = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(tasks) or 1), start_worker, (str(snapshot),)) as pool:
        for outcome in pool.imap_unordered(attempt, tasks):
            one, done = plans[outcome.module], outcomes[outcome.module]
            done.append(outcome)
            if outcome.verdict == "survived" and outcome.mutant not in one.equivalent:
                print(described(outcome), flush=True)
            if len(done) % 20 == 0:
                killed = sum(o.verdict in {"killed", "timeout"} for o in done)
                print(f"-- {outcome.module}: {killed} killed of the first {len(done)}", flush=True)
            if len(done) == len(one.chosen):
                rows.append(score(one, done, folder))
                minutes = (time.monotonic() - start) / 60
                print(f"-- {outcome.module}: {rows[-1]['score']:.1%}, after {minutes:.1f} min\n", flush=True)
    return rows


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
    if importlib.util.find_spec("cosmic_ray") is None:
        sys.exit("mutants: Cosmic Ray is not installed; `make mutants` installs it")
    options.output.mkdir(parents=True, exist_ok=True)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        snapshot = Path(folder) / "snapshot"
        shutil.copytree(ROOT, snapshot, ignore=IGNORED)
        asked = options.module or list(MODULES)
        missing = [
            m for m in asked if not all((snapshot / p).exists() for p in (f"diffnum/{m}.py", test_file(f"{m}.py")))
        ]
        plans = {module: plan(module, snapshot, options) for module in asked if module not in missing}
        rows = run(plans, snapshot, options.workers, options.output, start)
    (options.output / "mutants.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")

    print(f"{'module':<12} {'mutants':>7} {'equiv.':>6} {'tried':>6} {'killed':>6} {'score':>7}   95 % interval")
    for row in rows:
        note = "" if row["module"] in REQUIRED else "  (no threshold)"
        note = "  ERROR, see above" if row["errors"] else note
        print(
            f"{row['module']:<12} {row['mutants']:>7} {row['equivalent']:>6} {row['tried']:>6} {row['killed']:>6} "
            f"{row['score']:>7.1%}   {row['low']:.1%} to {row['high']:.1%}{note}"
        )
    bad = [row["module"] for row in rows if row["errors"] or (row["module"] in REQUIRED and row["score"] < THRESHOLD)]
    missing = [module for module in missing if module in REQUIRED]
    minutes = (time.monotonic() - start) / 60
    if bad or missing:
        print(f"mutants: FAILED: {', '.join(bad + missing)} ({minutes:.0f} min); survivors in {options.output}")
        return 1
    print(f"mutants: passed: at least {THRESHOLD:.0%} killed in {minutes:.0f} min; survivors in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
