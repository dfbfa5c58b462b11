"""The ledger: which statements of the paper are settled, how, and in which cell.

nbs/claims.csv lists the statements as printed. A cell settles one by a line at its top:

    #| claim: E3 true
    #| claim: E12 false -- it decreases between ...; the printed inequality holds for ...
    #| claim: E4 conditional -- only if ...
    #| claim: X1 needs-data -- the trained models of ...

The last three must carry their sentence, and the cell must assert something that could fail, and be run by somebody.
"""
from __future__ import annotations

import ast
import csv
import re
import sys
from collections import Counter
from dataclasses import dataclass
from html import escape

from tools.book import NBS, Cell, claim_anchor, notebooks, page_name, read_cells

VERDICTS = {
    "true": "true",
    "conditional": "true with a condition",
    "false": "false as printed",
    "needs-data": "needs data",
}
_MARK = re.compile(r"(?P<id>\S+)\s+(?P<verdict>\S+)(?:\s+--\s+(?P<sentence>.+))?")
_FLAGS = ("slow", "gpu", "data")  # of cells that `make test` leaves to `make reproduce`


@dataclass(frozen=True)
class Claim:
    id: str
    where: str
    statement: str
    chapter: str


@dataclass(frozen=True)
class Mark:
    id: str
    verdict: str
    sentence: str
    notebook: str
    cell: Cell

    @property
    def link(self) -> str:
        return f"{page_name(NBS / self.notebook)}.html#{claim_anchor(self.id)}"


def claims() -> dict[str, Claim]:
    with open(NBS / "claims.csv", newline="", encoding="utf-8") as f:
        return {r["id"]: Claim(**r) for r in csv.DictReader(f)}


def parse_mark(text: str, notebook: str, cell: Cell) -> Mark:
    """What follows `#| claim:`."""
    if not (m := _MARK.fullmatch(text)):
        raise ValueError(f"{notebook}: cannot read the mark {text!r}; write `#| claim: E1 true` or `... false -- why`")
    return Mark(m["id"], m["verdict"], m["sentence"] or "", notebook, cell)


def cell_marks(cell: Cell, notebook: str) -> list[Mark]:
    return [parse_mark(v, notebook, cell) for n, v in cell.directives if n == "claim"]


def marks() -> list[Mark]:
    """Every mark of the book, in its order."""
    return [m for nb in notebooks() for c in read_cells(nb) for m in cell_marks(c, nb.name)]


# Does a cell assert anything? By its syntax: the word `assert` in a comment or a string settles nothing.


def _name(f: ast.expr) -> str:
    """Last part of what is called: `assert_close` of torch.testing.assert_close."""
    return f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""


def _depends(node: ast.AST) -> bool:
    """Is anything named or called here, so that the value is not written down already?"""
    return any(isinstance(n, ast.Name | ast.Call) for n in ast.walk(node))


def _can_fail(test: ast.expr) -> bool:
    """Could the condition of an `assert` be false?"""
    if isinstance(test, ast.Tuple | ast.List | ast.Dict | ast.Lambda | ast.JoinedStr):  # assert (x, "message") never fails
        return False
    if isinstance(test, ast.BoolOp):  # x or True; True and True
        return (all if isinstance(test.op, ast.Or) else any)(map(_can_fail, test.values))
    if isinstance(test, ast.Compare) and [ast.dump(test.left)] == [ast.dump(c) for c in test.comparators]:  # x == x
        return False
    return _depends(test)


def _checks(call: ast.Call) -> bool:
    """Is this test_eq(...), assert_close(...) or the like, of two different things?"""
    args = [*call.args, *(k.value for k in call.keywords)]
    return (
        _name(call.func).startswith(("test_", "assert_"))
        and any(map(_depends, args))
        and (len(call.args) < 2 or ast.dump(call.args[0]) != ast.dump(call.args[1]))
    )


def _swallows(node: ast.AST) -> bool:
    """A `try` that catches everything, or a `with suppress(...)`: what fails inside is not heard."""
    if isinstance(node, ast.Try):
        caught = [n for h in node.handlers for n in ([h.type] if h.type else [ast.Name("Exception")])]
        return any(_name(n) in ("Exception", "BaseException", "AssertionError") for c in caught for n in ast.walk(c))
    return isinstance(node, ast.With) and any(
        isinstance(i.context_expr, ast.Call) and _name(i.context_expr.func) == "suppress" for i in node.items
    )


def _asserting(node: ast.AST) -> bool:
    """Does running this check something? A function that is only defined here does not run."""
    if isinstance(node, ast.Assert):
        return _can_fail(node.test)
    if isinstance(node, ast.Call) and _checks(node):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda) or _swallows(node):
        return False
    if isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Constant) and not node.test.value:
        return any(map(_asserting, node.orelse))
    return any(map(_asserting, ast.iter_child_nodes(node)))


