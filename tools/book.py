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


class _ResultsOnly(ast.NodeTransformer):
    """Code without docstrings, and as it runs when nothing is wrong: without conditions and handlers that only raise."""

    @staticmethod
    def _raise(body: list) -> bool:
        return all(isinstance(o, ast.Raise) for o in body)

    def generic_visit(self, node):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
        return super().generic_visit(node)

    def visit_If(self, node: ast.If):
        self.generic_visit(node)
        assigns = any(isinstance(o, ast.NamedExpr) for o in ast.walk(node.test))
        return node if node.orelse or assigns or not self._raise(node.body) else None

    def visit_Try(self, node: ast.Try):
        self.generic_visit(node)
        plain = not (node.orelse or node.finalbody) and all(self._raise(h.body) for h in node.handlers)
        return node.body if plain else node


@dataclass(frozen=True)
class _Statement:
    text: str
    uses: frozenset  # Names it may refer to
    binds: str | None = None  # What is lost without it: the name of an import or of a private function
    imports: bool = False


@cache
def _statements(code: str) -> tuple[_Statement, ...]:
    """Top-level statements, imports one by one, without comments, layout, docstrings and errors."""
    try:
        body = _ResultsOnly().visit(ast.parse(code)).body
    except SyntaxError:  # a magic line
        return (_Statement(code, frozenset()),)
    out = []
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__":
            for a in node.names:
                one = ast.Import([a]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [a], node.level)
                ours = isinstance(one, ast.ImportFrom) and (one.level or one.module.partition(".")[0] == PACKAGE.name)
                out.append(_Statement(ast.unparse(one), frozenset({a.name} if ours else ()), None if a.name == "*" else a.asname or a.name.partition(".")[0], True))
            continue
        private = isinstance(node, ast.FunctionDef) and node.name[0] == "_" and not node.decorator_list
        uses = {o.id for o in ast.walk(node) if isinstance(o, ast.Name)} | {o.attr for o in ast.walk(node) if isinstance(o, ast.Attribute)}
        uses |= {a.name for o in ast.walk(node) if isinstance(o, ast.ImportFrom) for a in o.names}
        out.append(_Statement(ast.unparse(node), frozenset(uses - {node.name} if private else uses), node.name if private else None))
    return tuple(out)


def _needed(units: dict[str, list[_Statement]]) -> dict[str, list[_Statement]]:
    """Without imports and private functions that nothing uses, such as those that only looked for errors."""
    while True:
        asked = {k: set().union(*(s.uses for s in unit)) for k, unit in units.items()}
        inside = {k: set().union(*(s.uses for s in unit if not s.imports)) for k, unit in units.items()}

        def needed(s: _Statement, k: str) -> bool:
            return s.binds is None or s.binds in (inside if s.imports else asked)[k] or any(s.binds in o for name, o in asked.items() if name != k)

        left = {k: [s for s in unit if needed(s, k)] for k, unit in units.items()}
        if left == units:
            return left
        units = left


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

    That is its own code, the package modules it reaches by import, the tables these name, and the pinned versions of what they import.
    Prose, comments, docstrings and chapters it does not use are left out, so that they do not make a figure stale; so is what only
    decides whether an error is raised, as a page that was made has met none.
    """
    def reach(code_of) -> tuple[dict, set]:
        """Units of code by name, the page's own being "", and other packages."""
        found, todo, other = {}, {""}, set()
        while todo:
            name = todo.pop()
            if name in found or (code := code_of(name)) is None:
                continue
            found[name] = code
            for text in code:
                own, ext = _imports(text, PACKAGE.name)
                todo, other = todo | own, other | ext
        return found, other

    def written(name: str) -> list | None:
        if not name:
            return [c.code for c in read_cells(nb) if c.kind == "code" and "nbdev_export(" not in c.code]
        path = PACKAGE / f"{name}.py"
        return [path.read_text(encoding="utf-8")] if path.exists() else None

    units = _needed({k: [s for text in code for s in _statements(text)] for k, code in reach(written)[0].items()})
    texts, other = reach(lambda name: [s.text for s in units[name]] if name in units else None)
    # A package that is not installed here, such as a large peer of the benchmarks, counts under its own name.
    dists = {d for o in other for d in _distributions().get(o, [o]) if d in _pins() and d not in _HARMLESS}
    lines = [f"{k}: {text}" for k in sorted(texts) for text in texts[k]]
    tables = [p.read_bytes() for p in sorted(PACKAGE.glob("*.npy")) if any(p.name in o for o in lines)]
    return digest(*lines, *tables, *(f"{d}=={_pins()[d]}" for d in sorted(dists)))
