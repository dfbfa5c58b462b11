"""`make reproduce`: what is finished is not run again, and a kill leaves nothing half-written."""
import json
import os
import shutil
import signal
import time

import pytest

from tools import book, gallery, reproduce

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
    child = project.start("reproduce", "--jobs", "1")
    for _ in range(3000):  # five minutes, for a busy machine
        if (nbs / "waiting").exists():
            break
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert ran(project) == ["first", "second"]
    assert list(json.loads((figures / "manifest.json").read_text())) == ["01_first.ipynb"]
    assert sorted(p.name for p in figures.iterdir()) == ["first.json", "first.md", "manifest.json"]  # nothing of the second

    (nbs / "go").touch()
    (figures / ".late.json.1.part").write_text("half a fi")  # as a kill in the middle of a write leaves it
    status, said = project.run("reproduce", "--jobs", "1")
    assert status == 0, said
    assert "01_first: unchanged" in said and "02_second: to run" in said and "figures/late.md" in said
    assert "Plan: 1 of 2 pages to run" in said and "4 files written: 0 are byte for byte those recorded, 0 differ, 4 are new" in said
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
    assert "6 files written: 6 are byte for byte those recorded" in said
    # Only the note of how long it took may have moved.
    def untimed(name: str, data: bytes):
        return {k: {**v, "seconds": None} for k, v in json.loads(data).items()} if name == "manifest.json" else data

    assert {n: untimed(n, b) for n, b in before.items()} == {p.name: untimed(p.name, p.read_bytes()) for p in figures.iterdir()}


def test_change_decides_what_runs(project):
    saves = "save_table('one', [{'x': 1}])"
    project.write("01_one.ipynb", "# One", IMPORT, LOG.format("one"), saves)
    project.write("02_two.ipynb", IMPORT, LOG.format("two"), "save_table('two', [{'x': 1}])")
    assert project.run("reproduce", "--jobs", "1")[0] == 0
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


def test_a_long_page_can_be_checked_instead(project, monkeypatch):
    """After a change of its code: a part of it again, and the record says of the rest that it was not made but checked."""
    compares = "#| recheck: long\nassert load_table('long').rows == [{'x': three()}]"
    page = lambda three: (IMPORT + ", load_table", f"def three(): return {three}", LOG.format("ran"), "#| slow\nsave_table('long', [{'x': three()}]); save_table('other', [{'x': 1}])", compares, "save_table('short', [{'x': 1}])")  # noqa: E731
    project.write("01_long.ipynb", *page("3"))
    assert project.run("reproduce")[0] == 0
    figures = project.folder / "figures"
    read = lambda: json.loads((figures / "manifest.json").read_text())["01_long.ipynb"]  # noqa: E731
    for name, value in (("NBS", project.folder / "nbs"), ("FIGURES", figures)):
        monkeypatch.setattr(reproduce, name, value)
    monkeypatch.setattr(reproduce, "writers", lambda: [])
    monkeypatch.setattr(book, "PACKAGE", project.folder / "robust_general")
    stale = lambda: reproduce.stale({"01_long.ipynb": read()})  # noqa: E731
    first = read()
    assert stale() == []

    project.write("01_long.ipynb", *page("2 + 1"))
    assert len(stale()) == 6
    status, said = project.run("reproduce", "--recheck")
    assert status == 0, said
    now = read()
    # ... of what was compared, and of nothing else.
    assert stale() == [f"other.{kind} is older than the code of 01_long.ipynb" for kind in ("json", "md")] and ran(project) == ["ran", "ran"]
    assert now["files"]["other.json"] == first["files"]["other.json"]
    assert now["files"]["long.json"] == {**first["files"]["long.json"], "checked": now["files"]["short.json"]["inputs"]}
    assert "checked" not in now["files"]["short.json"]
    assert "1 of 1 pages to run" in project.run("reproduce", "--plan", "--changed")[1]  # the whole of it was not made

    project.write("01_long.ipynb", *page("4"))  # does change the result
    assert project.run("reproduce", "--recheck")[0] and len(stale()) == 6 and read() == now
    project.write("01_long.ipynb", *page("3"))  # back to what the rest was made with
    assert stale() and "1 of 1 pages to run" in project.run("reproduce", "--plan")[1]
    assert project.run("reproduce")[0] == 0 and stale() == [] and "checked" not in (figures / "manifest.json").read_text()
    project.write("01_long.ipynb", *page("3")[:-2], "save_table('short', [{'x': 1}])")
    project.write("02_new.ipynb", *page("3"))
    for name in ("01_long", "02_new"):
        status, said = project.run("reproduce", "--recheck", name)
        assert status and "nothing is recorded, or no cell that can run here compares it" in said and name in said


