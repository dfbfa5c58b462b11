"""The site in a real browser: every page, from disk and from a server, on a desk and on a phone."""
import functools
import http.server
import importlib
import inspect
import linecache
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, sync_playwright

from robust_general._modidx import d
from tools.book import notebooks, page_name
from tools.showdoc import ParameterTable

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")
QUIET = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync"
SIZES = {"desk": (1280, 900), "phone": (390, 844)}  # a page is opened at the first and turned to the second


@pytest.fixture(scope="module")
def site(root) -> Path:
    subprocess.run([sys.executable, "-m", "tools.site"], cwd=root, check=True)
    return root / "_docs"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        yield b
        b.close()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve(folder: Path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module", params=["file", "http"])
def base(request, site):
    if request.param == "file":
        yield site.as_uri()
    else:
        server = serve(site)
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# What a reader must never see. Runs in the page, returns sentences.
_FAULTS = r"""() => {
  const bad = [], main = document.querySelector("article") || document.body;
  if (document.documentElement.scrollWidth > window.innerWidth) {
    bad.push(`the page is ${document.documentElement.scrollWidth} wide on a screen of ${window.innerWidth}`);
  }
  for (const e of document.querySelectorAll(".arithmatex")) {
    if (!e.querySelector("mjx-container svg")) bad.push(`not typeset: ${e.textContent.slice(0, 80)}`);
  }
  for (const e of document.querySelectorAll("mjx-merror, [data-mjx-error], [data-mml-node=merror]")) {
    bad.push(`MathJax error: ${e.getAttribute("data-mjx-error") || e.textContent}`);
  }
  for (const e of document.querySelectorAll("img")) {
    e.loading = "eager";
    if (!e.complete || !e.naturalWidth) bad.push(`image does not load: ${e.getAttribute("src")}`);
    if (!e.alt) bad.push(`image without a description: ${e.getAttribute("src")}`);
  }
  const prose = main.cloneNode(true);
  prose.querySelectorAll("pre, code, script, style, mjx-container").forEach((e) => e.remove());
  for (const m of prose.textContent.match(/\$.{0,60}|\\[a-zA-Z(\[].{0,60}|\{#.{0,40}|@(eq|fig|tbl)-.{0,40}|^#\|.*$/gm) || []) {
    bad.push(`raw source in the text: ${m}`);
  }
  return bad;
}"""
_LINKS = "() => [...document.querySelectorAll('a[href]')].map((a) => a.href)"
_IDS = "() => [...document.querySelectorAll('[id]')].map((e) => e.id)"


AHEAD = 2  # pages that load while another is looked at: MathJax takes its time, and CI has two cores


def visit(browser: Browser, base: str, names: list[str], typeset: bool = True) -> dict[str, dict]:
    """Open each page and note what is wrong with it, where it links and what can be linked to.

    Without `typeset` equations stay as they are and only what loads, fails and leads elsewhere is looked at, which is quick.
    """
    context = browser.new_context(viewport=dict(zip(("width", "height"), SIZES["desk"])))
    faults = {name: [] for name in names}

    def gate(route):
        if not typeset and route.request.url.endswith("/tex-svg.js"):
            route.fulfill(content_type="text/javascript", body="")
        elif route.request.url.startswith((base, "data:", "blob:")):
            route.continue_()
        else:
            faults[current[route.request.frame.page]].append(f"leaves the machine: {route.request.url}")
            route.abort()

    def start(name: str):
        page, bad = context.new_page(), faults[name]
        current[page] = name
        page.on("console", lambda m: bad.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda e: bad.append(f"script error: {e}"))
        page.on("requestfailed", lambda r: bad.append(f"request failed: {r.url}"))
        page.on("response", lambda r: bad.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
        page.goto(f"{base}/{name}", wait_until="commit")
        return page

    context.set_default_timeout(120_000)  # for a busy machine
    context.route("**/*", gate)
    current, found, pages = {}, {}, []
    for i, name in enumerate(names):
        pages += [start(n) for n in names[i + len(pages) : i + AHEAD]]
        page, bad = pages.pop(0), faults[name]
        page.wait_for_load_state("load")
        if typeset:
            try:
                page.wait_for_function("document.documentElement.dataset.typeset == 'done'")
            except Exception:
                bad.append("equations were not typeset in time")
        if i == 0:  # all pages share one template: whatever it asks for later than this, it asks for here
            page.wait_for_load_state("networkidle")
        for size, (width, height) in SIZES.items() if typeset else ():
            page.set_viewport_size({"width": width, "height": height})
            page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
            bad += [f"{b} ({size})" for b in page.evaluate(_FAULTS)]
        found[name] = {"bad": bad, "links": page.evaluate(_LINKS), "ids": {"", *page.evaluate(_IDS)}}
        page.close()
    context.close()
    return found


def dead_links(found: dict[str, dict], base: str, folder: Path) -> list[str]:
    bad = []
    for name, page in found.items():
        for url in page["links"]:
            if not url.startswith(base):
                if "example.org" in url or not url.startswith(("https://", "mailto:")):
                    bad.append(f"{name}: {url} leads nowhere")
                continue
            path, anchor = unquote(urlsplit(url).path.removeprefix(urlsplit(base).path)).lstrip("/"), unquote(urlsplit(url).fragment)
            target = path or "index.html"
            if not (folder / target).is_file():
                bad.append(f"{name}: no page {target}")
            elif target in found and anchor not in found[target]["ids"]:
                bad.append(f"{name}: no anchor #{anchor} in {target}")
    return bad


def complaints(found: dict[str, dict]) -> list[str]:
    return [f"{name}: {b}" for name, page in found.items() for b in page["bad"]]


def names() -> list[str]:
    return [f"{page_name(nb)}.html" for nb in notebooks()]


def test_every_notebook_has_a_page(site):
    assert sorted(p.name for p in site.glob("*.html")) == sorted([*names(), "404.html"])


def test_pages_are_sound(browser, site):
    """Read from disk, on which every request is for a file, every page in full."""
    found = visit(browser, site.as_uri(), names())
    bad = complaints(found) + dead_links(found, site.as_uri(), site)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("base", ["http"], indirect=True)
def test_pages_are_sound_from_a_server(browser, base, site):
    """The same files: some pages in full, of the others what they load and where they lead."""
    some = ["index.html", "explore.html", "loss.html"]
    found = visit(browser, base, names(), typeset=False)
    bad = complaints(found) + dead_links(found, base, site) + complaints(visit(browser, base, some))
    assert not bad, "\n".join(bad)


def test_every_public_name_is_documented(site):
    """Where nbdev's index says it is: a heading and, for its parameters, a table with types."""
    for module, symbols in d["syms"].items():
        public = importlib.import_module(module).__all__
        for name, (place, _) in symbols.items():
            short = name.removeprefix(module + ".")
            if short not in public:
                continue
            page, _, anchor = place.partition("#")
            entry = re.split(rf'<h3[^>]* id="{re.escape(anchor)}"', (site / page).read_text())[1:]
            assert entry, f"{place} is missing"
            if inspect.signature(getattr(importlib.import_module(module), short)).parameters:
                head = re.search(r"<thead>.*?</thead>", entry[0], re.S)
                assert head and "Parameter" in head[0] and "Type" in head[0], place


def test_navigation_reaches_every_page(browser, base):
    links = visit(browser, base, ["index.html"], typeset=False)["index.html"]["links"]
    assert {u.split("#")[0].rpartition("/")[2] for u in links} >= set(names())


def test_the_first_page_says_it_in_one_screen(browser, site):
    """On a desk: what this is, the picture, why not Huber, how to install it, and the example with its output."""
    width, height = SIZES["desk"]
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(f"{site.as_uri()}/index.html")
    page.wait_for_function("document.documentElement.dataset.typeset == 'done'")
    for what in ("article p >> nth=1", "img.by-day >> nth=0", "h2:has-text('Why not Huber?') ~ ul", "pre:has-text('pip install') >> nth=0",
                 "pre:has-text('GeneralLoss(alpha') >> nth=0", "pre:has-text('alpha -inf: estimate') >> nth=0"):
        box = page.locator(what).first.bounding_box()
        assert box and 0 < box["y"] and box["y"] + box["height"] <= height and box["x"] + box["width"] <= width, (what, box)
    page.close()


def test_search_finds_geman(browser, base):
    page = browser.new_page()
    page.goto(f"{base}/index.html")
    page.locator(".md-search__button").click()
    page.locator("input[role=combobox]").fill("Geman")
    hit = page.locator("a[role=option]").first
    hit.wait_for(timeout=20_000)
    assert "Geman" in hit.inner_text()
    assert "\\(" not in hit.inner_text()
    hit.click()
    page.wait_for_url(re.compile(r"\w+\.html"))
    assert "Geman" in page.locator("article").inner_text()
    page.close()


def test_dark_mode_follows_the_system_and_the_switch(browser, base):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(f"{base}/index.html")
    scheme = "() => document.body.getAttribute('data-md-color-scheme')"
    page.wait_for_function("document.body.getAttribute('data-md-color-scheme') == 'slate'")
    page.locator("label[for=__palette_0]:visible, label[for=__palette_1]:visible").first.click()
    assert page.evaluate(scheme) == "default"
    context.close()


def test_dark_figures_can_be_read(site):
    """No line or letter is nearly as dark as the page; backgrounds and grids are meant to be."""
    figures = [*site.glob("images/*.dark.svg"), *site.glob("figures/*.dark.svg")]
    assert len(figures) > 20
    for figure in figures:
        for colour in set(re.findall(r"#[0-9a-f]{6}\b", figure.read_text())) - {"#14161a", "#2e3138"}:
            r, g, b = bytes.fromhex(colour[1:])
            assert 0.21 * r + 0.72 * g + 0.07 * b > 75, (figure.name, colour)


_FIELDS = """class Frame(NamedTuple):
    "One photograph"
    image:Tensor        # (3, H, W), in [0, 1]
    depth:Tensor=None   # In metres
"""


def test_fields_are_documented_as_parameters_are(monkeypatch):
    """By the comment beside them; and a string that typing has wrapped is shown as it was written."""
    monkeypatch.setitem(linecache.cache, "<cell 1>", (len(_FIELDS), None, _FIELDS.splitlines(True), "<cell 1>"))
    made = {"NamedTuple": NamedTuple, "__name__": "notebook"}
    exec(compile("from __future__ import annotations\n" + _FIELDS, "<cell 1>", "exec"), made)
    shown = str(ParameterTable(made["Frame"]))
    assert "| <code>image</code> | <code>Tensor</code> |  | (3, H, W), in [0, 1] |" in shown
    assert "| <code>depth</code> | <code>Tensor</code> | <code>None</code> | In metres |" in shown
    assert "class Frame(NamedTuple):" in shown and "ForwardRef" not in shown


def test_long_signatures_are_wrapped():
    made = {}
    exec(f"def f({', '.join(f'parameter_{i}=({i}, {i})' for i in range(12))}): pass", made)
    lines = ParameterTable(made["f"])._signature().splitlines()[1:-1]
    assert lines[0] == "f(" and lines[-1] == ")" and len(lines) > 3 and max(map(len, lines)) <= 100
    assert re.sub(r"\s", "", "".join(lines)) == "f(" + ",".join(f"parameter_{i}=({i},{i})" for i in range(12)) + ")"


_BROKEN = """<!doctype html><html data-typeset="done"><body><article><p>Mass is $E=mc^2$.</p>
<p>Half is \\frac{1}{2}.</p>
<p>See @eq-mass.</p>
<span class="arithmatex">\\(x\\)</span><a href="gone.html">a</a><a href="#nowhere">b</a><img src="none.png">
<script src="https://example.com/x.js"></script><script>undefinedName</script>
<div style="width:2000px">wide</div></article></body></html>"""


def test_the_checks_see_faults(browser, tmp_path):
    """Each kind of fault, made on purpose, is reported."""
    (tmp_path / "broken.html").write_text(_BROKEN)
    base = tmp_path.as_uri()
    found = visit(browser, base, ["broken.html"])
    said = "\n".join(complaints(found) + dead_links(found, base, tmp_path))
    for fault in ("raw source in the text: $E=mc", r"raw source in the text: \frac", "@eq-mass", "not typeset", "no page gone.html",
                  "no anchor #nowhere", "image does not load", "leaves the machine: https://example.com", "script error", "wide on a screen"):
        assert fault in said, (fault, said)
