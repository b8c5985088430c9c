"""The command `gristmill`: look at a configuration, measure it, train with it, resume.

Bad input is one line on stderr, or one for each problem of a configuration, and exit status 2.
Numbers come as JSON with `--json`.
"""

import argparse
import dataclasses
import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

import operators
from loader.command import check, progress, run_folder
from loader.command.bench import Knobs, bench
from loader.command.calls import one_line
from loader.command.config import Config, read_config
from loader.command.kinds import KINDS
from loader.command.peek import peek
from loader.command.problems import ConfigError, Problem
from loader.command.state_files import read_state
from loader.command.states import diff_to_json, show_diff, show_state, state_to_json
from loader.command.tasks import TASKS
from loader.command.train import train, training_step

ALL_KINDS = {
    **KINDS,
    **TASKS,
    **{name: kind for name, kind in vars(operators).items() if isinstance(kind, type)},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    options = _parser().parse_args(arguments)
    warnings.filterwarnings("ignore", module="orbax|flax|jax|absl")  # of others, to developers
    try:
        return options.run(options)
    except ConfigError as error:
        _say(options, error.problems, error.lines())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # of data, and of code that is not ours: one line all the same
        if options.traceback:
            raise
        _say(options, [Problem(None, one_line(error))], [f"gristmill: {one_line(error)}"])
    return 2


def _say(options: argparse.Namespace, problems: Sequence[Problem], lines: Sequence[str]) -> None:
    if options.json:
        _print_json({"problems": [problem.to_json() for problem in problems]})
    for line in lines:
        print(line, file=sys.stderr)


def _check(options: argparse.Namespace) -> int:
    config = _config(options)
    facts = check.check(config)
    _out(options, facts, lambda console: check.show(facts, config, console))
    return 0


def _peek(options: argparse.Namespace) -> int:
    config = _config(options)
    picture = options.picture or Path(f"{options.config.stem}-step-{options.step}.png")
    tokenizers = [p.tokenizer for p in config.parts if isinstance(p, operators.Tokenize)]
    decode = tokenizers[0].decode if tokenizers else None
    seen = peek(config.loader(), options.step, picture=picture, decode=decode, rows=options.rows)
    _out(options, seen.to_json(), seen.show)
    return 0


def _bench(options: argparse.Namespace) -> int:
    config = _config(options)
    knobs = Knobs(config.settings.threads, config.settings.prefetch)
    step: Callable[[Any], Any] | None = None
    if options.step_ms is not None:
        step = functools.partial(_wait, options.step_ms / 1e3)
    elif options.train:
        step = training_step(_trainable(config))

    def build(knobs: Knobs) -> Any:
        return config.loader(**dataclasses.asdict(knobs))

    verdict = bench(build, knobs, seconds=options.seconds, step=step)
    _out(options, verdict.to_json(), verdict.show)
    return 0


def _wait(seconds: float, batch: Any) -> None:
    time.sleep(seconds)


def _train(options: argparse.Namespace) -> int:
    config = _trainable(_config(options))
    folder = options.into or Path("runs") / options.config.stem
    run_folder.make(folder)
    begun = functools.partial(run_folder.begin, folder, options.config, options.set)
    return _run(options, config, folder, begun)


def _resume(options: argparse.Namespace) -> int:
    saved = run_folder.read(options.folder)
    folder = options.folder.absolute()
    os.chdir(saved.folder)  # paths in the configuration are as they were
    changes = (*saved.changes, *options.set)
    config = _trainable(read_config(folder / run_folder.CONFIG, ALL_KINDS, changes))
    changed = dataclasses.replace(saved, changes=changes)
    begun = functools.partial(run_folder.write, folder, changed)
    return _run(options, config, folder, begun, options.allow)


def _run(
    options: argparse.Namespace,
    config: Config,
    folder: Path,
    begun: Callable[[], None],
    allow: Sequence[str] = (),
) -> int:
    with run_folder.alone(folder), progress.shown(_console(options)) as tell:
        (folder / "result.json").unlink(missing_ok=True)
        try:
            result = train(config, folder, tell, begun=begun, allow_changes=allow)
        except KeyboardInterrupt:
            print(f"go on with: gristmill resume {folder}", file=sys.stderr)
            raise
    (folder / "result.json").write_text(json.dumps(result.to_json(), indent=2))
    _out(options, result.to_json(), lambda console: run_folder.show(result, folder, console))
    return 0


def _trainable(config: Config) -> Config:
    if config.train is None:
        raise ValueError(f"{config.document.name} has no section [train]: what is to be learned?")
    return config


def _state_show(options: argparse.Namespace) -> int:
    path, state = read_state(options.file)
    _out(options, state_to_json(state, path), lambda console: show_state(state, console, path))
    return 0


def _state_diff(options: argparse.Namespace) -> int:
    first, second = (read_state(path)[1] for path in (options.first, options.second))
    _out(options, diff_to_json(first, second), lambda console: show_diff(first, second, console))
    return 0


def _config(options: argparse.Namespace) -> Config:
    return read_config(options.config, ALL_KINDS, options.set)


def _out(
    options: argparse.Namespace, numbers: dict[str, Any], show: Callable[[Console], None]
) -> None:
    if options.json:
        _print_json(numbers)
    else:
        show(_console(options))


def _console(options: argparse.Namespace) -> Console:
    """Where to show things: stderr when stdout is for JSON."""
    return Console(stderr=options.json, soft_wrap=not sys.stdout.isatty())


def _print_json(numbers: Any) -> None:
    print(json.dumps(numbers, indent=2, allow_nan=False))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for all bad input."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="numbers as JSON on stdout")
    common.add_argument("--traceback", action="store_true", help="show where an error came from")
    changes = _Parser(add_help=False)
    changes.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="another value for a key of the configuration, such as loader.batch_size=32",
    )  # fmt: skip
    parser = _Parser(prog="gristmill", description="A data loader for JAX training loops.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, words: str, *more: Any, within: Any = commands) -> Any:
        made = within.add_parser(name, help=words, description=words, parents=[common, *more])
        made.set_defaults(run=run)
        return made

    for name, run, words in (
        ("check", _check, "say what a configuration comes to, or all that is wrong with it"),
        ("peek", _peek, "look at a batch: pictures, texts, masks, ranges"),
        ("bench", _bench, "run it, and say where the time goes and what to change"),
        ("train", _train, "train the configuration's task, with checkpoints"),
    ):
        command(name, run, words, changes).add_argument("config", type=Path, metavar="CONFIG")
    peek_, bench_, train_ = (commands.choices[name] for name in ("peek", "bench", "train"))
    peek_.add_argument("--step", type=int, default=0, help="which batch (0)")
    peek_.add_argument("--rows", type=int, default=8, help="rows of text to show (8)")
    peek_.add_argument("--picture", type=Path, help="where to write the sheet of images")
    bench_.add_argument("--seconds", type=float, default=5.0, help="how long to measure (5)")
    step = bench_.add_mutually_exclusive_group()
    step.add_argument("--step-ms", type=float, help="a training step that takes this long")
    step.add_argument("--train", action="store_true", help="the step of `gristmill train`")
    train_.add_argument("--into", type=Path, metavar="DIR", help="folder of the run (runs/NAME)")
    resume = command("resume", _resume, "go on with a run where it was", changes)
    resume.add_argument("folder", type=Path, metavar="DIR")
    resume.add_argument(
        "--allow", action="append", default=[], metavar="FIELD",
        help="a field of the fingerprint that may differ, such as order.seed",
    )  # fmt: skip
    state = commands.add_parser("state", help="look at a saved state, compare two")
    states = state.add_subparsers(required=True, metavar="show|diff")
    show = command("show", _state_show, "a state in words", within=states)
    show.add_argument("file", type=Path, metavar="FILE")
    diff = command("diff", _state_diff, "what differs between two", within=states)
    diff.add_argument("first", type=Path, metavar="FILE")
    diff.add_argument("second", type=Path, metavar="FILE")
    return parser
