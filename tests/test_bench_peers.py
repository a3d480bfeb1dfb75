"""`bench.peers`: our side runs alone, its figures mean what they say, and the plumbing of the peers is guarded."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diffnum import schedules, solvers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench import peers

import peers as environment  # isort: skip

ROOT = Path(__file__).resolve().parent.parent

LINE = 2e-3
"""Wasserstein distance of 16,384 exact draws from the law is .02; of the quantiles themselves rounding."""


def test_rms_and_wasserstein_by_hand():
    assert peers.rms(np.array([[3.0, 0.0], [0.0, 4.0]]), np.zeros((2, 2))) == 2.5
    assert peers.wasserstein(np.array([2.0, 0.0]), np.array([0.5, 2.5])) == 0.5


def test_starts_and_ends_are_the_same_quantiles():
    """The distribution function of the mixture by its own quadrature."""
    task = peers.mixture()
    for points, noise in ((task.x, 80.0), (task.exact, 0.0)):
        spread = math.hypot(0.5, noise)
        share = [
            0.25 * sum(math.erfc((m - float(x)) / spread / math.sqrt(2.0)) for m in (-3.0, 3.0)) for x in points[:, 0]
        ]
        np.testing.assert_allclose(share, (np.arange(201) + 0.5) / 201, rtol=0.0, atol=1e-12)
    assert task.sigma_data == pytest.approx(math.sqrt(9.25), rel=1e-14)


def test_reference_of_points_is_where_many_steps_lead():
    """Two points on the line: the flow takes the left half to the left one."""
    task = peers.points("two", np.array([[-1.0], [1.0]]), count=24, steps=160)
    np.testing.assert_allclose(task.exact, np.sign(task.x), atol=1e-8)


def test_our_side_runs_alone():
    rows = peers.run([peers.mixture()], peers=False, noise=False)
    assert [row["evaluations"] for row in rows] == [10, 20, 40]
    assert all(row["used"] == row["evaluations"] for row in rows)
    assert [row["error"] for row in rows] == sorted((row["error"] for row in rows), reverse=True)
    assert "RMS error" in peers.report(rows)
    task = peers.mixture()
    same = solvers.default(task.oracle.denoise, task.x, schedules.edm(sigma_min=0.0), 10, sigma_data=task.sigma_data)
    assert rows[0]["error"] == pytest.approx(float(np.sqrt(np.mean((same - task.exact) ** 2))), rel=1e-12)


def test_verdict_is_our_error_over_that_of_the_best_peer(monkeypatch):
    def worse(factor):
        return lambda task, n: (task.exact + factor * (peers.ours(task, n)[0] - task.exact), n)

    nan = {"broken": lambda task, n: (math.nan * task.x, n)}
    monkeypatch.setattr(peers, "ODE_PEERS", {"a": worse(9.0), "b": worse(4.0), **nan})
    mine = [row for row in peers.run([peers.mixture()], noise=False) if "ratio" in row]
    np.testing.assert_allclose([row["ratio"] for row in mine], 0.25, rtol=1e-12)
    assert [row["met"] for row in mine] == [True, False, False]
    assert {row["best_peer"] for row in mine} == {"b"}


def test_many_starts_have_the_law_of_the_mixture():
    task = peers.many(peers.mixture())
    assert task.exact.std() == pytest.approx(math.sqrt(9.25), rel=1e-3)
    assert task.exact.mean() == pytest.approx(0.0, abs=LINE)
    assert np.std(task.x) == pytest.approx(math.hypot(80.0, 3.04), rel=0.02)


def test_nothing_of_the_peers_is_imported_until_it_is_asked_for():
    code = "import sys, bench.peers; print({'torch', 'diffusers', 'k_diffusion', 'sklearn'} & sys.modules.keys())"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_missing_peers_are_said_clearly(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    monkeypatch.delitem(sys.modules, "k_diffusion.sampling", raising=False)
    monkeypatch.setattr(sys, "argv", ["bench.peers"])
    assert peers.main() == 1
    assert "make bench-peers" in capsys.readouterr().err


def test_k_diffusion_is_loaded_without_its_package(tmp_path, monkeypatch):
    """A package whose own initialisation fails, and a module that asks for torchvision; no stand-in stays behind."""
    folder = tmp_path / "k_diffusion"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('the image tools')\n")
    (folder / "utils.py").write_text(
        "from torchvision.transforms import functional\nfrom torchvision import transforms\n"
    )
    (folder / "sampling.py").write_text("from . import utils\nanswer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] in {"k_diffusion", "torchvision"}]:
        monkeypatch.delitem(sys.modules, name)
    try:
        assert peers.load_k_diffusion().answer == 42
        if importlib.util.find_spec("torchvision") is None:
            assert not [name for name in sys.modules if name.startswith("torchvision")]
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "k_diffusion"]:
            del sys.modules[name]


def test_an_environment_that_cannot_be_made_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(environment.subprocess, "call", lambda *_: 1)
    with pytest.raises(SystemExit, match="pip could not install torch") as failed:
        environment.pip("python", "torch")
    assert "Nothing else of diffnum needs them" in str(failed.value)
    monkeypatch.setattr(sys, "argv", ["peers.py", str(tmp_path / "new")])
    with pytest.raises(SystemExit, match="bench-peers: could not create"):
        environment.main()
    assert environment.installed(str(tmp_path / "nothing")) is None


def test_pins_name_packages_and_nothing_else():
    lines = [line for line in (ROOT / "constraints-peers.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert (pins["torch"], pins["diffusers"], pins["k-diffusion"]) == ("2.13.0", "0.42.1", "0.1.1.post1")
    assert (pins["jax"], pins["optax"], pins["tokamax"], pins["cut-cross-entropy"]) == (
        "0.10.2",
        "0.2.8",
        "0.0.12",
        "25.1.1",
    )
    assert {name.lower() for name in environment.NEEDED + environment.LOSSES + environment.ALONE} <= {
        name.lower() for name in pins
    }
    assert not any(mark in line for line in lines for mark in ("/", "@", ":"))
