"""The demo: what it claims is computed, so a resume that is broken fails it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run_demo(
    folder: Path, epochs: int, *broken: tuple[str, str, str]
) -> subprocess.CompletedProcess[str]:
    """The demo in a copy of the project, with some text of some files replaced."""
    for part in ("loader", "operators", "scripts", "configs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in broken:
        text = (folder / name).read_text()
        assert text.count(before) == 1, name
        (folder / name).write_text(text.replace(before, after))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("XLA_FLAGS", None)
    return subprocess.run(
        [sys.executable, "scripts/demo.py", "--epochs", str(epochs)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_the_demo_shows_what_it_claims(tmp_path: Path):
    done = run_demo(tmp_path, 8)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("yes ") == 7
    assert (tmp_path / "build/demo/demo.png").stat().st_size > 10_000


def test_a_resume_that_is_broken_is_noticed(tmp_path: Path):
    one_record_late = ('"position": position,', '"position": position + 1,')
    done = run_demo(tmp_path, 6, ("loader/state/document.py", *one_record_late))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NO   every record" in done.stdout
    assert "NO   in the same order" in done.stdout
