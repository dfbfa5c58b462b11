"""Regenerate every figure and table: `python -m tools.reproduce [--plan] [--changed] [--force] [--jobs 2] [name ...]`.

A name is a figure or table of the paper (table3, fig6), a page (41_registration_experiment) or a file (tab_speed);
all pages if none is given. First comes the plan, then one bar, then a summary beside the paper (tools/gallery.py).

Each page that saves something is run, slow cells included, and figures/manifest.json records what every file was made
from. A page that was run here on the same inputs, data and preset, and whose files are intact, is not run again: a
second call is quick, and a killed one loses only what was running. A page writes into a folder of its own, from where
its files come when it has succeeded. Without data, cells that need it are left out, and what they wrote elsewhere stays.

With --recheck the slow cells are left out: for a page of hours, after a change that should leave its results as they are.
A cell flagged `#| recheck: tab_name ...` computes a part of the tables it names again and compares it with what is recorded;
the manifest then says of them that they were checked, and not that they were made, with the present code.
"""
from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from tools import gallery
from tools.book import CACHE, FIGURES, NBS, PACKAGE, ROOT, Cell, _imports, atomic_write, inputs, notebooks, page_name, read_cells
from tools.execute import skips

MANIFEST = FIGURES / "manifest.json"
HERE = CACHE / "reproduced"  # what was run in this checkout: {setting: inputs} for each page
JOBS = min(4, os.cpu_count() or 1)
_SAVES = re.compile(r"\bsave_(figure|table)\(")
_TIMES = re.compile(r"\b(perf_counter|process_time|ratios\(|cpu_count)")  # measures time, or takes all cores itself
_LARGE = {"open3d"}  # the extra "bench" of pyproject.toml
# {notebook: {"inputs": hash, "without": [flags not run], "versions": "numpy 2.4.6, ...", "seconds": {setting: about},
#             "files": {name: {"inputs": hash, "sha256": ...}}}}; older ones have neither versions nor seconds.
# A file that was not made again but compared has "checked", too: the hash under which it was.
Manifest = dict


@cache
def _cells(nb: Path, changed: int) -> list[Cell]:
    return read_cells(nb)


def cells_of(nb: Path) -> list[Cell]:
    """Cells of a notebook; with its outputs it is large, so it is read once."""
    return _cells(nb, nb.stat().st_mtime_ns)


def writers() -> list[Path]:
    """Notebooks that save figures or tables; the page that defines how is not one of them."""
    def saves(nb: Path) -> bool:
        code = [c.code for c in cells_of(nb) if c.kind == "code"]
        return any(map(_SAVES.search, code)) and not any("def save_figure(" in c for c in code)

    return [nb for nb in notebooks() if saves(nb)]


def read_manifest() -> Manifest:
    return json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else {}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# What can run here.


def flags() -> set[str]:
    """Flagged cells that can run here."""
    on = {"slow"}
    if os.environ.get("ROBUST_GENERAL_DATA"):
        on.add("data")
    if any(c.has("gpu") for nb in writers() for c in cells_of(nb)):
        import torch  # slow to import, so only where a cell asks

        if torch.cuda.is_available():
            on.add("gpu")
    return on


def needs(nb: Path) -> set[str]:
    """What cells of a page cannot do without."""
    return {n for c in cells_of(nb) for n, _ in c.directives} & {"data", "gpu"}


def wants(nb: Path) -> set[str]:
    """That, and data that a page can replace by something free (nbs/paper.csv)."""
    return needs(nb) | {"data" for i in gallery.registry() if i.page == nb.stem and i.data}


def without(nb: Path, on: set[str]) -> list[str]:
    """What a page wants and does not get here."""
    return sorted(wants(nb) - on)


def rechecks(nb: Path, on: set[str]) -> list[str]:
    """Figures and tables that a page compares with the recorded ones in cells that can run here, without the slow ones."""
    return [n for c in cells_of(nb) if c.has("recheck") and not skips(c, on - {"slow"}) for n in c.value("recheck").split()]


