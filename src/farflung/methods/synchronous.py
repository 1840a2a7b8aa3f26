"""Synchronous full-graph training over parts, and BNS-GCN (Wan et al., arXiv 2203.10983).

In every step the embeddings of boundary nodes cross the network before each hidden layer, and the gradients of these
rows go back. BNS-GCN sends a share of each boundary's rows, drawn anew in every step, and scales them up. One gradient
of all weights per trainer goes to the server, whose Adam makes the step: the result is that of training on the whole
graph in one place.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.nn.utils import clip_grad_norm_

from farflung.errors import PeerLostError
from farflung.methods.aggregate import refuse_non_finite, summed
from farflung.methods.base import Patience, Round, Setting, require_time
from farflung.methods.budget import next_interval, rounds_of, seconds_of, spent
from farflung.nn import Encoder, flat
from farflung.nn.optim import adam
from farflung.team import Message, Reply, absent


def train(setting: Setting) -> None:
    """Train in lockstep; the results are in `setting.keeper`.

    Bytes for 4-byte numbers, W trainers, T steps, P parameters, d_l the width of layer l's input, b boundary rows in
    all and b_p = sum ceil(p b_ij) of them drawn in a step: 4 b d_0 for the features, once; 8 T b_p (d_1 + ... +
    d_{L-1}) for embeddings and their gradients; 8 T W P for weights down and gradients up.

    Raises PeerLostError as soon as a trainer is late or dead: none of the others can go on without it.
    """
    server = _Server(setting)
    server.begin()
    require_time(setting, "features had been exchanged")
    patience = Patience(setting.train.patience)
    round, steps = 0, 0
    while (interval := next_interval(setting.train, steps, setting.team.now())) is not None:
        setting.team.begin(round, "train")
        setting.journal.expect("train", round, rounds_of(setting.train), seconds_of(interval))
        start, made, loss = setting.team.now(), 0, None
        refused: dict[int, str] = {}
        while not spent(interval, made, setting.team.now() - start):
            loss, found = server.step(round, steps + made)
            refused |= found
            made += 1
        steps += made
        score = setting.validate(flat.pack(setting.model))
        better = setting.keeper.offer(round, setting.model.state_dict(), score)
        setting.journal.round(
            Round(
                round=round,
                phase="train",
                loss=loss,
                val=score,
                steps=dict.fromkeys(range(setting.team.size), made),
                absent=refused,
                seconds=setting.team.now(),
                best=better,
            )
        )
        round += 1
        if patience.over(better):
            break


class _Server:
    """Leads the trainers through a step, layer by layer, and steps its one Adam."""

    def __init__(self, setting: Setting) -> None:
        assert isinstance(setting.model, Encoder)
        self.setting, self.team, self.model = setting, setting.team, setting.model
        self.optimiser = adam(setting.optim, setting.model.layers)
        self.made = 0
        """Steps of the optimiser."""
        self.total = 0
        """Training nodes of all trainers n."""
        self.gathers = [layer.aggregation != "none" for layer in setting.model.layers]
        """Of each layer: whether it reads rows of other nodes."""

    def begin(self) -> None:
        """Learn how many training nodes there are; send features of boundary nodes, once for the whole training."""
        self.team.begin(0, "train")
        hello = self._all(self.team.broadcast(Message("hello"), self.setting.train.deadline), "hello")
        self.total = sum(reply.scalars["train"] for reply in hello)
        self.team.begin(0, "features")
        if self.gathers[0]:
            self._exchange(Message("give-features"), Message("take-features"))
        else:
            self._call(Message("take-features"))

    def step(self, round: int, number: int) -> tuple[float | None, dict[int, str]]:
        """Step `number` since the start; its mean loss, and whose gradients were no numbers (then nothing moves)."""
        last = len(self.gathers) - 1
        weights = {"weights": flat.pack(self.model)}
        scalars = {"step": number, "of": self.total}
        for layer in range(last):
            first = weights if layer == 0 else {}
            forward = Message("forward", {"layer": layer, **scalars}, first)
            self._pass(layer + 1, forward, Message("take-embeddings", {"layer": layer + 1}))
        for layer in range(last, 0, -1):
            self._pass(layer, Message("backward", {"layer": layer}), Message("take-gradients", {"layer": layer}))
        finish = Message("gradients", scalars, {} if last else weights)
        replies = self._all(self.team.broadcast(finish, self.setting.train.deadline), "gradients")
        done, refused = refuse_non_finite(replies, "gradients")
        if refused or not self.total:
            return None, refused
        self.optimiser.zero_grad()
        flat.set_gradients(self.model, summed([reply.arrays["gradients"] for reply in done]))
        self.made += 1
        optim = self.setting.optim
        if optim.clip is not None and self.made >= optim.clip_from:
            clip_grad_norm_(self.model.parameters(), optim.clip)
        self.optimiser.step()
        losses = [reply.scalars["loss"] for reply in done if reply.scalars["loss"] is not None]
        return sum(losses), {}

    def _pass(self, layer: int, send: Message, receive: Message) -> None:
        """Rows of the input of `layer`, or their gradients, go from trainer to trainer, if the layer gathers any."""
        if self.gathers[layer]:
            self._exchange(send, receive)
        else:
            self._call(send)
            self._call(receive)

    def _exchange(self, send: Message, receive: Message) -> None:
        everyone = range(self.team.size)
        deadline = self.setting.train.deadline
        sent = self.team.exchange(dict.fromkeys(everyone, send), dict.fromkeys(everyone, receive), deadline)
        self._all(sent, send.verb)

    def _call(self, message: Message) -> None:
        self._all(self.team.broadcast(message, self.setting.train.deadline), message.verb)

    def _all(self, replies: Iterable[Reply], what: str) -> list[Reply]:
        """All replies. Raises PeerLostError where one is missing."""
        found = list(replies)
        if missing := absent(found):
            names = "; ".join(f"trainer {k} is {why}" for k, why in missing.items())
            raise PeerLostError(
                f"synchronous training cannot go on without all trainers: waited for '{what}' in round "
                f"{self.team.round}, and {names}: bring it back and train again, or choose a method that lives without"
            )
        return found
