"""What is installed fits together, and everybody's licence is known."""
import subprocess
import sys

import pytest

from tools import licences


def test_pip_finds_nothing_broken():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_list_of_licences_is_complete():
    assert licences.problems() == []


def test_every_group_of_pyproject_is_listed(root):
    text = (root / "LICENSES.md").read_text()
    for group, requirements in licences.asked().items():
        assert group in licences.GROUPS, f"tools/licences.py does not know the extra {group}"
        assert requirements and all(f"| {licences.key(r.name)} |" in text for r in requirements)


def test_what_is_needed_to_run():
    """Nothing but these three and what they need; and all of it is here, so that all of it was looked at."""
    assert {r.name for r in licences.asked()[""]} == {"numpy", "scipy", "torch"}
    found = licences.closure(licences.asked()[""])
    assert {"numpy", "scipy", "torch", "sympy", "jinja2"} <= set(found) and None not in found.values()


@pytest.mark.parametrize(("text", "bad"), [
    ("MIT", False), ("GPL-3.0-or-later", True), ("AGPL-3.0-only", True), ("MIT OR GPL-2.0-only", False), ("MIT AND GPL-2.0-only", True),
    ("LGPL-3.0-or-later", False), ("GNU General Public License v3 (GPLv3)", True), ("GNU Lesser General Public License v3 (LGPLv3)", False),
    ("BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1", False), ("", False)])
def test_what_counts_as_copyleft(text, bad):
    assert licences.copyleft(text) is bad


def test_a_missing_or_changed_licence_is_seen(monkeypatch, tmp_path):
    file = tmp_path / "LICENSES.md"
    monkeypatch.setattr(licences, "FILE", file)
    monkeypatch.setattr(licences, "rows", lambda: {"": {"a": (">=1", "1.2", "MIT"), "b": ("", "1", "GPL-3.0-only"), "c": ("", "1", "")}})
    file.write_text("| a | >=1 | 1.0 | BSD |\n| c | | 1 | MIT |\n")
    assert licences.problems() == ["a: LICENSES.md says 'BSD', the package 'MIT'", "b is not in LICENSES.md", "b is needed to run, and is under 'GPL-3.0-only'", "c does not say its licence"]
    file.write_text(licences.render())
    assert licences.problems() == ["b is needed to run, and is under 'GPL-3.0-only'", "c does not say its licence"]
