"""Line coverage of the package by the notebooks' assertions and by tests/: `python -m tools.coverage [name ...]`.

A notebook runs its exported cells itself and not the module made of them, so here such a cell is compiled under the
name and at the lines that it has in the module. What a compiler of torch traces, no tracer of lines sees.

Files that passed before and have not changed are not run again. Fails if something fails, or if less than `LEAST` per
cent of the lines ran. Settings are in pyproject.toml.
"""
from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.book import CACHE, NBS, PACKAGE, ROOT, atomic_write, contents, digest, notebooks, parse_cell
from tools.execute import skips

LEAST = 95
DATA = CACHE / "coverage"
ELSEWHERE = {"test_check", "test_ledger", "test_reproduce", "test_site", "test_sync", "test_wheel", "test_dependencies"}  # test no line of the package


def exported(module: Path) -> dict:
    """Cell id to its code, compiled as a part of the module."""
    text = module.read_text(encoding="utf-8")
    marks = [*re.finditer(r"^# %% (\S+) #(\w+)$", text, re.M)]
    out = {}
    for mark, end in zip(marks, [m.start() for m in marks[1:]] + [len(text)]):
        tree = ast.parse(text[mark.end() : end])
        ast.increment_lineno(tree, text.count("\n", 0, mark.end()))
        out[mark[2]] = compile(tree, str(module), "exec")
    return out


def run_notebook(nb: Path) -> None:
    """Run the cells that a test runs, the exported ones as lines of their module."""
    from execnb.nbio import read_nb
    from execnb.shell import CaptureShell

    cells = read_nb(nb).cells
    name = next((parse_cell(c).value("default_exp") for c in cells if parse_cell(c).value("default_exp")), None)
    code = exported(PACKAGE / f"{name}.py") if name else {}
    shell = CaptureShell(nb)
    shell.user_ns["__package__"] = PACKAGE.name  # a module imports its neighbours by a dot
    os.chdir(nb.parent)
    for raw in cells:
        cell = parse_cell(raw)
        if skips(cell, set()):
            continue
        if cell.id in code:
            exec(code[cell.id], shell.user_ns)
            continue
        raw.outputs = []
        shell.cell(raw)
        if shell.exc:
            sys.exit(shell.prettytb(nb.name))


def run_one(path: Path, key: str) -> bool:
    """Run a notebook or a test file in a process of its own, unless it has passed under this key."""
    folder, start = DATA / path.stem, time.time()
    stamp = folder / "passed"
    if stamp.exists() and stamp.read_text() == key:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    what = ["tools.coverage", "--notebook", path.stem] if path.suffix == ".ipynb" else ["pytest", str(path.relative_to(ROOT))]
    env = {**os.environ, "COVERAGE_FILE": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    env.pop("ROBUST_GENERAL_FIGURES", None)
    done = subprocess.run([sys.executable, "-m", "coverage", "run", "-m", *what], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ok = done.returncode == 0
    print(f"{'ok    ' if ok else 'FAILED'} {path.name}  {time.time() - start:.0f} s", flush=True)
    if ok:
        atomic_write(stamp, key)
    else:
        print("".join(f"    {line}\n" for line in done.stdout.splitlines()[-60:]), flush=True)
    return ok


def report(paths: list[Path]) -> int:
    """The table of all modules, and what did not run; not 0 if too little did."""
    coverage = [sys.executable, "-m", "coverage"]
    env = {**os.environ, "COVERAGE_FILE": str(DATA / "all")}
    found = [f for p in paths for f in sorted((DATA / p.stem).glob("data*"))]
    subprocess.run([*coverage, "combine", "--keep", "--quiet", *found], check=True, cwd=ROOT, env=env)
    return subprocess.run([*coverage, "report", "--show-missing", f"--fail-under={LEAST}"], cwd=ROOT, env=env).returncode


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("names", nargs="*", help="notebooks such as 01_loss and tests such as test_loss; all if none")
    ap.add_argument("--notebook", help=argparse.SUPPRESS)  # run it here
    args = ap.parse_args()
    if args.notebook:
        return run_notebook(NBS / f"{args.notebook}.ipynb")
    paths = notebooks() + [p for p in sorted((ROOT / "tests").glob("test_*.py")) if p.stem not in ELSEWHERE]
    if unknown := set(args.names) - {p.stem for p in paths}:
        ap.error(f"no such notebook or test: {', '.join(sorted(unknown))}")
    paths = [p for p in paths if not args.names or p.stem in args.names]
    around = digest(sys.version, str(os.environ.get("ROBUST_GENERAL_DATA")), contents(PACKAGE, *(ROOT / o for o in ("constraints.txt", "pyproject.toml", "tests/conftest.py", "tools/coverage.py"))))
    with ThreadPoolExecutor(2) as pool:
        passed = all(list(pool.map(lambda p: run_one(p, digest(around, p.read_bytes())), paths)))
    status = report(paths)
    sys.exit(status if passed else 1)


if __name__ == "__main__":
    main()
