"""The team: the one door through which server and trainers talk. Engines implement it, methods use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from farflung.errors import AllTrainersLostError
from farflung.team.ledger import Ledger
from farflung.team.message import Message, Reply
from farflung.team.timeline import Timeline


class Team(ABC):
    """Some trainers, the ledger of what they sent, and a clock with its timeline."""

    ledger: Ledger
    timeline: Timeline
    """What its clock is made of."""
    size: int
    """Number of trainers M; they are called 0..M-1."""
    round: int = 0
    phase: str = "start"

    def begin(self, round: int, phase: str) -> None:
        """Name the round and phase that everything sent from now on belongs to."""
        self.round, self.phase = round, phase

    @abstractmethod
    def now(self) -> float:
        """Seconds since the parts were handed out, on this team's clock."""

    @abstractmethod
    def call(self, messages: Mapping[int, Message], deadline: float | None = None) -> list[Reply]:
        """Send each trainer its message and wait for the answers, at most `deadline` seconds (None: for ever).

        Returns one reply per message in the order of trainers: done, late or dead (`require_some` refuses a round
        without any that is done). An exception in a trainer is raised here at once as TrainerError.
        """

    @abstractmethod
    def exchange(
        self,
        send: Mapping[int, Message],
        receive: Mapping[int, Message],
        deadline: float | None = None,
    ) -> list[Reply]:
        """Trainer to trainer: each in `send` answers with arrays named `kind/peer[/...]`; the team carries them to
        the peers in `receive`, each of which gets its own as `kind/sender[/...]` with its message.

        Returns the answers to `send` without their arrays: who sent, and who is missing. Raises as `call` does.
        """

    def fetch(
        self, ask: Mapping[int, Message], give: Message, take: Mapping[int, Message], deadline: float | None = None
    ) -> list[Reply]:
        """Pull remote rows. Each trainer in `ask` answers with the row numbers that it wants, arrays named
        `kind/owner[/...]`. The owners hear `requested` with those of each asker as `kind/asker[/...]`, then `give`,
        which they answer with the rows under these names; askers get them as `kind/owner[/...]` with their `take`.

        Numbers and rows are both metered under their kind, once, at their sender. Rows of late or dead owners are
        missing in `take`; an asker whose numbers came late is left out. Each of the three steps may last `deadline`
        seconds. Every trainer hears `requested` and `give`, for only the askers know the owners: one that nobody
        asked gets no array and answers without any.

        Returns one reply per trainer in their order, without arrays: whether it both asked and gave in time, else why
        not; those to `ask` alone where none of them came in time. Raises as `call` does.
        """
        asked = self.exchange(ask, dict.fromkeys(range(self.size), Message("requested")), deadline)
        here = {reply.trainer for reply in asked if reply.done}
        if not here:
            return asked
        receive = {k: message for k, message in take.items() if k in here}
        gave = self.exchange(dict.fromkeys(range(self.size), give), receive, deadline)
        missing = {reply.trainer: reply for reply in asked if not reply.done}
        return [missing.get(reply.trainer, reply) for reply in gave]

    @abstractmethod
    def evaluate(self, weights: np.ndarray, depth: int | None = None) -> Mapping[str, float | None]:
        """Validation metrics of a flat weight vector on the whole graph, scored beside the trainers' clock.

        `depth`: score by the first so many layers alone, the last of them with its head, and `weights` are those of
        them (`nn.model.first_layers`); None: by all.
        """

    @abstractmethod
    def at_server(self, message: Message) -> Message:
        """Ask the server's own trainer, which holds the whole graph: nothing crosses the network but, once, all parts
        on their way to it (`setup`). The clock goes on by its work, since everybody waits for it.

        Raises FarflungError where the server holds no graph, TrainerError as `call` does.
        """

    def broadcast(self, message: Message, deadline: float | None = None) -> list[Reply]:
        """`call` with one message for all."""
        return self.call(dict.fromkeys(range(self.size), message), deadline)

    @abstractmethod
    def close(self) -> None:
        """Let the trainers go."""


def absent(replies: Iterable[Reply]) -> dict[int, str]:
    """Who did not answer, and why."""
    return {r.trainer: f"{r.status}: {r.reason}" if r.reason else str(r.status) for r in replies if not r.done}


def require_some(replies: list[Reply], what: str) -> list[Reply]:
    """The replies that are done. Raises AllTrainersLostError, naming `what` was waited for, if there are none."""
    done = [reply for reply in replies if reply.done]
    if replies and not done:
        reasons = "; ".join(f"trainer {k} {why}" for k, why in absent(replies).items())
        raise AllTrainersLostError(
            f"no trainer answered '{what}' ({reasons}): bring them back and train again "
            "(a run folder holds the last checkpoint)"
        )
    return done
