"""Run what has not yet passed: each notebook with nbdev_test, each file of tests/ with pytest.

What passed is remembered in .cache/passed under a hash of everything it could depend on, so that a second call is quick
and a killed one goes on where it stopped. `make clean` forgets.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.book import CACHE, FIGURES, PACKAGE, ROOT, atomic_write, contents, digest, notebooks

PASSED = CACHE / "passed"


@dataclass
class Task:
    name: str
    key: str  # Passing under this key holds until the key changes
    command: list

    @property
    def stamp(self) -> Path:
        return PASSED / self.name

    def passed(self) -> bool:
        return self.stamp.exists() and self.stamp.read_text() == self.key


def tasks() -> tuple[list[Task], list[Task]]:
    """Notebooks, then test files."""
    # Beside files, these decide what a test does or skips.
    around = digest(sys.version, str(os.environ.get("ROBUST_GENERAL_DATA")), str(shutil.which("chromium")))
    shared = contents(PACKAGE, ROOT / "constraints.txt", ROOT / "settings.ini", *sorted(FIGURES.glob("*.json")))
    nbdev_test = Path(sys.executable).parent / "nbdev_test"
    nbs = [
        Task(nb.name, digest(around, shared, nb.read_bytes()), [nbdev_test, "--path", nb.relative_to(ROOT)])
        for nb in notebooks()
    ]
    everything = digest(around, contents(ROOT))
    tests = [
        Task(p.name, everything, [sys.executable, "-m", "pytest", "-rs", p.relative_to(ROOT)])
        for p in sorted((ROOT / "tests").glob("test_*.py"))
    ]
    return nbs, tests


def run(todo: list[Task], workers: int) -> bool:
    """Run tasks, say how each went, remember those that passed."""
    env = {k: v for k, v in os.environ.items() if k != "ROBUST_GENERAL_FIGURES"}  # a test writes no figures
    if workers > 1:  # two notebooks that both want every core are slower than one after the other
        env.setdefault("OMP_NUM_THREADS", "1")

    def one(task: Task) -> bool:
        start = time.time()
        done = subprocess.run(task.command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ok = done.returncode == 0
        if ok:
            atomic_write(task.stamp, task.key)
        print(f"{'ok    ' if ok else 'FAILED'} {task.name}  {time.time() - start:.0f} s", flush=True)
        for line in done.stdout.splitlines():
            if not ok or line.startswith("SKIPPED"):
                print(f"    {line}", flush=True)
        return ok

    with ThreadPoolExecutor(workers) as pool:
        return all(list(pool.map(one, todo)))


def main() -> None:
    ok = True
    for what, some, workers in zip(("notebooks", "test files"), tasks(), (2, 1)):
        todo = [t for t in some if not t.passed()]
        print(f"{what}: {len(some) - len(todo)} passed before and unchanged, {len(todo)} to run", flush=True)
        ok &= run(todo, workers)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
