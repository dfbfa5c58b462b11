"""The paper's Figures 1-17 and Tables 1-4 with ours beside them: `python -m tools.gallery` prints the summary.

nbs/paper.csv says for each which page makes it, into which files, of which data, and what the paper finds. Whether ours
agrees is typed in nowhere: for a table a rule below compares the numbers of figures/*.json, for a figure it is the
verdict of the claim in the ledger.
"""
from __future__ import annotations

import csv
import json
import re
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from itertools import combinations
from pathlib import Path

from tools import ledger
from tools.book import FIGURES, NBS, ROOT, _pins, atomic_write, claim_anchor, page_name, read_cells

ASSETS = Path(__file__).parent / "assets"
MARK = "<!-- gallery -->"  # stands in nbs/92_gallery.ipynb where the plates go
VERDICTS = {
    "yes": "agrees",
    "partly": "agrees in part",
    "no": "disagrees",
    "open": "made, but too small to tell",
    "not run": "not run",
}


@dataclass(frozen=True)
class Item:
    name: str  # "Table 3"
    page: str  # The notebook that makes it, without suffix
    files: tuple[str, ...]  # Without suffix; a table may be made on several data sets
    source: str  # The table whose provenance is that of the figure; empty if it is made of nothing but the code
    claim: str  # In the ledger
    data: str  # What the paper's needs; empty if nothing
    finding: str  # What the paper shows or prints

    @property
    def key(self) -> str:
        return item_key(self.name)


@dataclass(frozen=True)
class Verdict:
    agrees: str  # A key of VERDICTS
    sentence: str
    grids: list = field(default_factory=list)  # Key numbers: tables, each a row of heads, then rows of text


@dataclass(frozen=True)
class Line:
    item: Item
    verdict: Verdict
    paths: list[Path]  # Files that exist
    provenance: str


def item_key(text: str) -> str:
    """Table 3, tab03 and table-3 are table3; text that is none of these comes back as it is."""
    m = re.fullmatch(r"(fig|tab)(?:ure|le)?[ ._-]*0*(\d+)", text.strip(), flags=re.I)
    return {"fig": "figure", "tab": "table"}[m[1].lower()] + m[2] if m else text


def registry() -> list[Item]:
    """What the paper has, in its order: tables, then figures."""
    if not (path := NBS / "paper.csv").exists():
        return []
    with open(path, newline="", encoding="utf-8") as f:
        return [Item(**{**r, "files": tuple(r["files"].split())}) for r in csv.DictReader(f)]


def spoken(items: list[Item]) -> str:
    """Table 1, Figures 3, 9-12."""
    said = []
    for kind in ("Table", "Figure"):
        numbers = [int(i.name.split()[1]) for i in items if i.name.startswith(kind)]
        runs = []
        for n in numbers:
            if runs and n == runs[-1][-1] + 1:
                runs[-1].append(n)
            else:
                runs.append([n])
        parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
        if parts:
            said.append(f"{kind}{'s' if len(numbers) > 1 else ''} {', '.join(parts)}")
    return ", ".join(said)


# Agreement of tables: each rule gets the rows of one file.


def load(name: str) -> dict | None:
    path = FIGURES / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def graded(right: int, of: int) -> str:
    """All: yes. Half or more: partly."""
    return "yes" if right == of else "partly" if 2 * right >= of else "no"


def _order(ours: dict, paper: dict, pairs) -> tuple[int, int, list]:
    """On how many pairs both agree which is larger, of how many, and the others. A tie of either says nothing."""
    told = [(a, b) for a, b in pairs if ours[a] != ours[b] and paper[a] != paper[b]]
    wrong = [(a, b) for a, b in told if (ours[a] > ours[b]) != (paper[a] > paper[b])]
    return len(told) - len(wrong), len(told), wrong


FAMILIES = ("Normal", "Cauchy", "t-dist.", "General")


