"""Write LICENSES.md, or with `--check` say what is missing from it: `python -m tools.licences [--check]`.

Lists every distribution that the package needs, that its extras need, and that these need in their turn, with the
licence that its own metadata states.
"""
from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

from tools.book import ROOT, atomic_write

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same under another name
    import tomli as tomllib

FILE = ROOT / "LICENSES.md"
GROUPS = {"": "To run", "sklearn": "Extra `sklearn`", "images": "Extra `images`", "dev": "Extra `dev`: to write, test and build the book", "bench": "Extra `bench`: peers to measure against"}
CUDA = re.compile(r"(nvidia|cuda|triton)(-.*)?")  # parts of PyTorch's builds for graphics cards

HEAD = """# Licences

robust_general is published under the Apache License 2.0 (`LICENSE`). It contains no code of the packages below: pip
installs them, each under its own licence, as stated in its own metadata. The first column of versions is what the package
asks for (nothing, if another package does the asking), the second what it is tested with. Builds of PyTorch for graphics
cards bring NVIDIA's libraries, which have a licence of NVIDIA's own.

Made by `python -m tools.licences`.
"""


def key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def asked() -> dict[str, list[Requirement]]:
    """Requirements of pyproject.toml, by extra; "" for what is always needed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {k: [Requirement(r) for r in groups[k]] for k in [*GROUPS, *(groups.keys() - GROUPS)]}


def closure(requirements: list[Requirement]) -> dict[str, Distribution | None]:
    """What these need, themselves included; None for what is not installed here."""
    found, todo = {}, list(requirements)
    while todo:
        r = todo.pop()
        extras = {"", *r.extras}
        if key(r.name) in found and not r.extras or CUDA.fullmatch(key(r.name)):
            continue
        try:
            d = found[key(r.name)] = distribution(r.name)
        except PackageNotFoundError:
            found[key(r.name)] = None
            continue
        more = [Requirement(t) for t in d.requires or []]
        todo += [m for m in more if m.marker is None or any(m.marker.evaluate({"extra": e}) for e in extras)]
    return found


def licence(d: Distribution) -> str:
    """As the metadata has it: an SPDX expression, else classifiers, else a short licence field."""
    meta = d.metadata
    if expression := meta.get("License-Expression"):
        return expression
    classified = [c.split(" :: ")[-1] for c in meta.get_all("Classifier") or [] if c.startswith("License :: ") and c != "License :: OSI Approved"]
    if classified:
        return ", ".join(classified)
    lines = (meta.get("License") or "").strip().splitlines()
    return lines[0].strip().rstrip(",;:") if lines and len(lines[0]) < 80 else ""


def copyleft(text: str) -> bool:
    """Does every way to read this licence lead to the GPL or AGPL?"""
    def is_gpl(part):
        return bool(re.search(r"GPL|General Public License", part)) and not re.search(r"LGPL|Lesser|Library General|WITH [\w-]*exception", part, re.I)

    ways = [way for way in re.split(r"\bOR\b", text)]
    return all(any(is_gpl(part) for part in re.split(r"\bAND\b|,", way)) for way in ways)


def rows() -> dict[str, dict[str, tuple[str, str, str]]]:
    """Group to name to range, tested version and licence; a package stands in the first group that needs it."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line)
    pins = {key(k): v for k, v in pins.items()}
    out, seen = {}, set()
    for group, requirements in asked().items():
        ranges = {key(r.name): str(r.specifier) for r in requirements}
        found = {n: d for n, d in closure(requirements).items() if d is not None and n not in seen}
        seen |= set(found)
        out[group] = {n: (ranges.get(n, ""), pins.get(n, d.version.split("+")[0]), licence(d)) for n, d in sorted(found.items())}
    return out


def parse(text: str) -> dict[str, str]:
    """Name to licence, of a written list."""
    return {m[1]: m[2] for m in re.finditer(r"^\| ([\w.-]+) \|[^|]*\|[^|]*\| (.+) \|$", text, re.M) if m[1] != "package"}


def render() -> str:
    parts = [HEAD]
    for group, found in rows().items():
        if found:
            lines = [f"| {n} | {' | '.join(v)} |".replace("|  |", "| |") for n, v in found.items()]
            parts.append("\n".join([f"## {GROUPS.get(group, f'Extra `{group}`')}", "", "| package | asks for | tested with | licence |", "|---|---|---|---|", *lines]) + "\n")
    return "\n".join(parts)


def problems() -> list[str]:
    """What LICENSES.md lacks, and what must not be needed."""
    listed, out = parse(FILE.read_text(encoding="utf-8")), []
    for group, found in rows().items():
        for n, (_, _, text) in found.items():
            if not text:
                out.append(f"{n} does not say its licence")
            elif n not in listed:
                out.append(f"{n} is not in LICENSES.md")
            elif listed[n] != text:
                out.append(f"{n}: LICENSES.md says {listed[n]!r}, the package {text!r}")
            if not group and copyleft(text):
                out.append(f"{n} is needed to run, and is under {text!r}")
    return out


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--check", action="store_true", help="write nothing")
    if ap.parse_args().check:
        if wrong := problems():
            sys.exit("\n".join(wrong))
        return
    if absent := sorted({n for r in asked().values() for n, d in closure(r).items() if d is None}):
        sys.exit(f"not installed, so that they would be missing from the list: {', '.join(absent)}; pip install -e '.[dev,bench]'")
    atomic_write(FILE, render())


if __name__ == "__main__":
    main()
