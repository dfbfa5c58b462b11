"""Run notebooks: `python -m tools.execute [--write] [--flags slow ...] [notebook ...]`.

With `--write` the outputs go back into the notebook, without what differs from run to run. Cells flagged slow, gpu or
data run only if their flag is given; otherwise their stored outputs stay.
"""
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from execnb.nbio import nb2str, read_nb
from execnb.shell import CaptureShell
from nbdev.clean import clean_nb
from nbdev.config import get_config
from tqdm import tqdm

from tools.book import NBS, Cell, atomic_write, notebooks, parse_cell


def skips(cell: Cell, flags: set[str]) -> bool:
    """Is this a cell that does not run: prose, the closing export, or one whose flag is not asked for?"""
    off = set(get_config().tst_flags.split()) - flags
    return (
        cell.kind != "code"
        or not cell.code.strip()
        or "nbdev_export(" in cell.code
        or (cell.value("eval") or "").lower() == "false"
        or cell.has(*off)
    )


def run(nb: Path, flags: set[str], write: bool = False, tick=lambda: None) -> None:
    """Execute one notebook in its folder; `tick` is called after each cell that ran."""
    book = read_nb(nb)
    shell = CaptureShell(nb)
    here = os.getcwd()
    os.chdir(nb.parent)
    try:
        for raw in book.cells:
            if skips(parse_cell(raw), flags):
                continue
            raw.outputs = []
            shell.cell(raw)
            # Warnings go to the screen, not into the stored notebook; progress bars, by now finished, nowhere.
            for o in raw.outputs:
                if o.get("name") == "stderr":
                    said = [l for l in "".join(o.text).split("\n") if l and "\r" not in l]
                    sys.stderr.write("".join(l + "\n" for l in said))
            raw.outputs = [o for o in raw.outputs if o.get("name") != "stderr"]
            if shell.exc:
                sys.exit(shell.prettytb(nb.name))
            tick()
    finally:
        os.chdir(here)
    if write:
        clean_nb(book)
        atomic_write(nb, nb2str(book))


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("notebooks", nargs="*", help="names such as 01_loss; all if none")
    ap.add_argument("--write", action="store_true", help="store the outputs")
    ap.add_argument("--flags", nargs="*", default=[], help="run cells so flagged too")
    ap.add_argument("--progress-fd", type=int, help="write a byte to this file descriptor after each cell")
    args = ap.parse_args()
    chosen = [NBS / f"{Path(o).stem}.ipynb" for o in args.notebooks] or notebooks()
    if missing := [o.name for o in chosen if not o.exists()]:
        ap.error(f"no such notebook: {', '.join(missing)}")
    if args.progress_fd is not None:
        tick = lambda: os.write(args.progress_fd, b".")  # noqa: E731
        for nb in chosen:
            run(nb, set(args.flags), args.write, tick)
        return
    # One process per notebook: what one leaves behind, the next must not see.
    for nb in (bar := tqdm(chosen, disable=len(chosen) == 1)):
        bar.set_description(nb.stem)
        if len(chosen) == 1:
            run(nb, set(args.flags), args.write)
        elif os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-m", "tools.execute", nb.stem,
                       *["--write"] * args.write, *(["--flags", *args.flags] if args.flags else [])]):
            sys.exit(f"{nb.name} failed")


if __name__ == "__main__":
    main()