def setting(nb: Path, on: set[str]) -> str:
    """What decides a page's results and its time beside its inputs: "plain", "data", "data paper"."""
    preset = os.environ.get("ROBUST_GENERAL_PRESET")
    asks = preset and any("ROBUST_GENERAL_PRESET" in c.code for c in cells_of(nb))
    return " ".join([*sorted(wants(nb) & on), *([preset] if asks else [])]) or "plain"


def alone(nb: Path) -> bool:
    """Must nothing else run beside this page?"""
    return any(_TIMES.search(c.code) for c in cells_of(nb) if c.kind == "code")


def missing(nb: Path) -> list[str]:
    """Packages that a page imports, however late, and that are not installed: large peers of the benchmarks."""
    heads = set().union(*(_imports(c.code, PACKAGE.name)[1] for c in cells_of(nb) if c.kind == "code" and c.value("eval") != "false"))
    return sorted(h for h in heads if find_spec(h) is None or h in _LARGE and not imports(h))


@cache
def imports(name: str) -> bool:
    """Does a package that is there also work? One with compiled parts may lack a library of the system."""
    return not subprocess.run([sys.executable, "-c", f"import {name}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


# What is finished, and what is wrong.


def finished(nb: Path, now: str, manifest: Manifest, on: set[str]) -> bool:
    """Is the record of this notebook of its inputs now, with at least these cells, and are its files as it left them?"""
    entry = manifest.get(nb.name)
    return bool(
        entry
        and entry["inputs"] == now
        and set(entry["without"]) <= set(without(nb, on))
        and all((p := FIGURES / n).exists() and sha256(p) == f["sha256"] for n, f in entry["files"].items())
    )


def ran_here(nb: Path, now: str, on: set[str]) -> bool:
    """Was it run in this checkout, and not only by whoever committed the figures?"""
    stamp = HERE / f"{nb.stem}.json"
    return stamp.exists() and json.loads(stamp.read_text()).get(setting(nb, on)) == now


def stamp(nb: Path, now: str, on: set[str]) -> None:
    """Note that it was."""
    path = HERE / f"{nb.stem}.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    atomic_write(path, json.dumps({**old, setting(nb, on): now}))


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
            elif now not in (f["inputs"], f.get("checked")):
                bad.append(f"{n} is older than the code of {name}")
    bad += [f"{p.name} was written by no notebook" for p in sorted(FIGURES.iterdir()) if p.name not in known and p.name[0] != "."]
    return bad


# The plan.


def resolve(names: list[str], every: list[Path], manifest: Manifest) -> list[Path]:
    """Pages that make what is named; all if nothing is. ValueError lists what there is."""
    if not names:
        return every
    pages = {nb.stem.lower(): nb for nb in every}
    known = {page_name(nb): nb for nb in every} | pages
    for nb in every:
        known |= {Path(f).stem: nb for f in manifest.get(nb.name, {"files": {}})["files"]}
    items = {i.key: i for i in gallery.registry()}
    asked = re.sub(r"\b(fig|figure|tab|table)\s+(?=\d)", r"\1", " ".join(names).replace(",", " "), flags=re.I).split()
    found, bad = set(), []
    for name in asked:
        key = re.sub(r"\.(ipynb|svg|png|json|md)$", "", Path(name).name.lower())
        if item := items.get(gallery.item_key(key)):
            if nb := pages.get(item.page):
                found.add(nb)
            else:
                bad.append(f"{item.name} is made by {item.page}, which is not here")
        elif nb := known.get(key):
            found.add(nb)
        else:
            bad.append(f"{name} is neither a figure or table of the paper nor a page that saves one")
    if bad:
        there = [f"of the paper: {', '.join(items)}"] if items else []
        raise ValueError("; ".join([*bad, *there, f"pages: {', '.join(nb.stem for nb in every)}"]))
    return [nb for nb in every if nb in found]


def about(seconds: float | None) -> str:
    """A time as one says it."""
    if seconds is None:
        return "unknown"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def expected(nb: Path, manifest: Manifest, on: set[str]) -> float | None:
    """Seconds that a page took when it last was run like this, if that was noted."""
    return manifest.get(nb.name, {}).get("seconds", {}).get(setting(nb, on))


def source(nb: Path, on: set[str]) -> str:
    """What a page's results come from here."""
    names = ", ".join(dict.fromkeys(i.data for i in gallery.registry() if i.page == nb.stem and i.data))
    if "data" not in wants(nb):
        return "made here"
    if "data" in on:
        return names or "data"
    return f"recorded numbers ({names or 'of data'})" if "data" in needs(nb) else f"free stand-ins ({names})"


def total_time(todo: list[Path], manifest: Manifest, on: set[str], jobs: int) -> tuple[float, int]:
    """Seconds until all is done, and the number of pages whose time is not known."""
    times = {nb: expected(nb, manifest, on) for nb in todo}
    beside, single = ([t for nb, t in times.items() if t and alone(nb) == o] for o in (False, True))
    return max([sum(beside) / jobs, *beside]) + sum(single), list(times.values()).count(None)


def plan(chosen: list[Path], todo: list[Path], manifest: Manifest, on: set[str], jobs: int) -> str:
    """What will run, on what, for about how long."""
    known, unknown = total_time(todo, manifest, on, jobs)
    total = f", about {about(known)} with {jobs} at a time" if known else ""
    total += f", not counting {unknown} whose time is unknown" if unknown else ""
    data = os.environ.get("ROBUST_GENERAL_DATA") or "none (DATA=folder)"
    preset = os.environ.get("ROBUST_GENERAL_PRESET") or "cpu on data, quick without (PRESET=paper)"
    lines = [f"Plan: {len(todo)} of {len(chosen)} pages to run{total}.", f"Data: {data}. Preset of what is trained: {preset}."]
    paper = gallery.registry()
    rows = []
    for nb in chosen:
        made = gallery.spoken([i for i in paper if i.page == nb.stem])
        files = {Path(n).stem for n in manifest.get(nb.name, {"files": {}})["files"]}
        others = len(files - {s for i in paper if i.page == nb.stem for s in i.files})
        makes = ", ".join(filter(None, [made, others and f"{others} {'more' if made else 'of its own'}"])) or "not made yet"
        state = "to run" if nb in todo else f"left out, needs {', '.join(missing(nb))}" if missing(nb) else "unchanged"
        rows.append((f"{nb.stem}: {state}", makes, source(nb, on), about(expected(nb, manifest, on))))
    widths = [max(len(r[k]) for r in rows) for k in range(3)]
    lines += ["  " + "  ".join([*(r[k].ljust(w) for k, w in enumerate(widths)), r[3]]) for r in rows]
    return "\n".join(lines)


# Running and recording.


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Identity of each file: every write is a rename, so a rewritten file is another file."""
    return {p.name: ((s := p.stat()).st_ino, s.st_mtime_ns) for p in folder.iterdir() if p.name != MANIFEST.name and p.name[0] != "."}


def run(nb: Path, on: set[str], room: Path, tick, threads: str | None = None) -> float | None:
    """Run one notebook in a process of its own, its files into `room`: its seconds, or None if it failed."""
    read, write = os.pipe()
    env = {**os.environ, "ROBUST_GENERAL_FIGURES": str(room)}
    env.setdefault("ROBUST_GENERAL_PRESET", "cpu" if "data" in on else "quick")
    if threads:
        env.setdefault("OMP_NUM_THREADS", threads)
    cmd = [sys.executable, "-m", "tools.execute", nb.stem, "--progress-fd", str(write), "--flags", *sorted(on)]
    start = time.monotonic()
    child = subprocess.Popen(cmd, cwd=ROOT, env=env, pass_fds=[write])
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while cells := pipe.read(64):
            tick(len(cells))
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    # On a busy machine the clock says too much, on several cores the processor does.
    return None if child.returncode else min(time.monotonic() - start, used.ru_utime + used.ru_stime)


@contextmanager
def locked():
    """Nobody else changes figures/ meanwhile, be it a thread or another call."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "figures.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def reproduce(nb: Path, on: set[str], tick=lambda n: None, threads: str | None = None, recheck: bool = False) -> dict[str, str] | None:
    """Run a page and take over what it wrote: what `record` says, or None if it failed, and then nothing has changed."""
    now = inputs(nb)  # before it runs: someone may edit meanwhile
    with tempfile.TemporaryDirectory(prefix="figures-") as tmp:
        room = Path(tmp) / "figures"
        with locked():
            shutil.copytree(FIGURES, room)  # a page may read tables of others, and of its own cells that do not run here
        before = _state(room)
        if (seconds := run(nb, on, room, tick, threads)) is None:
            return None
        written = sorted(n for n, s in _state(room).items() if before.get(n) != s)
        with locked():
            for n in written:
                part = FIGURES / f".{n}.{os.getpid()}.part"
                shutil.copyfile(room / n, part)
                os.replace(part, FIGURES / n)
            manifest = read_manifest()
            fate = record(nb, now, written, manifest, on, seconds, recheck)
            save_manifest(manifest)
        if not recheck:
            stamp(nb, now, on)
        return fate


def versions() -> str:
    """Versions that decide numbers, as tables have them."""
    def of(name: str) -> str:
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            return "none"

    return ", ".join([f"python {sys.version_info[0]}.{sys.version_info[1]}", *(f"{p} {of(p)}" for p in ("numpy", "scipy", "torch"))])


def note_time(old: dict, key: str, seconds: float) -> dict:
    """Recorded times with a new one. A shorter one does not count, as trained models are kept in .cache, nor does one
    that is hardly longer, lest every run change the manifest. Delete the number to have it taken anew."""
    if key in old and seconds < 1.5 * old[key]:
        return old
    return dict(sorted({**old, key: float(f"{seconds:.2g}")}.items()))


def record(nb: Path, now: str, written: list[str], manifest: Manifest, on: set[str], seconds: float, recheck: bool = False) -> dict[str, str]:
    """Note what a notebook wrote, and remove what it no longer writes. Files to "same", "different" or "new"."""
    off = without(nb, on)
    files = {n: {"inputs": now, "sha256": sha256(FIGURES / n)} for n in written}
    entry = manifest.pop(nb.name, {"inputs": "", "without": [], "files": {}})
    old = entry["files"]
    fate = {n: "new" if n not in old else "same" if old[n]["sha256"] == f["sha256"] else "different" for n, f in files.items()}
    gone = {n: f for n, f in old.items() if n not in files}
    if recheck:  # then nothing says that the page was made as a whole, whatever its code
        same = {n: {**f, "checked": now} for n, f in gone.items() if Path(n).stem in rechecks(nb, on) and f["inputs"] != now}
        manifest[nb.name] = {**entry, "inputs": "", "files": dict(sorted((gone | same | files).items()))}
        return fate
    if any(Path(n).stem in i.files for i in gallery.registry() if i.page == nb.stem and i.data for n in gone):
        off = sorted({*off, "data"})  # there is a folder of data, but not what this page wants of it
    if off:  # a cell that could not run here may own these: keep them, with what they were made from
        files |= gone
    else:
        remove(gone, manifest)
    if entry["inputs"] == now:  # then what was made with data is still current
        off = [o for o in off if o in entry["without"]]
    times = note_time(entry.get("seconds", {}), setting(nb, on), seconds)
    manifest[nb.name] = {"inputs": now, "without": off, "versions": versions(), "seconds": times, "files": dict(sorted(files.items()))}
    return fate


def remove(names, manifest: Manifest) -> None:
    """Delete files, but not those that another notebook has written since."""
    owned = {n for entry in manifest.values() for n in entry["files"]}
    for n in set(names) - owned:
        (FIGURES / n).unlink(missing_ok=True)


def save_manifest(manifest: Manifest) -> None:
    atomic_write(MANIFEST, json.dumps(dict(sorted(manifest.items())), indent=1) + "\n")


def compared(fate: dict[str, str]) -> str:
    """How the files just written compare with those recorded before."""
    of = {k: sorted(n for n, f in fate.items() if f == k) for k in ("same", "different", "new")}
    lines = [f"{len(fate)} files written: {len(of['same'])} are byte for byte those recorded, {len(of['different'])} differ, {len(of['new'])} are new."]
    lines += [f"  {k}: {', '.join(f'{FIGURES.name}/{n}' for n in of[k])}" for k in ("different", "new") if of[k]]
    return "\n".join(lines)


def run_all(todo: list[Path], on: set[str], jobs: int, recheck: bool = False) -> tuple[dict[str, str], list[str]]:
    """Run pages under one bar, several at a time, then those that must be alone: fates of files, names of what failed."""
    cells = {nb: sum(not skips(c, on) for c in cells_of(nb)) for nb in todo}
    fate, failed, running, lock = {}, [], [], threading.Lock()
    with tqdm(total=sum(cells.values()), unit="cell", disable=not todo) as bar:
        def one(nb: Path, threads: str | None = None) -> None:
            seen = 0

            def tick(n: int) -> None:
                nonlocal seen
                seen += n
                with lock:
                    bar.update(n)

            with lock:
                running.append(nb.stem)
                bar.set_description(", ".join(running))
            got = reproduce(nb, on, tick, threads, recheck)
            with lock:
                running.remove(nb.stem)
                bar.update(cells[nb] - seen)  # of one that stopped early
                if got is None:
                    failed.append(nb.name)
                    bar.write(f"{nb.name} failed; its figures and tables are as they were", file=sys.stderr)
                else:
                    fate.update(got)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda nb: one(nb, "1" if jobs > 1 else None), [nb for nb in todo if not alone(nb)]))
        for nb in filter(alone, todo):
            one(nb)
    return fate, sorted(failed)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("names", nargs="*", help="such as table3, fig6, 01_loss; all if none")
    ap.add_argument("--plan", action="store_true", help="only say what would be run")
    ap.add_argument("--changed", action="store_true", help="only what is out of date, not what merely was not run here")
    ap.add_argument("--force", action="store_true", help="run even what is finished")
    ap.add_argument("--recheck", action="store_true", help="leave slow cells out, compare with what is recorded")
    ap.add_argument("--jobs", type=int, default=JOBS, help=f"pages at a time, but for those that measure time; {JOBS} here")
    args = ap.parse_args()
    every, on, manifest = writers(), flags(), read_manifest()
    try:
        chosen = resolve(args.names, every, manifest)
    except ValueError as e:
        ap.error(str(e))

    if args.recheck:
        if lost := [nb.stem for nb in chosen if nb.name not in manifest or not rechecks(nb, on)]:
            ap.error(f"nothing is recorded, or no cell that can run here compares it (`#| recheck: tab_name`): {', '.join(lost)}")
        on -= {"slow"}

    def due(nb: Path) -> bool:
        if args.recheck:
            return True
        now = inputs(nb)
        return args.force or not finished(nb, now, manifest, on) or not (args.changed or ran_here(nb, now, on))

    todo = [nb for nb in chosen if not missing(nb) and due(nb)]
    print(plan(chosen, todo, manifest, on, args.jobs), flush=True)
    if args.plan:
        return
    FIGURES.mkdir(exist_ok=True)
    with locked():
        manifest = read_manifest()
        for left in FIGURES.glob(".*.part"):  # of a killed run
            left.unlink()
        if gone := set(manifest) - {nb.name for nb in every}:  # saves nothing any more
            for name in gone:
                remove(manifest.pop(name)["files"], manifest)
            save_manifest(manifest)
    fate, failed = run_all(todo, on, args.jobs, args.recheck)
    if fate:
        print(compared(fate))
    items = [i for i in gallery.registry() if not args.names or i.page in {nb.stem for nb in chosen}]
    if items:
        print("\n" + gallery.summary(gallery.report(items)))
        if recorded := gallery.spoken([i for i in items if "data" in without(NBS / f"{i.page}.ipynb", on)]):
            print(f"\nWithout the paper's data nothing of {recorded} was made in this run: above is what is recorded.")
        print(f"\nThe same with pictures: {gallery.write_page().relative_to(ROOT)}")
    if failed:
        sys.exit(f"{', '.join(failed)} failed; the others are finished and kept")


if __name__ == "__main__":
    main()
