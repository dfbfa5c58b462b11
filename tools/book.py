"""The book as the tools see it: notebooks, cells, their `#|` lines, and the hash that says what a result depends on."""
from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

# Tools work on the project in the current folder, so that a test can run them on a project of its own.
ROOT = Path.cwd()
NBS, FIGURES, CACHE, PACKAGE = (ROOT / o for o in ("nbs", "figures", ".cache", "robust_general"))

_DIRECTIVE = re.compile(r"^\s*#\s*\|\s*([\w-]+)(:?)\s*(.*?)\s*$")


@dataclass
class Cell:
    kind: str  # "code" or "markdown"
    source: str  # As written
    id: str
    directives: list[tuple[str, str]] = field(default_factory=list)  # [("export", ""), ("claim", "E1 true")]
    code: str = ""  # Without the directive lines
    outputs: list[dict] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        return any(n in names for n, _ in self.directives)

    def value(self, name: str) -> str | None:
        return next((v for n, v in self.directives if n == name), None)


def parse_cell(raw: dict) -> Cell:
    """A cell of a notebook's JSON, its leading `#|` lines taken apart."""
    source = "".join(raw["source"])
    cell = Cell(raw["cell_type"], source, raw.get("id", ""), code=source, outputs=raw.get("outputs", []))
    if cell.kind != "code":
        return cell
    lines = source.splitlines()
    while lines and (not lines[0].strip() or _DIRECTIVE.match(lines[0])):
        if m := _DIRECTIVE.match(lines.pop(0)):
            cell.directives.append((m[1], m[3]))
    cell.code = "\n".join(lines)
    return cell


def read_cells(nb: Path) -> list[Cell]:
    return [parse_cell(c) for c in json.loads(nb.read_text(encoding="utf-8"))["cells"]]


def notebooks() -> list[Path]:
    """Every page of the book, in order of its number; the index first."""
    found = [p for p in NBS.glob("*.ipynb") if not p.name.startswith(("_", "."))]
    return sorted(found, key=lambda p: (p.stem != "index", p.name))


def page_name(nb: Path) -> str:
    """Name of the page a notebook becomes, as nbdev's own links have it: 01_loss -> loss."""
    return re.sub(r"^\d+[a-zA-Z0-9]*_", "", nb.stem.lower())


def claim_anchor(claim: str) -> str:
    return "claim-" + claim.replace("ε", "eps")


def digest(*parts: str | bytes) -> str:
    """Short hash of several texts; their borders count."""
    h = hashlib.sha256()
    for p in parts:
        p = p.encode() if isinstance(p, str) else p
        h.update(len(p).to_bytes(8, "big") + p)
    return h.hexdigest()[:16]


_MADE = {".git", ".venv", ".cache", "_docs", "_proc", "build", "dist", "__pycache__", ".pytest_cache"}


def contents(*tops: Path) -> str:
    """Hash of the files at or under some paths, names and bytes, without what the tools make."""
    parts = []
    for top in filter(Path.exists, tops):
        for folder, dirs, files in os.walk(top) if top.is_dir() else [(top.parent, [], [top.name])]:
            dirs[:] = sorted(d for d in dirs if d not in _MADE and not d.endswith(".egg-info"))
            for f in sorted(files):
                p = Path(folder, f)
                parts += [os.path.relpath(p, ROOT), p.read_bytes()]
    return digest(*parts)


def atomic_write(path: Path, data: str) -> None:
    """Write a whole file or nothing. Not the package's own: the tools must work while the package is broken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(data, encoding="utf-8")
    os.replace(part, path)


# What a notebook's results depend on. These run and show notebooks, and change no result:
_HARMLESS = {"fastcore", "ipython", "matplotlib-inline", "nbdev"}


def _normal(code: str) -> str:
    """Code without comments and layout, which change no result."""
    try:
        return ast.unparse(ast.parse(code))
    except SyntaxError:  # a magic line
        return code


def _imports(code: str, package: str) -> tuple[set[str], set[str]]:
    """Modules of the package, and other top-level names, that code imports anywhere."""
    own, other = set(), set()
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return own, other
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(a.name, []) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [(f"{package}.{module}".rstrip(".") if node.level else module, [a.name for a in node.names])]
        else:
            continue
        for module, what in names:
            head, _, rest = module.partition(".")
            if head != package:
                other.add(head)
            elif rest:
                own.add(rest.partition(".")[0])
            else:
                own.update(_origin(n) for n in what or ["__init__"])
    return own, other


def _origin(name: str) -> str:
    """Module that `from robust_general import name` really means."""
    if (PACKAGE / f"{name}.py").exists():
        return name
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and name in [a.asname or a.name for a in node.names]:
            return node.module
    return "__init__"


@cache
def _pins() -> dict[str, str]:
    """Pinned version of each distribution of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {_dist(n): v for n, _, v in (o.partition("==") for o in lines if "==" in o and o[0] != "#")}


def _dist(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _distributions() -> dict[str, list[str]]:
    return {k: [_dist(o) for o in v] for k, v in packages_distributions().items()}


def inputs(nb: Path) -> str:
    """Hash of everything a notebook's results depend on.

    That is its own code, the package modules it reaches by import, and the pinned versions of what these import.
    Prose, comments and chapters it does not use are left out, so that they do not make a figure stale.
    """
    code = [_normal(c.code) for c in read_cells(nb) if c.kind == "code" and "nbdev_export(" not in c.code]
    modules, todo, other = {}, set(), set()
    for text in code:
        own, ext = _imports(text, PACKAGE.name)
        todo, other = todo | own, other | ext
    while todo:
        name = todo.pop()
        path = PACKAGE / f"{name}.py"
        if name in modules or not path.exists():
            continue
        modules[name] = _normal(path.read_text(encoding="utf-8"))
        own, ext = _imports(modules[name], PACKAGE.name)
        todo, other = todo | own, other | ext
    # A package that is not installed here, such as a large peer of the benchmarks, counts under its own name.
    dists = {d for o in other for d in _distributions().get(o, [o]) if d in _pins() and d not in _HARMLESS}
    return digest(*code, *(f"{k}: {v}" for k, v in sorted(modules.items())), *(f"{d}=={_pins()[d]}" for d in sorted(dists)))
