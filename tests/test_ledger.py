"""Every statement of the paper is settled by a cell that asserts something, and the errata tell exactly the false ones."""
import csv
import re
from collections import Counter

import pytest
from conftest import notebook

from tools import book, ledger


def test_the_book():
    bad = ledger.problems()
    assert not bad, "\n".join(bad)


def test_the_list():
    claims = ledger.claims()
    with open(book.NBS / "claims.csv", newline="", encoding="utf-8") as f:
        assert len(list(csv.reader(f))) == 1 + 152  # a repeated id would vanish in the dictionary
    assert len(claims) == 152
    assert all(c.where and c.statement and c.chapter.isdigit() for c in claims.values())
    assert Counter(i[0] for i in claims) == {"E": 55, "P": 46, "N": 20, "T": 9, "F": 15, "X": 7}


def test_every_claim_has_a_verdict():
    """`problems` forgives the claims of a chapter that does not exist; by now all do."""
    assert {m.id for m in ledger.marks()} == set(ledger.claims())


# A small book.


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Problems of a book of one chapter that owes E1 and E2."""
    monkeypatch.setattr(book, "NBS", tmp_path)
    monkeypatch.setattr(ledger, "NBS", tmp_path)
    (tmp_path / "claims.csv").write_text("id,where,statement,chapter\nE1,S1,one,01\nE2,S1,two,01\nE3,S2,three,02\n")

    def problems(*cells: str) -> str:
        (tmp_path / "01_loss.ipynb").write_text(notebook(*cells))
        return "\n".join(ledger.problems())

    return problems


GOOD = "#| claim: E1 true\n#| claim: E2 false -- it is three\nassert f(1) == 3"


def test_good_marks(small):
    assert small(GOOD) == ""
    assert [(m.id, m.verdict, m.sentence) for m in ledger.marks()] == [("E1", "true", ""), ("E2", "false", "it is three")]
    assert ledger.marks()[1].link == "loss.html#claim-E2"


@pytest.mark.parametrize(
    "cells, said",
    [
        (["#| claim: E1 true\nassert x"], "E2 (S1: two) is not settled"),
        ([GOOD, "#| claim: E9 true\nassert x"], "E9 is not in claims.csv"),
        ([GOOD, "#| claim: E1 true\nassert x"], "E1 is marked 2 times"),
        ([GOOD.replace(" -- it is three", "")], "E2 is false without a sentence"),
        ([GOOD.replace("false", "wrong")], "unknown verdict 'wrong'"),
        ([GOOD.replace("assert f(1) == 3", "print('# no assertion')")], "asserts nothing"),
        ([GOOD, "#| claim: E3 true\nassert x"], "claims.csv gives it to chapter 02"),
        (["#| hide\n" + GOOD], "hidden or exported"),
        (["#| eval: false\n" + GOOD], "never runs"),
        (["#| slow\n" + GOOD], "neither make test nor make reproduce runs"),
    ],
)
def test_bad_marks(small, cells, said):
    assert said in small(*cells)


def test_unreadable_mark(small):
    with pytest.raises(ValueError, match="cannot read the mark 'E1'"):
        small("#| claim: E1\nassert x")


def test_reproduce_runs_slow_marks(small):
    assert small("#| slow\n" + GOOD, "save_table('tab_x', rows)") == ""


def test_page(small):
    small(GOOD)
    page = ledger.table()
    assert "<strong>1</strong> true</li>" in page and "<strong>1</strong> not settled yet" in page
    assert 'href="loss.html#claim-E2">false as printed</a>' in page


# What counts as an assertion.


@pytest.mark.parametrize(
    "code",
    [
        "assert x > 1",
        "for a in b:\n    if a:\n        assert f(a)",
        "with workdps(9): test_close(f(x), 1.)",
        "torch.testing.assert_close(a, b)",
        "[test_eq(f(o), o) for o in (1, 2)]",
        "test_fail(lambda: f(0), contains='zero')",
        "assert 0 <= x <= 0",
        "if 0: pass\nelse: assert x",
    ],
)
def test_assertions(code):
    assert ledger.asserts(code)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "x = 1  # assert x == 1",
        "'''\nassert x == 1\n'''",
        "print('assert x == 1')",
        "assert True",
        "assert 1 + 1 == 2",
        "assert x or True",
        "assert (x == 1, 'a tuple is true')",
        "assert f(x) == f(x)",
        "test_eq(1, 1)",
        "test_eq(f(x), f(x))",
        "test_size = f(3)",
        "def test_it(): assert x == 1",
        "if False: assert x == 1",
        "try: assert x == 1\nexcept AssertionError: pass",
        "try: assert x == 1\nexcept: pass",
        "with contextlib.suppress(Exception): assert x == 1",
        "%time assert x == 1",
    ],
)
def test_no_assertions(code):
    assert not ledger.asserts(code)


# The errata.

_LISTED = re.compile(r"\*\*(False as printed|True with a condition):\*\*((?:\s*\[[^\]]+\]\([^)]+\),?)+)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)#(claim-[^)]+)\)")


@pytest.fixture(scope="module")
def errata():
    return book.read_cells(book.NBS / "90a_errata.ipynb")


def listed(cells, kind):
    return [m for c in cells if c.kind == "markdown" for k, names in _LISTED.findall(c.source) if k == kind for m in _LINK.findall(names)]


def test_errata_tell_the_false_ones(errata):
    """All of them, once each, and no others; and what is said to hold with a condition does."""
    verdict = {m.id: m.verdict for m in ledger.marks()}
    false, conditional = (sorted(i for i, *_ in listed(errata, k)) for k in ("False as printed", "True with a condition"))
    assert false == sorted(i for i, v in verdict.items() if v == "false")
    assert len(set(conditional)) == len(conditional) and {verdict[i] for i in conditional} == {"conditional"}


def test_errata_count(errata):
    text = " ".join(c.source for c in errata if c.kind == "markdown")
    total, false = map(int, re.search(r"Of the (\d+) statements in the ledger (\d+) are false as printed", text).groups())
    assert (total, false) == (len(ledger.claims()), sum(m.verdict == "false" for m in ledger.marks()))


def test_errata_links(errata):
    """Every link to a claim leads to the cell that settles it."""
    home = {book.claim_anchor(m.id): m.notebook for m in ledger.marks()}
    links = [m for c in errata if c.kind == "markdown" for m in _LINK.findall(c.source)]
    assert links and [(i, nb) for i, nb, anchor in links if home.get(anchor) != nb] == []
    named = [(i, anchor) for k in ("False as printed", "True with a condition") for i, _, anchor in listed(errata, k)]
    assert [i for i, anchor in named if book.claim_anchor(i) != anchor] == []


def test_errata_demonstrate(errata):
    """Each section that calls something false has a cell of its own that asserts."""
    waiting = None
    for c in errata:
        if c.kind == "code":
            waiting = None if ledger.asserts(c.code) else waiting
            continue
        for part in re.split(r"(?m)^(?=#+ )", c.source):
            assert waiting is None or not part.startswith("#"), f"nothing is asserted about {waiting}"
            if "**False as printed:**" in part:
                waiting = part.splitlines()[0]
    assert waiting is None, f"nothing is asserted about {waiting}"
