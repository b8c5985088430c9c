"""The command `gristmill`: look at a configuration, at its batches, its speed, its states.

Bad input is one line on stderr, or one for each problem of a configuration, and exit status 2.
Numbers come as JSON with `--json`.
"""

import argparse
import functools
import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from etils import epath
from rich.console import Console

import operators
from loader.command import check, state
from loader.command import serve as serving
from loader.command.bench.verdict import bench
from loader.command.config.config import read_config, read_document
from loader.command.config.kinds import KINDS
from loader.command.config.problems import ConfigError, Problem, one_line
from loader.command.config.sections import TASKS
from loader.command.config.trust import imported, working_folder_importable
from loader.command.convert.convert import Name, Target, convert
from loader.command.init.init import init
from loader.command.launch.launch import add_parser as add_launch
from loader.command.peek.peek import peek
from loader.command.plan.plan import plan
from loader.command.plan.quantities import bytes_per_second, seconds
from loader.command.plan.showing import draw
from loader.command.plan.showing import show as show_plan
from loader.command.tokenize import tokenize
from loader.records.version import __version__
from loader.runtime.workers.processes.kind import Processes
from loader.state.finding import read_state
from loader.state.streams import is_stream_document, read_stream_document

ALL_KINDS = {
    **KINDS,
    **TASKS,
    **{name: kind for name, kind in vars(operators).items() if isinstance(kind, type)},
}

