"""`make reproduce`: what is finished is not run again, and a kill leaves nothing half-written."""
import json
import os
import signal
import time

from tools import book

LOG = "open('ran.txt', 'a').write({!r} + '\\n')"
IMPORT = "from robust_general.figures import save_table"


def ran(project) -> list[str]:
    return (project.folder / "nbs" / "ran.txt").read_text().split()


def test_kill_loses_only_the_running_notebook(project):
    project.write("01_first.ipynb", IMPORT, LOG.format("first"), "#| slow\nsave_table('first', [{'x': 1}], seeds=[0])")
    project.write(
        "02_second.ipynb", IMPORT, LOG.format("second"), "save_table('early', [{'x': 2}])",
        "import time, pathlib\nif not pathlib.Path('go').exists():\n    pathlib.Path('waiting').touch(); time.sleep(600)",
        "save_table('late', [{'x': 3}])",
    )
    figures, nbs = project.folder / "figures", project.folder / "nbs"
    child = project.start("reproduce")
    for _ in range(600):
        if (nbs / "waiting").exists():
            break
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert ran(project) == ["first", "second"]
    assert list(json.loads((figures / "manifest.json").read_text())) == ["01_first.ipynb"]

    (nbs / "go").touch()
    (figures / ".late.json.1.part").write_text("half a fi")  # as a kill in the middle of a write leaves it
    status, said = project.run("reproduce")
    assert status == 0, said
    assert "01_first: unchanged" in said and "02_second: to run" in said and "figures/late.md" in said
    assert ran(project) == ["first", "second", "second"]
    names = ["early.json", "early.md", "first.json", "first.md", "late.json", "late.md", "manifest.json"]
    assert sorted(p.name for p in figures.iterdir()) == names
    for p in figures.glob("*.json"):
        json.loads(p.read_text())

    before = {p.name: p.read_bytes() for p in figures.iterdir()}
    assert project.run("reproduce")[0] == 0
    assert ran(project) == ["first", "second", "second"]
    status, said = project.run("reproduce", "--force")
    assert status == 0, said
    assert before == {p.name: p.read_bytes() for p in figures.iterdir()}


def test_change_decides_what_runs(project):
    saves = "save_table('one', [{'x': 1}])"
    project.write("01_one.ipynb", "# One", IMPORT, LOG.format("one"), saves)
    project.write("02_two.ipynb", IMPORT, LOG.format("two"), "save_table('two', [{'x': 1}])")
    assert project.run("reproduce")[0] == 0
    # Prose and comments change no result ...
    project.write("01_one.ipynb", "# Another title", IMPORT, LOG.format("one"), saves + "  # a remark")
    assert project.run("reproduce")[0] == 0
    assert ran(project) == ["one", "two"]
    # ... code does, and what is no longer written goes.
    project.write("01_one.ipynb", "# One", IMPORT, LOG.format("one"), saves.replace("'one'", "'uno'"))
    assert project.run("reproduce")[0] == 0
    assert ran(project) == ["one", "two", "one"]
    assert sorted(p.name for p in (project.folder / "figures").glob("*.md")) == ["two.md", "uno.md"]
    # A damaged file is made again.
    (project.folder / "figures" / "two.md").write_text("edited by hand")
    assert project.run("reproduce", "02_two")[0] == 0
    assert ran(project)[3:] == ["two"]


def test_failure_is_reported(project):
    project.write("01_bad.ipynb", IMPORT, "1/0", "save_table('bad', [{'x': 1}])")
    status, said = project.run("reproduce")
    assert status and "ZeroDivisionError" in said and "01_bad.ipynb failed" in said
    status, said = project.run("reproduce", "03_none")
    assert status and "03_none saves no figure or table" in said


def test_inputs_are_what_is_imported(project, monkeypatch):
    """A chapter's figures depend on the modules it reaches, however indirectly, and on no others."""
    package = project.folder / "robust_general"
    (package / "base.py").write_text("K = 1\n")
    (package / "near.py").write_text("from .base import K\n")
    (package / "far.py").write_text("L = 1\n")
    (package / "__init__.py").write_text("from .near import K as K\n")
    project.write("01_one.ipynb", "from robust_general import K")
    nb = project.folder / "nbs" / "01_one.ipynb"
    monkeypatch.setattr(book, "PACKAGE", package)
    before = book.inputs(nb)
    (package / "far.py").write_text("L = 2\n")
    (package / "base.py").write_text("K = 1  # a remark\n")
    assert book.inputs(nb) == before
    (package / "base.py").write_text("K = 2\n")
    assert book.inputs(nb) != before
    project.write("01_one.ipynb", "import scipy")
    before = book.inputs(nb)
    monkeypatch.setattr(book, "_pins", lambda: {"scipy": "0.1", "torch": "0.1"})
    assert book.inputs(nb) != before
