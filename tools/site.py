"""Build the documentation site into _docs/: `python -m tools.site`.

notebooks --nbdev--> _proc/ (API docs made, hidden cells gone) --here--> Markdown --Zensical--> HTML.
Nothing is built if nothing changed. The navigation is the sidebar of _quarto.yml.
"""
from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from dataclasses import dataclass, field
from html import escape, unescape
from importlib.metadata import files
from itertools import groupby
from pathlib import Path

import yaml

from tools import api, explore, gallery
from tools.book import CACHE, FIGURES, NBS, PACKAGE, ROOT, Cell, atomic_write, contents, digest, notebooks, page_name, parse_cell
from tools.ledger import badge, cell_marks, table

SITE, PROC, WORK = ROOT / "_docs", ROOT / "_proc", CACHE / "site"
ASSETS = Path(__file__).parent / "assets"
FILLED = {  # marks that stand in a notebook where the site has HTML of its own
    "<!-- ledger -->": table,
    explore.MARK: explore.panel,
    **api.filled(),
    gallery.MARK: lambda: gallery.cards(gallery.report(), lambda src, alt: picture(src, alt, WORK / "docs")),
}

_FENCE = re.compile(r"^( *)(```+|~~~+)", re.M)
_DISPLAY = re.compile(r"^[ ]{0,3}\$\$(.+?)\$\$[ \t]*(?:\{#(eq-[\w-]+)\})?", re.M | re.S)
_REF = re.compile(r"(?<![\w`\\])@((?:eq|fig|tbl)-[\w-]*\w)")
_NOUN = {"eq": "Eq.", "fig": "Figure", "tbl": "Table"}


@dataclass
class Page:
    name: str  # "loss", of loss.html
    title: str
    lead: str
    chapter: str  # "1", of equation (1.2); empty for pages without a number
    cells: list[Cell]
    labels: dict[str, str] = field(default_factory=dict)  # eq-grad -> (1.2)
    images: int = 0


# Reading.


def process() -> None:
    """nbdev's processed notebooks in _proc/, again only where something changed."""
    import nbdev.serve

    from tools.showdoc import Pages

    nbdev.serve.FilterDefaults = Pages
    shared = contents(PACKAGE, ROOT / "settings.ini", ROOT / "constraints.txt", Path(__file__).parent / "showdoc.py")
    todo = {}
    for nb in notebooks():
        key, stamp = digest(shared, nb.read_bytes()), CACHE / "proc" / nb.name
        if not stamp.exists() or stamp.read_text() != key:
            (PROC / nb.name).unlink(missing_ok=True)
            todo[stamp] = key
    nbdev.serve.proc_nbs(n_workers=2)
    for stamp, key in todo.items():
        atomic_write(stamp, key)
    for p in PROC.glob("*.ipynb"):
        if not (NBS / p.name).exists():
            p.unlink()


def read_page(nb: Path) -> Page:
    """A processed notebook; nbdev has made its title cell into YAML."""
    raw = json.loads((PROC / nb.name).read_text(encoding="utf-8"))["cells"]
    head = {}
    if raw and raw[0]["cell_type"] == "raw":
        head = yaml.safe_load("".join(raw.pop(0)["source"]).strip().strip("-")) or {}
    defined = {n: i for i, n in enumerate(re.findall(r"\b(?:def|class) (\w+)", nb.read_text(encoding="utf-8")))}
    chapter = m[1].lstrip("0") or "0" if (m := re.match(r"(\d+)_", nb.name)) else ""
    return Page(page_name(nb), head.get("title", nb.stem), head.get("description", ""), chapter,
                in_order([parse_cell(c) for c in raw], defined))


def in_order(cells: list[Cell], defined: dict[str, int]) -> list[Cell]:
    """nbdev documents the names of one cell last to first; put them as they are defined."""
    def rank(cell: Cell) -> int:
        m = re.match(r"show_doc\((\w+)", cell.code)
        return defined.get(m[1], 0) if m else -1

    runs = [list(g) for _, g in groupby(cells, key=lambda c: rank(c) >= 0)]
    return [c for run in runs for c in sorted(run, key=rank)]


