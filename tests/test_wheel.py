"""The wheel, installed beside numpy, scipy and torch alone."""
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SITE = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory) -> Path:
    """Built from a copy, because building leaves files behind."""
    src = tmp_path_factory.mktemp("src")
    for name in ("pyproject.toml", "README.md", "LICENSE", "settings.ini"):
        shutil.copy(root / name, src)
    for name in ("robust_general", "nbs", "tools", "tests"):
        shutil.copytree(root / name, src / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    cmd = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", src / "dist", src]
    subprocess.run(cmd, check=True, capture_output=True, cwd=src)
    return next((src / "dist").glob("*.whl"))


def needs(name: str, seen: set[str]) -> set[str]:
    """A distribution and everything it requires here."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key not in seen:
        seen.add(key)
        for text in distribution(name).requires or []:
            r = Requirement(text)
            if r.marker is None or r.marker.evaluate({"extra": ""}):
                needs(r.name, seen)
    return seen


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Interpreter of a new environment: torch, numpy, scipy, what they need, and the wheel."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    for name in needs("numpy", set()) | needs("scipy", set()) | needs("torch", set()):
        for top in {f.parts[0] for f in distribution(name).files if f.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(SITE / top)
    python = venv / "bin" / "python"
    # With dependencies: pip itself finds that nothing is missing. Away from here: it would find this folder's package.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    cmd = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet", wheel]
    subprocess.run(cmd, check=True, cwd=venv, env=env)
    return python


def test_contents(root, wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = [p for p in (root / "robust_general").iterdir() if p.suffix in (".py", ".npy") or p.name == "py.typed"]
    assert sorted(n for n in names if n.startswith("robust_general/")) == sorted(f"robust_general/{p.name}" for p in shipped)
    tops = {n.split("/")[0] for n in names}
    assert tops == {"robust_general", next(t for t in tops if t.endswith(".dist-info"))}
    assert {"robust_general/py.typed", "robust_general/log_partition.npy"} <= set(names)
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_requirements(wheel):
    meta = next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("METADATA"))
    text = zipfile.ZipFile(wheel).read(meta).decode()
    plain = [l for l in re.findall(r"^Requires-Dist: (.*)$", text, re.M) if "extra ==" not in l]
    assert {Requirement(r).name for r in plain} == {"numpy", "scipy", "torch"}
    import robust_general

    assert f"Version: {robust_general.__version__}\n" in text


SKLEARN = {"regression", "clustering", "clustering_experiment"}  # modules of the extra of that name


def test_imports_alone(root, python, tmp_path):
    modules = sorted(p.stem for p in (root / "robust_general").glob("*.py") if p.stem != "__init__")
    assert SKLEARN < set(modules)
    code = f"""
import importlib, importlib.util, json, pathlib
import robust_general
missing = {{}}
for m in {modules}:
    try: importlib.import_module("robust_general." + m)
    except ModuleNotFoundError as e: missing[m] = e.name
assert robust_general.log_partition(2.) > .9 and robust_general.general.cdf(0., 1.) == .5
foreign = [m for m in ("nbdev", "fastcore", "IPython", "matplotlib", "jupytext", "pytest", "zensical", "sklearn") if importlib.util.find_spec(m)]
print(json.dumps([str(pathlib.Path(robust_general.__file__).parent.parent), foreign, missing]))
"""
    # -I: neither the current folder nor PYTHONPATH helps out.
    out = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    where, foreign, missing = json.loads(out.stdout.splitlines()[-1])
    assert "site-packages" in where and not Path(where).is_relative_to(root)
    assert foreign == []
    assert set(missing) == SKLEARN and set(missing.values()) <= {"sklearn", "joblib"}
