"""Synchronous full-graph training over parts, and BNS-GCN (Wan et al., arXiv 2203.10983).

In every step the embeddings of boundary nodes cross the network before each hidden layer, and the gradients of these
rows go back. BNS-GCN sends a share of each boundary's rows, drawn anew in every step, and scales them up. One gradient
of all weights per trainer goes to the server, whose Adam makes the step: the result is that of training on the whole
graph in one place.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        server.complete_features(round)
        setting.team.begin(round, "train")
        setting.journal.expect("train", round, rounds_of(setting.train), seconds_of(interval))
        start, made, loss = setting.team.now(), server.made, None
        tried, refused = 0, dict[int, str]()
        while not spent(interval, tried, setting.team.now() - start):
            loss, found = server.step(steps + tried)
            refused |= found
            tried += 1
        steps += tried
        score = setting.validate(flat.pack(setting.model))
        better = setting.keeper.offer(round, setting.model.state_dict(), score)
        setting.journal.round(
            Round(
                round=round,
                phase="train",
                loss=loss,
                val=score,
                steps=dict.fromkeys(range(setting.team.size), server.made - made),
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
        self.lacking = False
        """Whether some trainer does without features of its halo."""
        self.gathers = [layer.aggregation != "none" for layer in setting.model.layers]
        """Of each layer: whether it reads rows of other nodes."""

    def begin(self) -> None:
        """Learn how many training nodes there are; send features of boundary nodes, once for the whole training."""
        self.team.begin(0, "train")
        hello = self._call(Message("hello"), "a sign of life")
        self.total = sum(reply.scalars["train"] for reply in hello)
        self._features(0)

    def complete_features(self, round: int) -> None:
        """Send features again if some did not come, or not in finite numbers."""
        if self.lacking:
            self._features(round)

    def _features(self, round: int) -> None:
        self.team.begin(round, "features")
        if self.gathers[0]:
            self._exchange(Message("give-features"), Message("take-features"), "features of its boundary")
        else:
            self._call(Message("take-features"), "a sign that it has its features")

    def step(self, number: int) -> tuple[float | None, dict[int, str]]:
        """Step `number` since the start; its mean loss, and whose numbers were refused (then nothing moves)."""
        last = len(self.gathers) - 1
        weights = {"weights": flat.pack(self.model)}
        scalars = {"step": number, "of": self.total}
        for layer in range(last):
            forward = Message("forward", {"layer": layer, **scalars}, weights if layer == 0 else {})
            embeddings = Message("take-embeddings", {"layer": layer + 1})
            self._pass(layer + 1, forward, embeddings, f"the output of layer {layer}")
        for layer in range(last, 0, -1):
            backward, gradients = Message("backward", {"layer": layer}), Message("take-gradients", {"layer": layer})
            self._pass(layer, backward, gradients, f"gradients of the input of layer {layer}")
        finish = Message("gradients", scalars, {} if last else weights)
        replies = self._call(finish, "gradients of the weights")
        refused = self._refused(replies)
        if refused or not self.total:
            return None, refused
        self.optimiser.zero_grad()
        flat.set_gradients(self.model, summed([reply.arrays["gradients"] for reply in replies]))
        self.made += 1
        optim = self.setting.optim
        if optim.clip is not None and self.made >= optim.clip_from:
            clip_grad_norm_(self.model.parameters(), optim.clip)
        self.optimiser.step()
        losses = [reply.scalars["loss"] for reply in replies if reply.scalars["loss"] is not None]
        return sum(losses), {}

    def _refused(self, replies: Sequence[Reply]) -> dict[int, str]:
        """Trainers that sent numbers that are not finite, to the server or to others: they spoil all gradients."""
        _, refused = refuse_non_finite(replies, "gradients")
        for reply in replies:
            for sender in reply.scalars.get("unsound", ()):
                refused.setdefault(sender, "refused: rows that it sent are missing or not finite")
        lacking = {owner for reply in replies for owner in reply.scalars.get("lacking", ())}
        self.lacking = bool(lacking)
        return dict.fromkeys(lacking, "refused: its features are missing or not finite") | refused

    def _pass(self, layer: int, send: Message, receive: Message, what: str) -> None:
        """Rows of the input of `layer`, or their gradients, go from trainer to trainer, if the layer gathers any."""
        if self.gathers[layer]:
            self._exchange(send, receive, what)
        else:
            self._call(send, what)

    def _exchange(self, send: Message, receive: Message, what: str) -> None:
        everyone = range(self.team.size)
        deadline = self.setting.train.deadline
        sent = self.team.exchange(dict.fromkeys(everyone, send), dict.fromkeys(everyone, receive), deadline)
        self._all(sent, what)

    def _call(self, message: Message, what: str) -> list[Reply]:
        return self._all(self.team.broadcast(message, self.setting.train.deadline), what)

    def _all(self, replies: list[Reply], what: str) -> list[Reply]:
        """The replies. Raises PeerLostError where one is missing; `what` was waited for."""
        if missing := absent(replies):
            lost = " and ".join(f"trainer {k} ({why})" for k, why in missing.items())
            raise PeerLostError(
                f"synchronous training lost {lost} in round {self.team.round}, waiting for {what}: bring it back and "
                "train again (a run folder holds the last checkpoint), or choose a method that goes on without, such "
                "as retexo or random-tma"
            )
        return replies
