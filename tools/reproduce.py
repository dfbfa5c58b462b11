"""Regenerate every figure and table: `python -m tools.reproduce [--force] [notebook ...]`.

Runs each notebook that saves one, slow cells included, and records in figures/manifest.json what every file was made
from. A notebook whose inputs have not changed and whose files are intact is not run again, so a second call is quick
and a killed one loses only the notebook that was running.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

from tools.book import FIGURES, NBS, ROOT, atomic_write, inputs, notebooks, read_cells
from tools.execute import skips

MANIFEST = FIGURES / "manifest.json"
_SAVES = re.compile(r"\bsave_(figure|table)\(")
# {notebook: {"inputs": hash, "without": [flags not run], "files": {name: {"inputs": hash, "sha256": ...}}}}
Manifest = dict


def writers() -> list[Path]:
    """Notebooks that save figures or tables; the page that defines how is not one of them."""
    def saves(nb: Path) -> bool:
        code = [c.code for c in read_cells(nb) if c.kind == "code"]
        return any(map(_SAVES.search, code)) and not any("def save_figure(" in c for c in code)

    return [nb for nb in notebooks() if saves(nb)]


def read_manifest() -> Manifest:
    return json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else {}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flags() -> set[str]:
    """Flagged cells that can run here."""
    on = {"slow"}
    if os.environ.get("ROBUST_GENERAL_DATA"):
        on.add("data")
    if any(c.has("gpu") for nb in writers() for c in read_cells(nb)):
        import torch  # slow to import, so only where a cell asks

        if torch.cuda.is_available():
            on.add("gpu")
    return on


def without(nb: Path, on: set[str]) -> list[str]:
    """Flags of cells that do not run here."""
    return sorted({n for c in read_cells(nb) for n, _ in c.directives if n in ("data", "gpu")} - on)


def finished(nb: Path, manifest: Manifest, on: set[str]) -> bool:
    """Was this notebook run on these inputs, with at least these cells, and are its files as it left them?"""
    entry = manifest.get(nb.name)
    return bool(
        entry
        and entry["inputs"] == inputs(nb)
        and set(entry["without"]) <= set(without(nb, on))
        and all((p := FIGURES / n).exists() and sha256(p) == f["sha256"] for n, f in entry["files"].items())
    )


def stale(manifest: Manifest) -> list[str]:
    """What is wrong with the recorded figures, a sentence each; empty if every file is current."""
    bad = [f"{nb.name} saves figures or tables but was never run" for nb in writers() if nb.name not in manifest]
    known = {"manifest.json"}
    for name, entry in manifest.items():
        nb = NBS / name
        if not nb.exists():
            bad.append(f"{name} is recorded but gone")
            continue
        now = inputs(nb)
        for n, f in entry["files"].items():
            known.add(n)
            if not (FIGURES / n).exists():
                bad.append(f"{n} of {name} is missing")
            elif f["sha256"] != sha256(FIGURES / n):
                bad.append(f"{n} is not the file that {name} wrote")
            elif f["inputs"] != now:
                bad.append(f"{n} is older than the code of {name}")
    bad += [f"{p.name} was written by no notebook" for p in sorted(FIGURES.iterdir()) if p.name not in known and p.name[0] != "."]
    return bad


def _state() -> dict[str, tuple[int, int]]:
    """Identity of each file: every write is a rename, so a rewritten file is another file."""
    return {p.name: ((s := p.stat()).st_ino, s.st_mtime_ns) for p in FIGURES.iterdir() if p != MANIFEST and p.name[0] != "."}


def run(nb: Path, on: set[str], bar: tqdm) -> None:
    """Run one notebook in a process of its own and move the bar with its cells."""
    read, write = os.pipe()
    env = {**os.environ, "ROBUST_GENERAL_FIGURES": str(FIGURES)}
    cmd = [sys.executable, "-m", "tools.execute", nb.stem, "--progress-fd", str(write), "--flags", *sorted(on)]
    child = subprocess.Popen(cmd, cwd=ROOT, env=env, pass_fds=[write])
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while cells := pipe.read(64):
            bar.update(len(cells))
    if child.wait():
        bar.close()
        sys.exit(f"{nb.name} failed; what was finished before it is kept")


def record(nb: Path, before: dict, manifest: Manifest, on: set[str]) -> None:
    """Note what a notebook wrote, and remove what it no longer writes."""
    now, off = inputs(nb), without(nb, on)
    written = sorted(n for n, s in _state().items() if before.get(n) != s)
    files = {n: {"inputs": now, "sha256": sha256(FIGURES / n)} for n in written}
    old = manifest.pop(nb.name, {"files": {}})["files"]
    gone = {n: f for n, f in old.items() if n not in files}
    if off:  # a cell that could not run here may own these: keep them, with what they were made from
        files |= gone
    else:
        remove(gone, manifest)
    manifest[nb.name] = {"inputs": now, "without": off, "files": dict(sorted(files.items()))}
    save_manifest(manifest)


def remove(names, manifest: Manifest) -> None:
    """Delete files, but not those that another notebook has written since."""
    owned = {n for entry in manifest.values() for n in entry["files"]}
    for n in set(names) - owned:
        (FIGURES / n).unlink(missing_ok=True)


def save_manifest(manifest: Manifest) -> None:
    atomic_write(MANIFEST, json.dumps(dict(sorted(manifest.items())), indent=1) + "\n")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("notebooks", nargs="*", help="names such as 01_loss; all if none")
    ap.add_argument("--force", action="store_true", help="run even what is finished")
    args = ap.parse_args()
    FIGURES.mkdir(exist_ok=True)
    for left in FIGURES.glob(".*.part"):  # of a killed run
        left.unlink()
    every, on, manifest = writers(), flags(), read_manifest()
    for name in set(manifest) - {nb.name for nb in every}:  # saves nothing any more
        remove(manifest.pop(name)["files"], manifest)
        save_manifest(manifest)
    chosen = [nb for nb in every if not args.notebooks or nb.stem in {Path(o).stem for o in args.notebooks}]
    if unknown := {Path(o).stem for o in args.notebooks} - {nb.stem for nb in every}:
        ap.error(f"{', '.join(sorted(unknown))} saves no figure or table; these do: {', '.join(nb.stem for nb in every)}")
    todo = [nb for nb in chosen if args.force or not finished(nb, manifest, on)]
    for nb in chosen:
        note = f" (without its {', '.join(off)} cells)" if (off := without(nb, on)) else ""
        print(f"  {nb.stem}: {'to run' if nb in todo else 'unchanged'}{note}")
    cells = {nb: sum(not skips(c, on) for c in read_cells(nb)) for nb in todo}
    with tqdm(total=sum(cells.values()), unit="cell", disable=not todo) as bar:
        for nb in todo:
            bar.set_description(nb.stem)
            before = _state()
            run(nb, on, bar)
            record(nb, before, manifest, on)
    files = [n for nb in chosen for n in manifest.get(nb.name, {"files": {}})["files"]]
    print(f"{len(files)} files are in {FIGURES.name}/:")
    for n in files:
        print(f"  {FIGURES.name}/{n}")


if __name__ == "__main__":
    main()