def table1(rows: list[dict]) -> Verdict:
    """ELBOs of images of another size cannot be compared; their order can, within rows and within columns."""
    ours, paper = ({(r["representation"], f): r[f] for r in rows if r["source"].startswith(s) for f in FAMILIES} for s in ("here", "paper"))
    spaces = list(dict.fromkeys(r["representation"] for r in rows))
    pairs = [p for p in combinations(paper, 2) if p[0][0] == p[1][0] or p[0][1] == p[1][1]]
    right, of, wrong = _order(ours, paper, pairs)
    adaptive = [s for s in spaces if min(ours[s, f] for f in FAMILIES[2:]) > max(ours[s, f] for f in FAMILIES[:2])]
    sentence = f"Of {of} comparisons within a row or a column {right} come out as printed"
    sentence += "".join(f"; not: {a[1]} and {b[1]} over {a[0]}" if a[0] == b[0] else f"; not: {a[0]} and {b[0]} for {a[1]}" for a, b in wrong)
    sentence += f". Both adaptive distributions beat both fixed ones in {len(adaptive)} of {len(spaces)} representations."
    each = {(r["representation"], r["source"][:4]): r for r in rows}
    grid = [["ELBO per coefficient, ours (paper)", *FAMILIES]]
    grid += [[s, *(f"{each[s, 'here'][f'{f} / coefficient']:.3f} ({each[s, 'pape'][f'{f} / coefficient']:.3f})" for f in FAMILIES)] for s in spaces]
    return Verdict(graded(right, of), sentence, [grid])


def table2(rows: list[dict]) -> Verdict:
    """The order of the variants by average error, and by how much the adaptive loss lowers it."""
    rows = [r for r in rows if r.get("Avg") is not None and r.get("paper, Avg") is not None]
    ours, paper = ({r["variant"]: r[k] for r in rows} for k in ("Avg", "paper, Avg"))
    if not {"baseline", "adaptive"} <= set(ours) or len(ours) < 3:
        return Verdict("not run", f"only {', '.join(ours) or 'nothing'} has been trained")
    right, of, _ = _order(ours, paper, combinations(ours, 2))
    less = [1 - v["adaptive"] / v["baseline"] for v in (ours, paper)]
    best = min(ours, key=ours.get)
    sentence = (f"Of {of} comparisons of two losses {right} come out as printed; the best here is {best}. From the baseline to the adaptive loss "
                f"the average error {'falls' if less[0] > 0 else 'rises'} by {abs(less[0]):.1%}, in the paper it falls by {less[1]:.1%}.")
    agrees = graded(right, of)
    if less[0] <= 0 and agrees == "partly":  # the paper's point is that it falls
        agrees = "no"
    grid = [["average error", "ours", "paper"], *([v, f"{ours[v]:.3f}", f"{paper[v]:.3f}"] for v in ours)]
    return Verdict(agrees, sentence, [grid])


TOLERANCE3 = 0.05  # of the paper's number
TOLERANCE4 = 0.01  # of AMI


def table3(rows: list[dict]) -> Verdict:
    """Every number within 5% of the paper's, and of two methods the same one better in each column."""
    by = {(r["method"], r["which"]): r for r in rows}
    methods = list(dict.fromkeys(r["method"] for r in rows))
    columns = [c for c in rows[0] if c not in ("method", "which")]
    off = {(m, c): by[m, "ours"][c] / by[m, "paper"][c] - 1 for m in methods for c in columns}
    near = sum(abs(v) <= TOLERANCE3 for v in off.values())
    (m, c), worst = max(off.items(), key=lambda o: abs(o[1]))
    right, of, wrong = _order(*({(m, c): by[m, which][c] for m in methods for c in columns} for which in ("ours", "paper")),
                              [((a, c), (b, c)) for c in columns for a, b in combinations(methods, 2)])
    sentence = f"{near} of {len(off)} numbers are within {TOLERANCE3:.0%} of the paper's; the furthest, {m} at '{c}', is {abs(worst):.1%} {'above' if worst > 0 else 'below'}. "
    sentence += f"Of {of} comparisons of two methods {right} come out as printed" + "".join(f"; not: {a[0]} and {b[0]} at '{a[1]}'" for a, b in wrong) + "."
    grid = [["ours (paper)", *columns]]
    grid += [[m, *(f"{by[m, 'ours'][c]:.3f} ({by[m, 'paper'][c]:.3f})" for c in columns)] for m in methods]
    return Verdict(graded(near + right, len(off) + of), sentence, [grid])