def test_failure_is_reported(project):
    """One page that fails does not stop the others, and changes nothing."""
    good, bad = [IMPORT, "save_table('good', [{'x': 1}])"], [IMPORT, "save_table('bad', [{'x': 1}])"]
    project.write("01_bad.ipynb", *bad)
    project.write("02_good.ipynb", *good)
    assert project.run("reproduce")[0] == 0
    before = (project.folder / "figures" / "bad.json").read_bytes()
    project.write("01_bad.ipynb", bad[0], bad[1].replace("1", "2"), "1/0")
    project.write("02_good.ipynb", good[0], good[1].replace("1", "2"))
    status, said = project.run("reproduce")
    assert status and "ZeroDivisionError" in said and "01_bad.ipynb failed" in said
    assert (project.folder / "figures" / "bad.json").read_bytes() == before
    assert '"x": 2' in (project.folder / "figures" / "good.json").read_text()
    status, said = project.run("reproduce", "03_none")
    assert status and "03_none is neither a figure or table of the paper nor a page that saves one" in said and "pages: 01_bad, 02_good" in said


def test_a_fresh_checkout_runs_what_others_recorded(project):
    """Committed figures are not a reproduction; but who only changed a chapter need not run the rest."""
    project.write("01_one.ipynb", IMPORT, LOG.format("one"), "save_table('one', [{'x': 1}])")
    assert project.run("reproduce")[0] == 0
    shutil.rmtree(project.folder / ".cache")  # what git does not bring along
    assert "01_one: unchanged" in project.run("reproduce", "--changed")[1]
    said = project.run("reproduce", "--plan")[1]
    assert "01_one: to run" in said and "written" not in said
    assert ran(project) == ["one"]
    assert "2 are byte for byte those recorded" in project.run("reproduce")[1]
    assert ran(project) == ["one", "one"]
    assert "01_one: unchanged" in project.run("reproduce")[1]


def test_pages_beside_each_other_and_alone(project):
    """Two pages at a time do not take each other's files for their own; one that measures time runs when they are done."""
    for k in (1, 2):
        meet = f"import pathlib, time\npathlib.Path('here{k}').touch()\nwhile not pathlib.Path('here{3 - k}').exists(): time.sleep(.05)"
        project.write(f"0{k}_page.ipynb", IMPORT, meet, f"save_table('of{k}', [{{'x': {k}}}])", LOG.format(str(k)))
    project.write("00_clock.ipynb", IMPORT, "from time import perf_counter", LOG.format("clock"), "save_table('clock', [{'x': 0}])")
    status, said = project.run("reproduce", "--jobs", "2")
    assert status == 0, said
    assert ran(project)[2] == "clock"
    manifest = json.loads((project.folder / "figures" / "manifest.json").read_text())
    assert {k: list(v["files"]) for k, v in manifest.items()} == {
        "00_clock.ipynb": ["clock.json", "clock.md"], "01_page.ipynb": ["of1.json", "of1.md"], "02_page.ipynb": ["of2.json", "of2.md"]}


DATA = ["#| data\nsave_table('measured', [{'x': 1}])", "save_table('drawn', [{'x': 1}])"]


def test_without_data_nothing_made_of_it_is_lost(project, monkeypatch, tmp_path):
    project.write("01_one.ipynb", IMPORT, *DATA)
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(tmp_path))
    assert project.run("reproduce")[0] == 0
    path = project.folder / "figures" / "manifest.json"
    before = json.loads(path.read_text())["01_one.ipynb"]
    assert before["without"] == [] and set(before["seconds"]) == {"data"}
    monkeypatch.delenv("ROBUST_GENERAL_DATA")
    status, said = project.run("reproduce")
    assert status == 0 and "01_one: to run" in said and "recorded numbers" in said and "2 files written: 2 are byte for byte" in said
    after = json.loads(path.read_text())["01_one.ipynb"]
    assert after["files"] == before["files"] and after["without"] == []  # still current: the inputs are the same
    assert set(after["seconds"]) == {"data", "plain"}
    # With other inputs the record says that the cell with data did not run.
    project.write("01_one.ipynb", IMPORT, *DATA, "y = 1")
    assert project.run("reproduce")[0] == 0
    after = json.loads(path.read_text())["01_one.ipynb"]
    assert after["without"] == ["data"]
    assert after["files"]["measured.json"] == before["files"]["measured.json"] and after["files"]["drawn.json"] != before["files"]["drawn.json"]