def outside_code(text: str, change) -> str:
    """Apply `change` to Markdown, but not inside fenced code."""
    parts, start, fence = [], 0, None
    for m in _FENCE.finditer(text):
        if fence is None:
            parts.append(change(text[start : m.start()]))
            start, fence = m.start(), m[2]
        elif m[2].startswith(fence):
            end = text.find("\n", m.end())
            end = len(text) if end < 0 else end
            parts.append(_unlink(text[start:end]))
            start, fence = end, None
    rest = text[start:]
    return "".join(parts) + (change(rest) if fence is None else rest)


# Labels: equations and figures are numbered by chapter, so that a reference from another page is unambiguous.


def number(page: Page) -> None:
    count = dict.fromkeys(_NOUN, 0)

    def add(label: str) -> None:
        kind = label.partition("-")[0]
        count[kind] += 1
        if label in page.labels:
            sys.exit(f"{page.name}: the label {label} is used twice")
        page.labels[label] = f"{page.chapter}.{count[kind]}" if page.chapter else str(count[kind])

    for c in page.cells:
        if c.kind == "markdown":
            outside_code(c.source, lambda t: [add(m[2]) for m in _DISPLAY.finditer(t) if m[2]] and "" or "")
        elif (label := c.value("label")) and label.partition("-")[0] in _NOUN:
            add(label)


# Markdown.


def host() -> str:
    from nbdev.config import get_config

    cfg = get_config()
    return f"{cfg.doc_host}/{cfg.doc_baseurl.strip('/')}/"


def _unlink(text: str) -> str:
    """Names that nbdev linked where a link has no place: in code and in headings."""
    return re.sub(rf"\[(`[^`]+`)\]\({re.escape(host())}[^)]*\)", r"\1", text)


def _equation(page: Page):
    def change(m: re.Match) -> str:
        body, label = m[1].strip(), m[2]
        tag = rf" \tag{{{page.labels[label]}}}" if label else ""
        anchor = f' id="{label}"' if label else ""
        return f'\n\n<div class="arithmatex"{anchor}>\\[{escape(body, quote=False)}{tag}\\]</div>\n\n'

    return change


def _reference(page: Page, book: dict[str, Page]):
    def change(m: re.Match) -> str:
        label = m[1]
        for other in [page, *book.values()]:
            if n := other.labels.get(label):
                noun = _NOUN[label.partition("-")[0]]
                shown = f"{noun} ({n})" if noun == "Eq." else f"{noun} {n}"
                return f"[{shown}]({'' if other is page else other.name + '.md'}#{label})"
        print(f"{page.name}: nothing is labelled {label}", file=sys.stderr)
        return m[0]

    return change


def _link(page: Page, book: dict[str, Page]):
    """Links to notebooks and to nbdev's web addresses become links to pages of this site."""
    pages = {**{f"{p.name}.html": p.name for p in book.values()}, **{nb.name: page_name(nb) for nb in notebooks()}}

    def change(m: re.Match) -> str:
        text, target, anchor = m[1], m[2].removeprefix(host()), m[3] or ""
        if (name := pages.get(target)) is None:
            if target.endswith(".ipynb"):
                print(f"{page.name}: links to {target}, which does not exist", file=sys.stderr)
            # Files beside the notebooks' folder are not part of the site.
            return text if m[2].startswith((host(), "../")) or target.endswith(".ipynb") else m[0]
        if name in book and m[2].startswith(host()) and anchor[1:] not in api_names(book[name]):
            return text  # a private name, or one whose page does not show it
        return f"[{text}]({name}.md{anchor})"

    return change


def api_names(page: Page) -> set[str]:
    """Anchors of the names a page documents."""
    found = set()
    for c in page.cells:
        for o in c.outputs:
            found.update(re.findall(r"\{ #(\S+) \.api \}", "".join(o.get("data", {}).get("text/markdown", []))))
    return found


def _lists(text: str) -> str:
    """Python-Markdown wants an empty line before a list and four spaces per level; people write neither."""
    out, prev = [], ""
    for line in text.split("\n"):
        item = re.match(r"( *)([-*+]|\d+[.)])\s", line)
        if item and prev.strip() and not re.match(r"\s*([-*+]|\d+[.)])\s|\s{2,}", prev):
            out.append("")
        if (indent := len(line) - len(line.lstrip(" "))) in (2, 3) and line.strip():
            line = "    " + line[indent:]
        out.append(line)
        prev = line
    return "\n".join(out)


