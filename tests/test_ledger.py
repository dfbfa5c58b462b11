"""Every statement of the paper that a written chapter owns is settled, by a cell that asserts something."""
import pytest
from conftest import notebook

from tools import book, ledger


def test_the_book():
    bad = ledger.problems()
    assert not bad, "\n".join(bad)


def test_the_list():
    claims = ledger.claims()
    assert len(claims) == 152
    assert all(c.where and c.statement and c.chapter.isdigit() for c in claims.values())


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


GOOD = "#| claim: E1 true\n#| claim: E2 false -- it is three\nassert True"


def test_good_marks(small):
    assert small(GOOD) == ""
    assert [(m.id, m.verdict, m.sentence) for m in ledger.marks()] == [("E1", "true", ""), ("E2", "false", "it is three")]
    assert ledger.marks()[1].link == "loss.html#claim-E2"


@pytest.mark.parametrize(
    "cells, said",
    [
        (["#| claim: E1 true\nassert True"], "E2 (S1: two) is not settled"),
        ([GOOD, "#| claim: E9 true\nassert True"], "E9 is not in claims.csv"),
        ([GOOD, "#| claim: E1 true\nassert True"], "E1 is marked 2 times"),
        ([GOOD.replace(" -- it is three", "")], "E2 is false without a sentence"),
        ([GOOD.replace("false", "wrong")], "unknown verdict 'wrong'"),
        ([GOOD.replace("assert True", "print('# no assertion')")], "asserts nothing"),
        ([GOOD, "#| claim: E3 true\nassert True"], "claims.csv gives it to chapter 02"),
        (["#| hide\n" + GOOD], "hidden or exported"),
    ],
)
def test_bad_marks(small, cells, said):
    assert said in small(*cells)


def test_unreadable_mark(small):
    with pytest.raises(ValueError, match="cannot read the mark 'E1'"):
        small("#| claim: E1\nassert True")


def test_page(small):
    small(GOOD)
    page = ledger.table()
    assert "<strong>1</strong> true</li>" in page and "<strong>1</strong> not settled yet" in page
    assert 'href="loss.html#claim-E2">false as printed</a>' in page