def table4(rows: list[dict]) -> Verdict:
    """Yes if every AMI of RCC and of gRCC* is within .01 of the paper's, partly if half of those that were run are."""
    def number(v):
        return v if isinstance(v, (int, float)) else None

    found = {(r["data"], k): (number(r[k]), r[f"paper {k}"]) for r in rows for k in ("RCC", "gRCC*")}
    run = {k: v for k, v in found.items() if v[0] is not None}
    far = {k: v[0] - v[1] for k, v in run.items() if abs(v[0] - v[1]) > TOLERANCE4}
    near = len(run) - len(far)
    sentence = f"{near} of {len(found)} numbers are within {TOLERANCE4} of the paper's, {len(found) - len(run)} were not run"
    sentence += "".join(f"; {k} on {d} is {abs(v):.3f} {'above' if v > 0 else 'below'}" for (d, k), v in far.items()) + "."
    grid = [["AMI, ours (paper)", "RCC", "gRCC*"]]
    grid += [[r["data"], *(f"{o:.3f} ({p:.3f})" if o is not None else f"not run ({p:.3f})" for o, p in (found[r["data"], k] for k in ("RCC", "gRCC*")))] for r in rows]
    return Verdict("yes" if near == len(found) else "partly" if 2 * near >= len(run) else "no", sentence, [grid])


RULES = {"Table 1": table1, "Table 2": table2, "Table 3": table3, "Table 4": table4}


# Agreement of figures: the ledger's.

_FROM_LEDGER = {"true": "yes", "conditional": "partly", "false": "no", "needs-data": "open"}


def picture_verdict(item: Item, marks: dict[str, ledger.Mark]) -> Verdict:
    mark = marks.get(item.claim)
    if mark is None:
        return Verdict("open", f"No cell settles {item.claim} yet.")
    said = mark.sentence or f"Redrawn, and true as the ledger has it: {ledger.claims()[item.claim].statement}."
    return Verdict(_FROM_LEDGER[mark.verdict], said[0].upper() + said[1:])


# One line for each.


def provenance(item: Item, paths: list[Path], manifest: dict) -> str:
    """Data, preset, seeds and versions, from the tables that hold them."""
    said = []
    for name in [item.source] if item.source else [p.stem for p in paths if p.suffix == ".json"]:
        if table := load(name):
            p = table["provenance"]
            said.append("; ".join([str(p.get("data", "made here")), *(f"{k} {p[k]}" for k in ("preset", "seed", "seeds", "runs", "steps") if p.get(k) is not None),
                                   ", ".join(f"{k} {v}" for k, v in p.get("versions", {}).items())]))
    if said:
        return " | ".join(dict.fromkeys(said))
    if item.source or item.data:
        return ""
    pins = ", ".join(f"{k} {_pins()[k]}" for k in ("numpy", "scipy", "torch") if k in _pins())
    return "made here, of nothing but the code; " + (manifest.get(f"{item.page}.ipynb", {}).get("versions") or f"{pins} (pinned)")


def line(item: Item, marks: dict, manifest: dict) -> Line:
    paths = [p for f in item.files for s in ("json", "svg", "png") if (p := FIGURES / f"{f}.{s}").exists()]
    if not item.name.startswith("Table"):
        paths = [p for p in paths if p.suffix != ".json"]
    if not paths:
        need = f" on {item.data}" if item.data else ""
        return Line(item, Verdict("not run", f"{item.page} makes it{need}, and has not been run."), [], "")
    if rule := RULES.get(item.name):
        each = [(p.stem, rule(load(p.stem)["rows"])) for p in paths if p.suffix == ".json"]
        if len(each) == 1:
            verdict = each[0][1]
        else:  # one table on several data sets: as good as the worst of them, and all are told
            data = {n: load(n)["provenance"].get("data", n) for n, _ in each}
            worst = max((v.agrees for _, v in each), key=list(VERDICTS).index)
            verdict = Verdict(worst, " ".join(f"On {data[n]}: {v.sentence}" for n, v in each),
                              [[[f"{g[0][0]}, {data[n]}", *g[0][1:]], *g[1:]] for n, v in each for g in v.grids])
    else:
        verdict = picture_verdict(item, marks)
    return Line(item, verdict, paths, provenance(item, paths, manifest))


def report(items: list[Item] | None = None) -> list[Line]:
    marks = {m.id: m for m in ledger.marks()}
    path = FIGURES / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return [line(i, marks, manifest) for i in (registry() if items is None else items)]


def tally(lines: list[Line]) -> list[tuple[str, int]]:
    count = Counter(o.verdict.agrees for o in lines)
    return [(v, count[v]) for v in VERDICTS if count[v]]


def plain(text: str) -> str:
    """A sentence of the ledger for a terminal."""
    return re.sub(r"\\(alpha|rho|infty)\b", lambda m: {"alpha": "α", "rho": "ρ", "infty": "∞"}[m[1]], text).replace("$", "").replace("`", "")


