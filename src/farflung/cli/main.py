"""The program: its commands, and what becomes of errors."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import click
import typer

from farflung import __version__
from farflung.cli import graphs, reporting, results, training
from farflung.errors import FarflungError, InputError, MissingExtraError, TrainerError, did_you_mean

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

app = typer.Typer(
    name="farflung",
    help="Train graph neural networks on graphs that are spread out, with almost no network traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command(short_help="Train a model on a graph in parts.")(training.train)
app.command(short_help="Train several methods on one graph and tabulate them.")(training.compare)
app.command(short_help="Write a page on runs and comparisons.")(reporting.report)
app.command(short_help="Score the model of a run folder again.")(results.evaluate)
app.command(short_help="Time a run on other links, without training again.")(results.replay)
app.command(short_help="Predict every node with the model of a run folder.")(results.predict)
app.command(short_help="Write the embedding of every node.")(results.embed)
app.command(short_help="Cut a graph into parts.")(graphs.partition)
app.command(short_help="Say what a partition is like before anyone trains on it.")(graphs.inspect)
app.command(short_help="List the named methods, or print one's options.")(graphs.presets)
app.command(short_help="List the graphs that can be named.")(graphs.datasets)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"farflung {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train graph neural networks on graphs that are spread out, with almost no network traffic."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code.

    `arguments` None: those of this process, which SIGTERM then ends as Ctrl-C does.
    """
    if arguments is None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
    code = _run(arguments)
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="farflung", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.ClickException as error:
        _complain(_explained(error))
        return 2
    except (InputError, MissingExtraError) as error:
        _complain(str(error))
        return 2
    except FarflungError as error:
        if isinstance(error, TrainerError) and not isinstance(error.__cause__, FarflungError):
            traceback.print_exception(error.__cause__)  # the trainer's own: a defect, not a wrong input
        _complain(str(error))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        _complain(f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}")
        return 1
    return code if isinstance(code, int) else 0


def _explained(error: click.ClickException) -> str:
    """A usage error with what exists in place of click's guesses."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error.format_message()
    if isinstance(error, click.NoSuchOption):
        flags = [flag for parameter in context.command.params for flag in parameter.opts if flag.startswith("--")]
        hint = did_you_mean(error.option_name, flags)
        return f"no such option '{error.option_name}'{hint}: {context.command_path} has {', '.join(flags)}"
    if isinstance(context.command, click.Group) and error.message.startswith("No such command"):
        name = error.message.split("'")[1]
        return f"no such command '{name}': farflung has {', '.join(context.command.list_commands(context))}"
    return f"{error.format_message()} (see `{context.command_path} --help`)"


def _complain(message: str) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)
