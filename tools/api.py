"""The public names by topic: which there are, what each does, and where it is documented.

nbs/api.ipynb lists them under its headings by marks such as

    <!-- api: loss weights.irls_weight -->

where a module stands for all its public names. The site puts a table in the place of each mark; a name without a
topic, or with two, is a problem that a test reports.
"""
from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from tools.book import NBS, PACKAGE, page_name, read_cells

_MARK = re.compile(r"<!-- api: ([^>]+?) -->")


@cache
def public() -> dict[str, list[str]]:
    """Public names of every module, in the order in which it defines them."""
    home = getattr(import_module(PACKAGE.name), "_HOME", {})
    found = {}
    for path in sorted(PACKAGE.glob("[!_]*.py")):
        module, source = import_module(f"{PACKAGE.name}.{path.stem}"), path.read_text(encoding="utf-8")
        names = [*module.__all__, *(n for n, m in home.items() if m == path.stem and n not in module.__all__)]
        place = {n: i for i, node in enumerate(ast.parse(source).body) for n in _defined(node)}
        found[path.stem] = sorted(names, key=lambda n: place.get(n, len(source)))
    return found


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    return [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []


def expand(mark: str) -> list[str]:
    """The names a mark lists, as `module.name`; a module is all of its names."""
    return [full for o in mark.split() for full in ([f"{o}.{n}" for n in public()[o]] if o in public() else [o])]


def marks() -> list[str]:
    """What the marks of the page say, in its order."""
    page = NBS / "api.ipynb"
    return [m for c in read_cells(page) if c.kind == "markdown" for m in _MARK.findall(c.source)] if page.exists() else []


def sentence(full: str) -> str:
    """The first line of a name's documentation; of a constant its value, or what it holds if that is long."""
    module, _, name = full.partition(".")
    value = getattr(import_module(f"{PACKAGE.name}.{module}"), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return (inspect.getdoc(value) or "").split("\n")[0]
    kind = type(value)
    if kind.__name__ in public()[module]:
        return f"A `{kind.__name__}`"
    if kind.__module__.startswith(PACKAGE.name):  # of a class without a public name, which speaks for it
        return (inspect.getdoc(kind) or "").split("\n")[0]
    text = str(value).replace("typing.", "")
    return f"`{text}`" if len(text) <= 60 else f"A {kind.__name__} of {len(value)}"


def problems() -> list[str]:
    """Everything wrong with the page, a sentence each."""
    known = [f"{m}.{n}" for m, names in public().items() for n in names]
    listed = Counter(full for m in marks() for full in expand(m))
    return [
        *(f"{n} has no topic in nbs/api.ipynb" for n in known if n not in listed),
        *(f"{n} is listed {k} times in nbs/api.ipynb" for n, k in listed.items() if k > 1),
        *(f"{n} is listed in nbs/api.ipynb, but is not a public name" for n in listed if n not in known),
        *(f"{n} does not say what it is" for n in known if not sentence(n)),
    ]


def _target(full: str) -> str:
    """Page and anchor of a name's documentation, as nbdev's index has them; constants have no anchor."""
    module, _, name = full.partition(".")
    places = import_module(f"{PACKAGE.name}._modidx").d["syms"]
    place = places.get(f"{PACKAGE.name}.{module}", {}).get(f"{PACKAGE.name}.{module}.{name}")
    if place:
        return place[0].replace(".html", ".md")
    source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
    return page_name(Path(re.search(r"File to edit: (\S+)\.$", source, re.M)[1])) + ".md"


def table(mark: str) -> str:
    """What stands in the place of a mark: a table in Markdown."""
    package, rows = import_module(PACKAGE.name), []
    for full in expand(mark):
        module, _, name = full.partition(".")
        value = getattr(import_module(f"{PACKAGE.name}.{module}"), name)
        where = PACKAGE.name if getattr(package, name, None) is value else f"{PACKAGE.name}.{module}"
        rows.append(f"| [`{name}`]({_target(full)}) | {sentence(full).replace('|', chr(92) + '|')} | `{where}` |")
    return "\n".join(["| Name | What it is | Import from |", "| --- | --- | --- |", *rows])


def filled() -> dict:
    """The marks of the page and what makes their tables, for tools/site.py."""
    return {f"<!-- api: {m} -->": partial(table, m) for m in marks()}