def test_free_stand_ins_leave_what_data_made(project, monkeypatch, tmp_path):
    """A page of the paper's list that trains on something free if there is no data, as autoencoders do."""
    (project.folder / "nbs" / "claims.csv").write_text("id,where,statement,chapter\n")
    (project.folder / "nbs" / "paper.csv").write_text("name,page,files,source,claim,data,finding\nFigure 3,01_one,faces,,,Faces,They look nice.\n")
    tail = "import os\nTAIL = '' if os.path.exists(os.environ.get('ROBUST_GENERAL_DATA', '') + '/faces') else '_free'"
    project.write("01_one.ipynb", IMPORT, tail, "save_table(f'faces{TAIL}', [{'x': 1}])")
    (tmp_path / "with" / "faces").mkdir(parents=True)
    tables = lambda: sorted(p.name for p in (project.folder / "figures").glob("faces*.json"))  # noqa: E731
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(tmp_path / "with"))
    assert project.run("reproduce")[0] == 0 and tables() == ["faces.json"]
    monkeypatch.delenv("ROBUST_GENERAL_DATA")
    status, said = project.run("reproduce", "fig3")
    assert status == 0 and "free stand-ins (Faces)" in said, said
    assert tables() == ["faces.json", "faces_free.json"]
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(tmp_path))  # data, but no faces
    assert project.run("reproduce", "--force")[0] == 0 and tables() == ["faces.json", "faces_free.json"]
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(tmp_path / "with"))
    assert project.run("reproduce", "--force")[0] == 0 and tables() == ["faces.json"]


def test_preset_decides_what_runs(project, monkeypatch):
    project.write("01_one.ipynb", IMPORT, "import os\nPRESET = os.environ.get('ROBUST_GENERAL_PRESET')", LOG.format("one"), "save_table('one', [{'x': PRESET}])")
    project.write("02_two.ipynb", IMPORT, LOG.format("two"), "save_table('two', [{'x': 1}])")
    assert project.run("reproduce", "--jobs", "1")[0] == 0
    monkeypatch.setenv("ROBUST_GENERAL_PRESET", "paper")
    assert project.run("reproduce", "--jobs", "1")[0] == 0
    assert ran(project) == ["one", "two", "one"]


def test_what_is_not_installed_is_left_out(project):
    project.write("01_one.ipynb", IMPORT, "def peer():\n    import no_such_package_at_all", "save_table('one', [{'x': 1}])")
    status, said = project.run("reproduce")
    assert status == 0 and "01_one: left out, needs no_such_package_at_all" in said


# Names, times and the plan, without running anything.


@pytest.mark.parametrize(
    "names, pages",
    [
        (["table3"], ["41_registration_experiment"]),
        (["figure6", "fig6", "Fig06"], ["51_clustering_experiment"]),
        (["tab4,fig5"], ["41_registration_experiment", "51_clustering_experiment"]),
        (["Table", "1"], ["63_vae_experiment"]),
        (["nbs/01_loss.ipynb"], ["01_loss"]),
        (["loss"], ["01_loss"]),
        (["tab_speed", "figures/fig07_weights.svg"], ["03_weights", "91_benchmarks"]),
        (["figure12"], ["63_vae_experiment"]),  # and not chapter 12, whose figures are called fig12_...
    ],
)
def test_names(names, pages):
    found = reproduce.resolve(names, reproduce.writers(), reproduce.read_manifest())
    assert [nb.stem for nb in found] == pages


def test_all_of_the_paper_can_be_named():
    every = reproduce.writers()
    for i in gallery.registry():
        assert [nb.stem for nb in reproduce.resolve([i.key], every, {})] == [i.page]


