"""Notebooks are the source: modules, README and navigation follow from them."""
import json
import re
import shutil

import pytest
import yaml

from tools import sync
from tools.book import NBS, notebooks, read_cells


def test_modules_notebooks_and_readme_agree():
    bad = sync.drift()
    assert not bad, "run `make notebooks`:\n" + "\n".join(bad)


@pytest.mark.parametrize("path, change", [
    ("robust_general/figures.py", lambda s: s.replace("def style(", "def styles(")),
    ("nbs/00_figures.ipynb", lambda s: s.replace('"execution_count": null', '"execution_count": 7')),
    ("README.md", lambda s: s + "\nedited by hand\n"),
])  # fmt: skip
def test_drift_is_seen(root, tmp_path, monkeypatch, path, change):
    for name in ("nbs", "robust_general"):
        shutil.copytree(root / name, tmp_path / name, symlinks=True)
    for name in ("settings.ini", "README.md"):
        shutil.copy(root / name, tmp_path)
    target = tmp_path / path
    target.write_text(change(target.read_text()))
    for name, value in (("ROOT", tmp_path), ("NBS", tmp_path / "nbs"), ("PACKAGE", tmp_path / "robust_general")):
        monkeypatch.setattr(sync, name, value)
    assert path in sync.drift()


def test_a_stored_table_is_the_recorded_one(tmp_path, monkeypatch):
    """Whether the cell makes it or reads it; a table that is not there stays as it is."""
    monkeypatch.setattr(sync, "FIGURES", tmp_path)
    (tmp_path / "tab_x.md").write_text("| a |\n| --- |\n| 2 |\n\nseeds: 1\n")
    old, new = ["| a |\n", "| --- |\n", "| 1 |"], ["| a |\n", "| --- |\n", "| 2 |"]

    def cell(*lines):
        output = {"output_type": "execute_result", "data": {"text/markdown": old, "text/plain": ["Table"]}, "metadata": {}, "execution_count": None}
        return {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "source": [*lines], "outputs": [output]}

    saved = ["#| slow\n", "save_table('tab_x', rows)"]
    book = {"cells": [cell(*saved), cell(*saved[1:]), cell("#| slow\n", "save_table(f'tab_x{TAIL}', rows)"), cell("load_table('tab_x')"), cell("#| data\n", "save_table('tab_y', rows)")]}
    path = tmp_path / "01_one.ipynb"
    path.write_text(json.dumps(book))
    sync.show_recorded(tmp_path)
    assert [c["outputs"][0]["data"]["text/markdown"] for c in json.loads(path.read_text())["cells"]] == [new, new, new, new, old]


def test_sidebar_lists_every_notebook(root):
    text = (root / "_quarto.yml").read_text()
    listed = re.findall(r"[\w.-]+\.ipynb", str(yaml.safe_load(text)["website"]["sidebar"]))
    assert sorted(listed) == sorted(p.name for p in notebooks())


@pytest.mark.parametrize("nb", notebooks(), ids=lambda p: p.name)
def test_stored_outputs_are_presentable(nb):
    assert nb.stat().st_size < 1_000_000
    for cell in json.loads(nb.read_text())["cells"]:
        for o in cell.get("outputs", []):
            assert o["output_type"] != "error" and o.get("name") != "stderr", o
            text = json.dumps({k: v for k, v in o.items() if k != "data"}) + json.dumps(
                {k: v for k, v in o.get("data", {}).items() if k.startswith("text")})
            assert not re.search(r"/(home|root|tmp|Users)/|site-packages|0x[0-9a-f]{8}", text), text


@pytest.mark.parametrize("nb", notebooks(), ids=lambda p: p.name)
def test_figures_and_tables_are_stored(nb):
    """The site shows what notebooks store, without running them."""
    for c in read_cells(nb):
        if c.kind == "code" and not c.has("slow", "gpu", "data") and (c.has("fig-cap") or re.search(r"^save_(figure|table)\(", c.code, re.M)):
            assert c.outputs, f"{nb.name} has a figure or table without its output; run `make notebooks`:\n{c.source}"


def test_links_between_notebooks_lead_somewhere():
    for nb in notebooks():
        for target in re.findall(r"\]\(([\w./-]+\.(?:ipynb|md))", nb.read_text()):
            assert (NBS / target).exists(), f"{nb.name} links to {target}"


def test_every_notebook_opens_with_title_and_claim():
    for nb in NBS.glob("[0-9]*.ipynb"):
        first = json.loads(nb.read_text())["cells"][0]
        assert re.match(r"# .+\n\n?> .+", "".join(first["source"])), nb.name
