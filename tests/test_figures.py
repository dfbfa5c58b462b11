"""Committed figures and tables are those that the present code makes."""
import re

from tools import reproduce
from tools.book import FIGURES, notebooks, read_cells


def test_none_is_stale():
    bad = reproduce.stale(reproduce.read_manifest())
    assert not bad, "run `make reproduce`:\n" + "\n".join(bad)


def test_referenced_figures_exist():
    for nb in notebooks():
        for c in read_cells(nb):
            if c.kind == "markdown":
                for name in re.findall(r"\bfigures/([\w.-]+\.(?:svg|png))", c.source):
                    assert (FIGURES / name).exists(), f"{nb.name} shows figures/{name}, which does not exist"


def test_nothing_is_large():
    for p in FIGURES.iterdir():
        assert p.stat().st_size < 1_000_000, p.name