#: What a subcommand has found: as JSON data, and how to print it for people.
Shown = tuple[dict[str, Any], Callable[[Console], None]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    options = _parser().parse_args(arguments)
    return options.status(options) if "status" in options else run(options, "gristmill")


def run(options: argparse.Namespace, program: str) -> int:
    """Show what `options.run(options)` gives, or say what went wrong, as the command does."""
    with working_folder_importable(), warnings.catch_warnings():
        # Warnings of these are for developers.
        warnings.filterwarnings("ignore", module="orbax|flax|jax|absl|matplotlib")
        try:
            numbers, show = options.run(options)
            if options.json:
                print(json.dumps(numbers, indent=2, allow_nan=False))
            else:
                show(Console(soft_wrap=not sys.stdout.isatty()))
            if "then" in options:
                options.then()
            return 0
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:  # the reader of the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:  # of data, and of code that is not ours: one line all the same
            problems, lines = [Problem(None, one_line(error))], [f"{program}: {one_line(error)}"]
            if isinstance(error, ConfigError):
                problems, lines = error.problems, error.lines()
            elif options.traceback:
                raise
        if options.json:
            found = [{"line": p.line or None, "message": p.message} for p in problems]
            print(json.dumps({"problems": found}, indent=2))
        print(*lines, sep="\n", file=sys.stderr)
    return 2


def _check(options: argparse.Namespace) -> Shown:
    config = read_config(options.config, ALL_KINDS, options.set, options.trust)
    facts = check.check(config)
    return facts, lambda console: check.show(facts, config, console)


def _peek(options: argparse.Namespace) -> Shown:
    config = read_config(options.config, ALL_KINDS, options.set, options.trust)
    picture = options.picture or Path(f"{options.config.stem}-step-{options.step}.png")
    makers = (operators.Tokenize, operators.ChatTemplate)
    tokenizers = [part.tokenizer for part in config.parts if isinstance(part, makers)]
    decode = getattr(tokenizers[0], "decode", None) if tokenizers else None
    seen = peek(config.loader, options.step, picture=picture, decode=decode, rows=options.rows)
    return seen.to_json(), seen.show


def _bench(options: argparse.Namespace) -> Shown:
    step: Callable[[Any], Any] | None = None
    if options.step_ms is not None:
        step = functools.partial(lambda seconds, _: time.sleep(seconds), options.step_ms / 1e3)
    elif options.step is not None:
        step = imported(options.step)
        if not callable(step):
            raise ValueError(f"--step {options.step} is {step!r}, which cannot be called")
    config = read_config(options.config, ALL_KINDS, options.set, options.trust)
    verdict = bench(config.loader, seconds=options.seconds, step=step)
    return verdict.to_json(), verdict.show


def _plan(options: argparse.Namespace) -> Shown:
    config = read_config(options.config, ALL_KINDS, options.set, options.trust)
    speeds = {
        "latency_s": seconds(options.latency),
        "bytes_per_s": bytes_per_second(options.bandwidth),
        "step_s": 0.0 if options.step_time is None else seconds(options.step_time),
        "prefetch": config.settings.prefetch,
    }
    planned = plan(config.loader, options.hosts, options.cache, speeds)
    picture = options.picture or Path(f"{options.config.stem}-plan.png")
    drawn = picture if options.picture or importlib.util.find_spec("matplotlib") else None
    if drawn is not None:
        draw(planned, drawn)
    facts = {**planned.to_json(), "picture": None if drawn is None else str(drawn)}
    return facts, lambda console: show_plan(planned, console, drawn)


def _init(options: argparse.Namespace) -> Shown:
    made = init(options.path, ALL_KINDS, options.output, overwrite=options.overwrite)
    return made.to_json(), made.show


def _tokenize(options: argparse.Namespace) -> Shown:
    document = read_document(options.config, options.set)
    workers = None if options.workers is None else Processes(options.workers)
    made = tokenize(document, ALL_KINDS, options.output, options.trust, workers)
    return made.to_json(), made.show


def _convert(options: argparse.Namespace) -> Shown:
    target = Target(options.to, options.folder, options.shards, options.operators)
    document = read_document(options.config, options.set)
    workers = None if options.workers is None else Processes(options.workers)
    made = convert(document, ALL_KINDS, target, options.trust, workers)
    return made.to_json(), made.show


def _serve(options: argparse.Namespace) -> Shown:
    if options.list:
        found = serving.listed(options.address)
        return found, lambda console: serving.show_list(found, console)
    if options.stop is not None:
        serving.stop(options.stop, options.address)
        return {"stopped": options.stop}, lambda console: console.print(f"{options.stop} has ended")
    if options.config is None:
        raise ValueError("give a configuration, or --list, or --stop NAME")
    config = read_config(options.config, ALL_KINDS, options.set, options.trust)
    served = serving.serve(config.loader, options.name, options.workers, options.address)
    options.then = served.wait
    return served.to_json(), served.show


def _state_show(options: argparse.Namespace) -> Shown:
    file = Path(options.file)
    if file.is_file() and is_stream_document(epath.Path(file)):
        document = read_stream_document(epath.Path(file))
        facts = {"file": str(file), "stream": document}
        return facts, lambda console: state.show_stream(document, console, file)
    path, found = read_state(options.file)
    facts = state.state_to_json(found, path)
    return facts, lambda console: state.show_state(found, console, path)


def _state_diff(options: argparse.Namespace) -> Shown:
    first, second = (read_state(path)[1] for path in (options.first, options.second))
    facts = state.diff_to_json(first, second)
    return facts, lambda console: state.show_diff(first, second, console)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, as for all bad input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_common(parser: argparse.ArgumentParser, *, changes: bool) -> None:
    """The options that every program of ours takes; `--set` where it reads a configuration."""
    parser.add_argument("--json", action="store_true", help="numbers as JSON on stdout")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    if changes:
        words = "another value for a key of the configuration, such as loader.batch_size=32"
        parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=words)
        words = "a module, or module:name, from outside the working folder that the file may use"
        parser.add_argument("--trust", action="append", default=[], metavar="NAME", help=words)


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, default=1, help="how many share every batch (1)")
    words = "how long a training step takes: whether input keeps up with it"
    parser.add_argument("--step-time", metavar="TIME", help=words)
    words = "bytes of the cache of each host, such as 50GB (that of the source, or none)"
    parser.add_argument("--cache", metavar="BYTES", help=words)
    parser.add_argument("--latency", default="30ms", metavar="TIME", help="of a request (30ms)")
    parser.add_argument("--bandwidth", default="1GB/s", metavar="SPEED", help="of a host (1GB/s)")
    parser.add_argument("--picture", type=Path, help="where to draw it")


