"""How the site documents code. settings.ini tells nbdev to use these.

`ParameterTable`: for each exported name its signature, sentence, table of parameters and folded source.
`fold_private`: exported cells with helpers or constants stay on the page, folded, instead of vanishing.
`Pages`, which tools/site.py uses: building the site runs imports and exported cells, and nothing else.
"""
from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from typing import ForwardRef

from fastcore.docments import docments
from nbdev.processors import FilterDefaults, exec_show_docs


def _name(value) -> str:
    return getattr(value, "__name__", str(value))


def _type(value, sym) -> str:
    """An annotation as its author wrote it, but with the members of a union that has a name of its own."""
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, ForwardRef):  # what typing.NamedTuple makes of an annotation that is a string
        value = value.__forward_arg__
    if not isinstance(value, str):
        return _name(value)
    names = getattr(sym.__init__ if inspect.isclass(sym) else sym, "__globals__", {})
    members = getattr(names.get(value), "__args__", ())
    return " | ".join(map(_name, members)) or value


def _default(value) -> str:
    return _name(value) if callable(value) else repr(value)


def _code(text: str) -> str:
    """Code in a table cell; HTML, because a bar in backticks would end the cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
    return f"<code>{text}</code>" if text else ""


def _prose(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("\n", " ")


def _class_source(cls: type) -> str:
    """Source of a class made in a notebook cell, which `inspect` does not find: the last cell with a class of that name."""
    cells = ["".join(entry[2]) for name, entry in linecache.cache.items() if name.startswith("<") and len(entry) > 2]
    for cell in reversed(cells):
        if f"class {cls.__name__}" in cell:
            for node in ast.parse(cell).body:
                if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                    return "\n".join(cell.splitlines()[first - 1 : node.end_lineno])  # whole lines, with the last comment
    raise OSError(f"no cell defines {cls.__name__}")


def _field_notes(cls: type) -> dict[str, str]:
    """Comments beside the fields of a named tuple or a dataclass, which document what their constructors take."""
    if not (hasattr(cls, "_fields") or hasattr(cls, "__dataclass_fields__")):
        return {}
    try:
        return dict(re.findall(r"^    (\w+) *:[^#\n]*# *(.+?) *$", _class_source(cls), re.M))
    except OSError:
        return {}


def _call(name: str, params: list[str], width: int = 100) -> str:
    """A call on one line, or on as many as it takes for none to be cut off."""
    if len(whole := f"{name}({', '.join(params)})") <= width:
        return whole
    lines = [""]
    for p in params:
        if lines[-1] and len(lines[-1]) + len(p) > width - 6:
            lines.append("")
        lines[-1] += f"{p}, "
    return f"{name}(\n" + "\n".join(f"    {line.rstrip()}" for line in lines).rstrip(",") + "\n)"


class ParameterTable:
    def __init__(self, sym, name: str | None = None, title_level: int = 3):
        self.sym, self.level = sym, title_level
        self.name = name or sym.__qualname__

    def _signature(self) -> str:
        try:
            sig = inspect.signature(self.sym)
        except (TypeError, ValueError):
            return ""
        params = [
            str(p.replace(annotation=p.empty, default=p.empty)) + ("" if p.default is p.empty else f"={_default(p.default)}")
            for p in sig.parameters.values()
            if p.name != "self"
        ]
        return f"```python\n{_call(self.name, params)}\n```"

    def _rows(self) -> list[list[str]]:
        try:
            sig, docs = inspect.signature(self.sym), docments(self.sym, full=True)
        except (TypeError, ValueError):
            return []
        rows, notes = [], _field_notes(self.sym)
        for p in sig.parameters.values():
            if p.name != "self":
                star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
                default = "" if p.default is p.empty else _default(p.default)
                what = docs.get(p.name, {}).get("docment") or notes.get(p.name)
                rows.append([_code(star + p.name), _code(_type(p.annotation, self.sym)), _code(default), _prose(what)])
        if sig.return_annotation not in (sig.empty, None, "None") and not inspect.isclass(self.sym):
            what = docs.get("return", {}).get("docment")
            rows.append(["**returns**", _code(_type(sig.return_annotation, self.sym)), "", _prose(what)])
        return rows

    def _table(self) -> str:
        if not (rows := self._rows()):
            return ""
        lines = [["Parameter", "Type", "Default", "Meaning"], ["---"] * 4, *rows]
        keep = [i for i in range(4) if i < 1 or any(r[i] for r in rows)]  # no column without an entry
        return "\n".join("| " + " | ".join(l[i] for i in keep) + " |" for l in lines)

    def _source(self) -> str:
        try:
            src = _class_source(self.sym) if inspect.isclass(self.sym) else inspect.getsource(self.sym)
        except (OSError, TypeError):
            return ""
        src = textwrap.dedent(src).rstrip()
        return '??? quote "Source"\n' + textwrap.indent(f"```python\n{src}\n```", "    ")

    def _members(self) -> list[str]:
        """Public methods that say what they do."""
        if not inspect.isclass(self.sym):
            return []
        return [
            ParameterTable(f, f"{self.name}.{n}", self.level + 1)._body(source=False)
            for n, f in vars(self.sym).items()
            if not n.startswith("_") and inspect.isfunction(f) and f.__doc__
        ]

    def _body(self, source: bool = True) -> str:
        # The anchor is the one nbdev's own links point to.
        parts = [f"{'#' * self.level} `{self.name}` {{ #{self.name.lower()} .api }}", self._signature()]
        if inspect.isfunction(self.sym) or "__doc__" in vars(self.sym):
            parts.append(inspect.getdoc(self.sym) or "")
        parts.append(self._table())
        if source:
            parts.append(self._source())
        return "\n\n".join(p for p in parts if p)

    def _repr_markdown_(self) -> str:
        return "\n\n".join([self._body(), *self._members()])

    __str__ = __repr__ = _repr_markdown_


def _hidden_names(code: str) -> list[str]:
    """Helpers and constants a cell defines, which get no table of their own."""
    names = []
    for node in ast.parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name.startswith("_"):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [t.id for t in node.targets if isinstance(t, ast.Name)]
    return names


def fold_private(cell) -> None:
    """nbdev's `rm_export`, except that cells with helpers or constants are kept, folded."""
    directives = (cell.directives_ or {}).keys()
    if directives & {"hide", "default_exp"}:
        del cell["source"]
    elif directives & {"export", "exporti"}:
        if names := _hidden_names(cell.source):
            cell["source"] = f"#| code-fold: true\n#| code-summary: {', '.join(f'`{n}`' for n in names)}\n" + cell.source
        else:
            del cell["source"]


def only_needed(cell) -> None:
    """Keep nbdev from running a whole cell, perhaps a slow one, because there is an import in it."""
    if cell.cell_type != "code" or cell.directives_.keys() & {"export", "exports", "exporti"}:
        return
    body = cell.parsed_() or []
    if "show_doc(" not in cell.source and not all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body):
        cell.directives_["eval:"] = ["false"]


class Pages(FilterDefaults):
    def base_procs(self):
        procs = super().base_procs()
        i = procs.index(exec_show_docs)
        return [*procs[:i], only_needed, *procs[i:]]
