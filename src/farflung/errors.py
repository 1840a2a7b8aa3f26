"""Every error that a user can cause or meet, each one sentence: what, where, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean '...'?)` where one of the `known` names holds `name` or is close to it, else an empty text."""
    names = list(known)
    close = [one for one in names if name and name in one] or difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f" (did you mean '{close[0]}'?)" if close else ""


class FarflungError(Exception):
    """Base of all errors that Farflung raises on purpose; the command line prints it as one line."""


class InputError(FarflungError, ValueError):
    """A graph, a file, an option or a name that cannot be used as it is (exit code 2)."""


class MissingExtraError(FarflungError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it (exit code 2)."""


class NotFiniteError(FarflungError, ArithmeticError):
    """Scores of a model are infinite or not a number: its weights have diverged."""


class TrainerError(FarflungError, RuntimeError):
    """A trainer raised an exception; the message names the trainer, the cause carries its traceback."""


class PeerLostError(FarflungError, RuntimeError):
    """A trainer is late or dead that the others cannot go on without; the message names it and the round."""


class AllTrainersLostError(FarflungError, RuntimeError):
    """No trainer answered within the deadline: the run ends, its last checkpoint stays loadable."""