def _inline_math(text: str) -> str:
    """Signs inside $...$ that Markdown would take for its own: < opens a tag, a bar ends the cell of a table."""
    def change(m: re.Match) -> str:
        if m[1] is None:  # code in backticks
            return m[0]
        f = m[1].replace("<", r"\lt ")
        if m.string[m.string.rfind("\n", 0, m.start()) + 1 :].lstrip().startswith("|"):
            f = f.replace(r"\|", r"{\Vert}").replace("|", r"{\vert}")
        return f"${f}$"

    # Nor may a number in a table be broken at its minus: 1e-9.
    text = re.sub(r"^\|.*$", lambda m: re.sub(r"(?<=\d)e-(?=\d)", "e\u2212", m[0]), text, flags=re.M)
    return re.sub(r"`[^`\n]*`|(?<![\\$])\$(?![\s$])([^$]+?)(?<![\s\\])\$(?!\d)", change, text)


def markdown(text: str, page: Page, book: dict[str, Page]) -> str:
    """Prose of a notebook as Zensical reads it."""
    def change(t: str) -> str:
        t = re.sub(r"^#+ .*$", lambda m: _unlink(m[0]), t, flags=re.M)
        t = re.sub(r"!\[([^\]]*)\]\((figures/[\w.-]+)\)", lambda m: picture(m[2], escape(m[1]), WORK / "docs"), t)
        t = re.sub(r"(?<!!)\[((?:[^\[\]\\]|\\.)*)\]\(([^)\s#]*)(#[^)\s]*)?\)", _link(page, book), t)
        t = _DISPLAY.sub(_equation(page), t)
        t = _REF.sub(_reference(page, book), t)
        return _inline_math(_lists(t))

    text = outside_code(text, change)
    for mark, html in FILLED.items():
        if mark in text:
            text = text.replace(mark, html())
    return text


# Figures.

# The colours of robust_general.figures.style, and what they become on a dark page.
_DARK = {
    "#ffffff": "#14161a", "#222222": "#d8d8d8", "#e4e4e4": "#2e3138", "#000000": "#f4f4f4", "white": "#14161a",
    "#0072b2": "#4db1e8", "#e69f00": "#f0b432", "#009e73": "#2cc49a", "#cc79a7": "#e294c0", "#56b4e9": "#8fd0f7", "#d55e00": "#ff8540",
}


def _on_dark(colour: str) -> str:
    """What a colour becomes: its partner above, or, if it would drown, itself with some white."""
    if colour in _DARK:
        return _DARK[colour]
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    if 0.21 * rgb[0] + 0.72 * rgb[1] + 0.07 * rgb[2] > 75:
        return colour
    return "#" + "".join(f"{round(v + 0.4 * (255 - v)):02x}" for v in rgb)


def dark(svg: str) -> str:
    """A figure of the book, for a dark page."""
    return re.sub(r"#[0-9a-f]{6}\b|\bwhite\b", lambda m: _on_dark(m[0]), svg)


def picture(src: str, alt: str, out: Path) -> str:
    """An image that follows the page's light or dark; photographs stay as they are."""
    if not src.endswith(".svg") or not (out / src).exists():
        return f'<img src="{src}" alt="{alt}">'
    night, svg = src.removesuffix(".svg") + ".dark.svg", (out / src).read_text(encoding="utf-8")
    (out / night).write_text(dark(svg), encoding="utf-8")
    size = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', svg)
    wide = " wide" if size and float(size[1]) > 2 * float(size[2]) else ""  # panels side by side
    return f'<span class="picture{wide}"><img class="by-day" src="{src}" alt="{alt}"><img class="by-night" src="{night}" alt="{alt}"></span>'


# Code and what it shows.


def _image(data: str | bytes, suffix: str, page: Page, out: Path) -> str:
    page.images += 1
    path = out / "images" / f"{page.name}-{page.images}.{suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return f"images/{path.name}"


def _yaml(value: str | None) -> str:
    """The value of a directive: as written, or a quoted YAML string."""
    return yaml.safe_load(value) if value and value[0] in "\"'" else value or ""