def asserts(code: str) -> bool:
    """Does this cell assert something that could fail?"""
    try:
        return _asserting(ast.parse(code))
    except SyntaxError:  # a magic line
        return False


def problems() -> list[str]:
    """Everything wrong with the ledger, a sentence each."""
    from tools.reproduce import writers  # imports much, and the site needs none of it

    known, found, bad = claims(), marks(), []
    reproduced = {nb.name for nb in writers()}
    for m in found:
        at = f"{m.notebook}: {m.id}"
        if m.id not in known:
            bad.append(f"{at} is not in claims.csv")
        elif not m.notebook.startswith(known[m.id].chapter + "_"):
            bad.append(f"{at} is marked here, but claims.csv gives it to chapter {known[m.id].chapter}")
        if m.verdict not in VERDICTS:
            bad.append(f"{at} has the unknown verdict {m.verdict!r}; use one of {', '.join(VERDICTS)}")
        elif m.verdict != "true" and not m.sentence:
            bad.append(f"{at} is {m.verdict} without a sentence after ` -- `")
        if not asserts(m.cell.code):
            bad.append(f"{at} is marked in a cell that asserts nothing, or nothing that could fail")
        if (m.cell.value("eval") or "").lower() == "false":
            bad.append(f"{at} is marked in a cell that never runs")
        if m.cell.has(*_FLAGS) and m.notebook not in reproduced:
            bad.append(f"{at} is marked in a cell that neither make test nor make reproduce runs")
        if m.cell.has("hide", "export", "exports", "exporti"):
            bad.append(f"{at} is marked in a hidden or exported cell, which the site does not show")
    bad += [f"{i} is marked {n} times" for i, n in Counter(m.id for m in found).items() if n > 1]
    written, settled = {nb.name.split("_")[0] for nb in notebooks()}, {m.id for m in found}
    bad += [
        f"{c.id} ({c.where}: {c.statement}) is not settled, though chapter {c.chapter} exists"
        for c in known.values()
        if c.chapter in written and c.id not in settled
    ]
    return bad


# The page.


def inline_html(text: str) -> str:
    """Plain text with `code` and $math$ as HTML that no Markdown parser touches."""
    text = escape(text, quote=False)
    text = re.sub(r"\$([^$]+)\$", r'<span class="arithmatex">\\(\1\\)</span>', text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def statement_html(text: str) -> str:
    """A statement of claims.csv, its ^{...} and _{...} raised and lowered."""
    text = re.sub(r"\^\{([^}]*)\}", r"<sup>\1</sup>", escape(text, quote=False))
    return re.sub(r"_\{([^}]*)\}", r"<sub>\1</sub>", text)


def badge(mark: Mark) -> str:
    """What stands above the cell that settles a claim."""
    claim = claims()[mark.id]
    note = f'<span class="claim-note">{inline_html(mark.sentence)}</span>' if mark.sentence else ""
    return (
        f'<div class="claim claim-{mark.verdict}" id="{claim_anchor(mark.id)}">'
        f'<a class="claim-id" href="ledger.html#{claim_anchor(mark.id)}">{mark.id}</a> '
        f'<span class="claim-verdict">{VERDICTS[mark.verdict]}</span> '
        f'<span class="claim-text">{escape(claim.where)}: {statement_html(claim.statement)}</span>{note}</div>'
    )


def table() -> str:
    """The ledger as HTML: counts, then one row per claim."""
    settled = {m.id: m for m in marks()}
    count = Counter(m.verdict for m in settled.values())
    total = len(claims())
    tally = [(v, label, count[v]) for v, label in VERDICTS.items()]
    if left := total - len(settled):
        tally.append(("open", "not settled yet", left))
    chips = "".join(f'<li class="claim-{v}"><strong>{n}</strong> {label}</li>' for v, label, n in tally)
    rows = []
    for c in claims().values():
        if m := settled.get(c.id):
            verdict = f'<a href="{m.link}">{VERDICTS[m.verdict]}</a>'
            note, kind = inline_html(m.sentence), m.verdict
        else:
            verdict, note, kind = "open", f"chapter {c.chapter}, not written yet", "open"
        rows.append(
            f'<tr class="claim-{kind}" id="{claim_anchor(c.id)}"><td>{c.id}</td><td>{escape(c.where)}</td>'
            f"<td>{statement_html(c.statement)}</td><td>{verdict}</td><td>{note}</td></tr>"
        )
    head = "".join(f"<th>{h}</th>" for h in ("Claim", "Where", "As printed", "Verdict", "Remark"))
    return (
        f'<ul class="tally" aria-label="{total} claims"><li class="claim-open"><strong>{total}</strong> claims</li>{chips}</ul>\n\n'
        f'<table class="ledger">\n<thead><tr>{head}</tr></thead>\n<tbody>\n' + "\n".join(rows) + "\n</tbody>\n</table>"
    )


if __name__ == "__main__":
    if bad := problems():
        sys.exit("\n".join(bad))
    print(f"{len(marks())} of {len(claims())} claims settled")