@pytest.mark.parametrize("name", ["table5", "figure0", "fig", "99_none", "tab_none"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match=f"{name} is neither .*table4, figure1, .*pages: 01_loss, "):
        reproduce.resolve([name], reproduce.writers(), reproduce.read_manifest())


def test_times_do_not_make_noise():
    assert reproduce.note_time({}, "plain", 12.345) == {"plain": 12}
    assert reproduce.note_time({"plain": 12}, "plain", 17) == {"plain": 12}  # hardly longer
    assert reproduce.note_time({"plain": 12}, "plain", 1) == {"plain": 12}  # something was kept in .cache
    assert reproduce.note_time({"plain": 12}, "plain", 123.4) == {"plain": 120}
    assert reproduce.note_time({"plain": 12}, "data", 3600.0) == {"data": 3600, "plain": 12}
    assert [reproduce.about(t) for t in (None, 3.2, 99, 150, 7200)] == ["unknown", "3 s", "99 s", "2 min", "2.0 h"]


def test_the_plan_adds_up():
    """Old records lack times; pages share the cores but for those that measure time."""
    every = {nb.stem: nb for nb in reproduce.writers()}
    todo = [every[n] for n in ("01_loss", "02_bounds", "03_weights", "91_benchmarks")]
    old = {nb.name: {"inputs": "", "without": [], "files": {}} for nb in todo}
    assert reproduce.total_time(todo, old, {"slow"}, 2) == (0, 4)
    assert "0 of 4 pages to run" in reproduce.plan(todo, [], old, {"slow"}, 2)
    new = {k: {**v, "seconds": {"plain": t}} for (k, v), t in zip(old.items(), (10, 20, 30, 40))}
    assert reproduce.total_time(todo, new, {"slow"}, 2) == (30 + 40, 0)
    assert reproduce.total_time(todo, new, {"slow"}, 1) == (60 + 40, 0)
    said = reproduce.plan(todo, todo, {**new, "01_loss.ipynb": old["01_loss.ipynb"]}, {"slow"}, 1)
    assert "4 of 4 pages to run, about 90 s with 1 at a time, not counting 1 whose time is unknown" in said
    assert [l.split()[0] for l in said.splitlines()[2:]] == [f"{nb.stem}:" for nb in todo] and "Figure 1" in said


def test_without_data_it_takes_at_most_twenty_minutes():
    """By the recorded times of this book, on two cores. One page needs open3d, which a clean checkout does not have."""
    pages = [nb for nb in reproduce.writers() if nb.stem != "91c_bench_registration"]
    seconds, unknown = reproduce.total_time(pages, reproduce.read_manifest(), {"slow"}, 2)
    assert seconds <= 20 * 60 and not unknown, reproduce.about(seconds)


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
    (package / "base.py").write_text("K = open('table.npy').read()\n")
    (package / "other.npy").write_bytes(b"1")
    before = book.inputs(nb)
    (package / "other.npy").write_bytes(b"2")
    assert book.inputs(nb) == before
    (package / "table.npy").write_bytes(b"1")
    assert book.inputs(nb) != before
    project.write("01_one.ipynb", "import scipy\nscipy.constants.pi")
    before = book.inputs(nb)
    monkeypatch.setattr(book, "_pins", lambda: {"scipy": "0.1", "torch": "0.1"})
    assert book.inputs(nb) != before


def test_inputs_are_not_what_only_raises(project, monkeypatch):
    """A better error or docstring, and what finds the error out, makes no figure stale; everything else that a module does, does."""
    package = project.folder / "robust_general"
    monkeypatch.setattr(book, "PACKAGE", package)
    (package / "__init__.py").write_text("")
    project.write("01_one.ipynb", "from robust_general.files import read\nread('a')")

    def hash_of(code):
        (package / "files.py").write_text(code)
        return book.inputs(project.folder / "nbs" / "01_one.ipynb")

    before = hash_of("import io\ndef read(path):\n    data = io.open(path).read()\n    return data\n")
    assert before == hash_of("""
'Reads files'
import io, zlib
from .sums import check  # used by nothing but what follows
def _damaged(path): return _sum(path) != check
def _sum(path): return zlib.crc32(path)
def read(path):
    "A file"
    if _damaged(path): raise ValueError(f"{path} is damaged")
    try:
        data = io.open(path).read()
    except OSError as e:
        raise ValueError(f"{path} cannot be read") from e
    return data
""")
    changed = [
        "import io\ndef read(path):\n    data = io.open(path).read(3)\n    return data\n",
        "import io\ndef read(path):\n    try: data = io.open(path).read()\n    except OSError: data = ''\n    return data\n",
        "import io\ndef read(path):\n    if path: raise ValueError\n    else: data = io.open(path).read()\n    return data\n",
        "import io\ndef read(path):\n    if not (path := path + 'b'): raise ValueError\n    data = io.open(path).read()\n    return data\n",
        "import gzip as io\ndef read(path):\n    data = io.open(path).read()\n    return data\n",
        "import io\ndef _cut(x): return x[1:]\ndef read(path):\n    data = io.open(path).read()\n    return _cut(data)\n",
        "import io\nio.open = open\ndef read(path):\n    data = io.open(path).read()\n    return data\n",
    ]
    assert len({before, *map(hash_of, changed)}) == 1 + len(changed)
