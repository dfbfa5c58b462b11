"""What several tests need: the project's folder, its tools, and small projects to try them on."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
os.chdir(ROOT)  # the tools work on the project in the current folder


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


def notebook(*cells: str) -> str:
    """A notebook's JSON; a cell that starts with # and a space is prose."""
    def cell(i: int, source: str) -> dict:
        if source.startswith("# "):
            return {"cell_type": "markdown", "id": f"c{i}", "metadata": {}, "source": source}
        return {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": source, "outputs": [], "execution_count": None}

    return json.dumps({"cells": [cell(*o) for o in enumerate(cells)], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


class Project:
    """A small project of its own, in which this project's tools run."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("nbs", "tests", "figures", "robust_general"):
            (folder / name).mkdir(parents=True)
        for name in ("settings.ini", "constraints.txt", "robust_general/figures.py"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "robust_general/__init__.py").touch()  # one module: quick to import

    def write(self, name: str, *cells: str) -> None:
        (self.folder / "nbs" / name).write_text(notebook(*cells))

    def start(self, tool: str, *args: str) -> subprocess.Popen:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        env.pop("ROBUST_GENERAL_FIGURES", None)
        return subprocess.Popen([sys.executable, "-m", f"tools.{tool}", *args], cwd=self.folder, env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, tool: str, *args: str) -> tuple[int, str]:
        """Exit status and everything printed."""
        child = self.start(tool, *args)
        said = child.communicate(timeout=300)[0]
        return child.returncode, said


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path / "small")


@pytest.fixture
def one_thread():
    """Many small kernels on two threads mostly wait for each other; and what was compiled is forgotten afterwards."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()