def _figure(src: str, cell: Cell, page: Page, book: dict[str, Page], out: Path) -> str:
    caption, label = _yaml(cell.value("fig-cap")), cell.value("label") or ""
    alt = escape(cell.value("fig-alt") or re.sub(r"[`$*\\]", "", caption) or "Figure")
    anchor = f' id="{label}"' if label in page.labels else ""
    number = f"**Figure {page.labels[label]}.** " if label in page.labels else ""
    text = f"\n<figcaption markdown>{number}{markdown(caption, page, book)}</figcaption>" if caption else ""
    return f'<figure markdown="block"{anchor}>\n{picture(src, alt, out)}{text}\n</figure>'


def _fenced(text: str, lang: str) -> str:
    fence = "`" * max(3, 1 + max((len(m) for m in re.findall(r"`+", text)), default=0))
    return f"{fence}{lang}\n{text.rstrip()}\n{fence}"


def output(o: dict, cell: Cell, page: Page, book: dict[str, Page], out: Path) -> str:
    """One output of a cell, in the best form it has."""
    data = {k: v if isinstance(v, str) else "".join(v) for k, v in o.get("data", {}).items()}
    if "text" in o:
        text = "".join(o["text"])
        return markdown(text, page, book) if cell.value("output") == "asis" else _fenced(text, "{ .text .output }")
    if "text/markdown" in data:
        return markdown(data["text/markdown"], page, book)
    if "image/svg+xml" in data:
        return _figure(_image(data["image/svg+xml"], "svg", page, out), cell, page, book, out)
    if "image/png" in data:
        return _figure(_image(base64.b64decode(data["image/png"]), "png", page, out), cell, page, book, out)
    if "text/latex" in data:
        body = data["text/latex"].strip().strip("$").replace(r"\displaystyle", "").strip()
        return f'<div class="arithmatex">\\[{escape(body, quote=False)}\\]</div>'
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "text/plain" in data:
        return _fenced(data["text/plain"], "{ .text .output }")
    return ""


def code(cell: Cell, page: Page, book: dict[str, Page], out: Path) -> list[str]:
    """A code cell: the claims it settles, its code, its outputs."""
    if cell.value("include") == "false":
        return []
    parts = [badge(m) for m in cell_marks(cell, page.name)]
    text = cell.code.strip()
    if text and cell.value("echo") != "false":
        shown = _fenced(text, "python")
        if cell.value("code-fold") not in (None, "false"):
            title = _yaml(cell.value("code-summary")) or "Code"
            shown = f'??? quote "{title}"\n' + re.sub("^", "    ", shown, flags=re.M)
        parts.append(shown)
    if cell.value("output") != "false":
        parts += [output(o, cell, page, book, out) for o in cell.outputs]
    return parts


def render(page: Page, book: dict[str, Page], out: Path) -> str:
    """A whole page of Markdown."""
    parts = [f"# {page.title}"]
    if page.lead:
        parts.append(f'<p class="lead">{escape(page.lead, quote=False)}</p>')
    for c in page.cells:
        if c.kind == "markdown":
            if "WARNING: THIS FILE WAS AUTOGENERATED" not in c.source:
                parts.append(markdown(c.source, page, book))
        elif c.kind == "code":
            parts += code(c, page, book, out)
    text = "\n\n".join(p for p in parts if p) + "\n"
    return f"---\nhide: [toc]\n---\n\n{text}" if 'class="screen"' in text else text  # that takes the whole width


# The site.


def navigation(book: dict[str, Page]) -> list:
    """The sidebar of _quarto.yml as Zensical's nav; chapters not written yet are left out."""
    by_file = {nb.name: book[page_name(nb)] for nb in notebooks()}

    def entry(o) -> dict | None:
        o = {"href": o} if isinstance(o, str) else o
        if "section" in o:
            inside = [e for e in map(entry, o["contents"]) if e]
            return {o["section"]: inside} if inside else None
        page = by_file.get(o["href"])
        return {o.get("text", page.title): f"{page.name}.md"} if page else None

    sidebar = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))["website"]["sidebar"]["contents"]
    return [e for e in map(entry, sidebar) if e]