def summary(lines: list[Line], width: int = 110) -> str:
    """For each figure and table: agreement, ours, the paper's, what it was made of."""
    out = [f"{len(lines)} figures and tables of the paper: " + ", ".join(f"{n} {v}" for v, n in tally(lines)) + "."]
    for o in lines:
        for k, (head, text) in enumerate(((o.verdict.agrees, o.verdict.sentence), ("paper", o.item.finding), ("of", o.provenance))):
            if text:
                first = f"{o.item.name if k == 0 else '':<10} {head:<8} "
                out.append(textwrap.fill(plain(text), width, initial_indent=first, subsequent_indent=" " * len(first)))
    return "\n".join(out)


# The page.


def anchor(item: Item) -> str:
    """The page that shows an item, and where on it: the figure's label, or the cell of the claim."""
    nb = NBS / f"{item.page}.ipynb"
    page = f"{page_name(nb)}.html"
    saves = re.compile(r"save_figure\(f?['\"](?:%s)\b" % "|".join(f"{re.escape(f)}(?=['\"{{])" for f in item.files))
    for c in read_cells(nb) if nb.exists() else []:
        if c.kind == "code" and saves.search(c.code) and (label := c.value("label")):
            return f"{page}#{label}"
    return f"{page}#{claim_anchor(item.claim)}" if item.claim else page


def cards(lines: list[Line], picture, link=lambda target: target) -> str:
    """The gallery as HTML; `picture` makes an image of a file's name and its description."""
    chips = "".join(f'<li class="agree-{v.replace(" ", "-")}"><strong>{n}</strong> {VERDICTS[v].replace("agrees", "agree")}</li>' for v, n in tally(lines))
    out = [f'<ul class="tally" aria-label="{len(lines)} figures and tables">{chips}</ul>']
    for o in lines:
        i, v = o.item, o.verdict
        target = escape(link(anchor(i)))
        images = "".join(f'<a class="plate-image" href="{target}">{picture(f"figures/{p.name}", f"{i.name}, ours")}</a>' for p in o.paths if p.suffix != ".json")
        facts = [("Ours", ledger.inline_html(v.sentence)), ("Paper", escape(i.finding, quote=False)), ("Made of", escape(o.provenance, quote=False))]
        told = "".join(f"<dt>{k}</dt><dd>{t}</dd>" for k, t in facts if t)
        out.append(
            f'<section class="plate agree-{v.agrees.replace(" ", "-")}" id="{i.key}">\n'
            f'<p class="plate-head"><a href="{target}">{i.name}</a> <span class="plate-verdict">{VERDICTS[v.agrees]}</span></p>\n'
            f"{images}{''.join(map(grid_html, v.grids))}<dl>{told}</dl>\n</section>"
        )
    return "\n\n".join(out)


def grid_html(grid: list) -> str:
    """Key numbers, ours beside the paper's."""
    heads, *rows = grid
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "".join(f'<tr><th scope="row">{escape(r[0])}</th>' + "".join(f"<td>{escape(c)}</td>" for c in r[1:]) + "</tr>" for r in rows)
    return f'<div class="plate-grid"><table class="grid"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def write_page(path: Path = ROOT / "build" / "gallery.html") -> Path:
    """The gallery as a page of its own, for who has not built the site; links go to it where it is built."""
    def picture(src: str, alt: str) -> str:
        return f'<img src="../{src}" alt="{escape(alt)}">'

    def link(target: str) -> str:
        name = target.partition("#")[0]
        if (ROOT / "_docs" / name).exists():
            return f"../_docs/{target}"
        return next((f"../nbs/{nb.name}" for nb in NBS.glob("*.ipynb") if f"{page_name(nb)}.html" == name), target)

    style = (ASSETS / "gallery.css").read_text(encoding="utf-8")
    own = """body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; }
ul.tally { display: flex; flex-wrap: wrap; gap: 0.6em; padding: 0; list-style: none; }
ul.tally li { padding: 0.3em 0.9em; border: 1px solid var(--verdict); border-radius: 0.6em; color: var(--verdict); }"""
    atomic_write(path, f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Gallery</title>'
                       f'<style>{own}\n{style}</style></head>\n<body class="md-typeset"><h1>The paper\'s figures and tables, and ours</h1>\n{cards(report(), picture, link)}\n</body></html>\n')
    return path


if __name__ == "__main__":
    print(summary(report()))
    print(f"\nThe same with pictures: {write_page().relative_to(ROOT)}")
