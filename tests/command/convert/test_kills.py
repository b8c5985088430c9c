"""A conversion that is killed at whatever it does to files goes on to the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent
EVERY = 13  # of the changes of the folder, one in so many is the last; 1 tries them all

SCRIPT = """
import os, shutil, signal, sys
from pathlib import Path
from loader.command.main import main
from loader.sources.packing import passes

every = int(sys.argv[1])
passes.BLOCK_BYTES = 3000

def files(folder):
    paths = [path for path in sorted(Path(folder).rglob("*")) if not path.is_dir()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

def forked(run):
    if (child := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(run())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def convert(to, folder="out"):
    return main(["convert", "some.toml", "--to", to, folder, "--shards", "3"])

def killed_at(number, to):
    count = 0
    def hook(event, arguments):
        nonlocal count
        if event in OPERATIONS and str(arguments[0]).startswith("out"):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    return convert(to)

OPERATIONS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
def kills(to):
    assert forked(lambda: convert(to, to)) == 0
    kills = number = 0
    while True:
        number += every
        shutil.rmtree("out", ignore_errors=True)
        if forked(lambda: killed_at(number, to)) == 0:
            return kills
        kills += 1
        assert forked(lambda: convert(to)) == 0, number
        assert files("out") == files(to), number
        assert not Path("out", "records.parts").exists(), number

print(kills("array_record"), kills("zarr"))
"""


def test_a_conversion_that_is_killed_anywhere_goes_on_to_the_same_bytes(tmp_path: Path):
    (tmp_path / "lines.txt").write_text("".join(f"line {n} {'x' * (n % 50)}\n" for n in range(300)))
    (tmp_path / "some.toml").write_text(
        '[source]\nkind = "TextLinesSource"\npaths = "lines.txt"\n'
        '[[operators]]\nkind = "Tokenize"\n[[operators]]\nkind = "PadTokens"\n'
        'leaf = "tokens"\nlength = 64\n[[operators]]\nkind = "Select"\nleaves = ["tokens"]\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(EVERY)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    kills = [int(number) for number in done.stdout.split()]
    assert all(number > 3 for number in kills), kills