def config(nav: list) -> dict:
    from nbdev.config import get_config

    def scheme(name: str, icon: str, other: str) -> dict:
        return {"scheme": name, "media": f"(prefers-color-scheme: {'dark' if name == 'slate' else 'light'})",
                "toggle": {"icon": f"lucide/{icon}", "name": f"Switch to {other}"}}

    return {
        "site_name": "robust_general",
        "site_description": get_config().description,
        "docs_dir": "docs",
        "site_dir": "out",
        "use_directory_urls": False,
        "nav": nav,
        "theme": {
            "name": "material",
            "font": False,  # a font would be fetched from elsewhere
            "features": ["navigation.footer", "navigation.sections", "navigation.top", "toc.follow",
                         "content.code.copy", "search.highlight"],
            "palette": [scheme("default", "sun", "dark mode"), scheme("slate", "moon", "light mode")],
        },
        "plugins": ["search", "offline"],
        "extra": {"generator": False, "polyfills": ["assets/iframe-worker.js"]},
        "extra_css": ["assets/book.css", "assets/gallery.css"],
        "extra_javascript": ["assets/mathjax-config.js", "assets/tex-svg.js"],
        "markdown_extensions": [
            "admonition", "attr_list", "def_list", "footnotes", "md_in_html", "tables",
            {"toc": {"permalink": True, "toc_depth": 3}},
            {"pymdownx.arithmatex": {"generic": True}},
            "pymdownx.betterem", "pymdownx.details",
            {"pymdownx.highlight": {"pygments_lang_class": True}},
            "pymdownx.inlinehilite", "pymdownx.superfences",
        ],
    }


def _readable(formula: str) -> str:
    """A formula as a line of plain text, for the excerpts of the search."""
    def name(m: re.Match) -> str:
        for case in ("CAPITAL", "SMALL") if m[1][0].isupper() else ("SMALL",):
            try:
                return unicodedata.lookup(f"GREEK {case} LETTER {m[1]}")
            except KeyError:
                pass
        return {"infty": "∞", "le": "≤", "ge": "≥", "lt": "<", "to": "→", "partial": "∂", "sqrt": "√"}.get(m[1], "")

    formula = re.sub(r"\\tag\{[^}]*\}|\\(?:begin|end)\{[^}]*\}|[{}&]", lambda m: " " if m[0] in "{}" else "", unescape(formula))
    return escape(re.sub(r" +", " ", re.sub(r"\\[^a-zA-Z]", " ", re.sub(r"\\([a-zA-Z]+)", name, formula))).strip())


def tidy_search(site: Path) -> None:
    """Zensical indexes formulas as their LaTeX source; show readers something they can read."""
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    for item in index["items"]:
        for k in ("title", "text"):
            item[k] = re.sub(r"\\\((.+?)\\\)|\\\[(.+?)\\\]", lambda m: _readable(m[1] or m[2]), item[k], flags=re.S)
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (site / "search.json").write_text(text, encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {text}", encoding="utf-8")  # the same, for file://


def mathjax() -> Path:
    """MathJax's single file, from the package that carries it."""
    return next(f for f in files("sphinx-mathjax-offline") if f.name == "tex-svg.js").locate()


def build() -> None:
    process()
    shutil.rmtree(WORK, ignore_errors=True)
    docs = WORK / "docs"
    shutil.copytree(ASSETS, docs / "assets")
    shutil.copy(mathjax(), docs / "assets" / "tex-svg.js")
    shutil.copytree(FIGURES, docs / "figures", ignore=lambda _, names: [n for n in names if not n.endswith((".svg", ".png"))])
    book = {p.name: p for p in map(read_page, notebooks())}
    for page in book.values():
        number(page)
    for page in book.values():
        (docs / f"{page.name}.md").write_text(render(page, book, docs), encoding="utf-8")
    (WORK / "mkdocs.yml").write_text(yaml.safe_dump(config(navigation(book)), allow_unicode=True, sort_keys=False))
    zensical = Path(sys.executable).parent / "zensical"
    subprocess.run([zensical, "build", "--strict", "-f", "mkdocs.yml"], cwd=WORK, check=True)
    tidy_search(WORK / "out")
    shutil.rmtree(SITE, ignore_errors=True)
    os.replace(WORK / "out", SITE)


def main() -> None:
    key = contents(NBS, PACKAGE, FIGURES, ROOT / "tools", ROOT / "settings.ini", ROOT / "_quarto.yml", ROOT / "constraints.txt")
    stamp = CACHE / "site.key"
    index = SITE / "index.html"
    if index.exists() and stamp.exists() and stamp.read_text() == key:
        print("The site is up to date.")
    else:
        build()
        atomic_write(stamp, key)
    print(f"Open {index.relative_to(ROOT)} in a browser.")


if __name__ == "__main__":
    main()
