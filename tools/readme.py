"""README.md from nbs/index.ipynb, so that the first page is written once and its code is tested."""
from __future__ import annotations

import re

from tools.book import NBS, Cell, read_cells

_WARNING = "<!-- Made from nbs/index.ipynb by `make notebooks`: edit that. -->\n"


def _output(cell: Cell) -> str:
    texts = []
    for o in cell.outputs:
        data = o.get("data", {})
        if "text/markdown" in data:
            texts.append("".join(data["text/markdown"]))
        elif text := "".join(o.get("text", data.get("text/plain", []))).rstrip():
            texts.append(f"```text\n{text}\n```")
    return "\n\n".join(texts)


def _markdown(source: str) -> str:
    """Paths as seen from the top folder: notebooks by their place, figures by theirs."""
    source = re.sub(r"\]\((?!https?:|#)([\w./-]+\.ipynb)", r"](nbs/\1", source)
    return re.sub(r"\]\(\.\./", "](", source)


def readme() -> str:
    """Text of README.md."""
    parts = [_WARNING]
    for c in read_cells(NBS / "index.ipynb"):
        if c.kind == "markdown":
            parts.append(_markdown(c.source.strip()) + "\n")
        elif c.code.strip() and not c.has("hide", "default_exp"):
            parts.append(f"```python\n{c.code.strip()}\n```\n")
            if out := _output(c):
                parts.append(out + "\n")
    return "\n".join(parts)