def _add_convert_options(parser: argparse.ArgumentParser) -> None:
    words = "the folder for the shards: a new one, or one to go on with"
    parser.add_argument("folder", metavar="FOLDER", help=words)
    words = "the format: array_record for any records, zarr for arrays of one shape"
    parser.add_argument("--to", choices=get_args(Name), required=True, help=words)
    words = "how many shards of even size (as many as make about 128 MiB each)"
    parser.add_argument("--shards", type=int, metavar="N", help=words)
    words = "how many of the operators are applied before writing (all)"
    parser.add_argument("--operators", type=int, metavar="N", help=words)
    words = "how many processes make the records (none: this one does)"
    parser.add_argument("--workers", type=int, metavar="N", help=words)


def _add_init_options(parser: argparse.ArgumentParser) -> None:
    words = "a file, a folder, a glob, or an address such as gs://bucket/folder"
    parser.add_argument("path", metavar="PATH", help=words)
    words = "where to write it (NAME.toml in this folder); - for standard output"
    parser.add_argument("-o", "--output", metavar="FILE", help=words)
    words = "replace the file if it is there already"
    parser.add_argument("--overwrite", action="store_true", help=words)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gristmill", description="A data loader for JAX training loops.")
    parser.add_argument("--version", action="version", version=f"gristmill {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, words: str, *names: str, within: Any = commands) -> Any:
        made = within.add_parser(name, help=words, description=words)
        made.set_defaults(run=run)
        add_common(made, changes=name == "serve" or names == ("config",))
        for argument in names:
            metavar = "CONFIG" if argument == "config" else "FILE"
            made.add_argument(argument, type=Path, metavar=metavar)
        return made

    _add_init_options(command("init", _init, "write a configuration for a file, folder or address"))
    command("check", _check, "validate a configuration and print its pipeline", "config")
    peek_ = command("peek", _peek, "look at a batch: pictures, texts, masks, ranges", "config")
    peek_.add_argument("--step", type=int, default=0, help="which batch (0)")
    peek_.add_argument("--rows", type=int, default=8, help="rows of text to show (8)")
    peek_.add_argument("--picture", type=Path, help="where to write the sheet of images")
    bench_ = command("bench", _bench, "say where the time goes, and what to change", "config")
    bench_.add_argument("--seconds", type=float, default=5.0, help="how long to measure (5)")
    step = bench_.add_mutually_exclusive_group()
    step.add_argument("--step-ms", type=float, help="a training step that takes this long")
    words = "your training step: called with a batch, it returns what JAX can wait for, or None"
    step.add_argument("--step", metavar="MODULE:FUNCTION", help=words)
    words = "what a run would read of its storage, on paper"
    _add_plan_options(command("plan", _plan, words, "config"))
    words = "make the tokens of packed sources once, into files; print the [source] for them"
    tokenize_ = command("tokenize", _tokenize, words, "config")
    words = "the folder for the files of tokens"
    tokenize_.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help=words)
    words = "how many processes make them (none: this one does)"
    tokenize_.add_argument("--workers", type=int, metavar="N", help=words)
    words = "write the records of any source once, into shards; print the [source] that reads them"
    _add_convert_options(command("convert", _convert, words, "config"))
    serve = command("serve", _serve, "make host batches for several jobs, on a Ray cluster")
    serving.add_options(serve)
    states = commands.add_parser("state", help="look at a saved state, compare two")
    states = states.add_subparsers(required=True, metavar="show|diff")
    command("show", _state_show, "a state in words", "file", within=states)
    command("diff", _state_diff, "what differs between two", "first", "second", within=states)
    add_launch(commands)
    return parser
