"""Journals: history on disk, plain lines, the live display."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from farflung.errors import FarflungError
from farflung.methods.base import Keeper, Round
from farflung.run.folder import RunFolder
from farflung.run.progress import (
    CHECKPOINT_EVERY,
    FolderJournal,
    Journals,
    MemoryJournal,
    ScreenJournal,
)

RECORD = Round(
    round=4,
    phase="train",
    loss=0.25,
    val={"accuracy": 0.5, "roc_auc": None},
    steps={0: 10, 2: 7},
    absent={1: "dead: killed"},
    seconds=1.5,
    best=True,
)


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def screen(terminal: bool, time: Time, **options) -> tuple[ScreenJournal, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None, _environ={"TERM": "xterm"})
    return ScreenJournal("retexo", "accuracy", lambda: 1_234_567, console, now=time, **options), text


def read_history(path: Path) -> list[Round]:
    """Rounds from a history.jsonl."""
    rounds = []
    for line in path.read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        for name in ("steps", "absent"):
            content[name] = {int(trainer): value for trainer, value in content[name].items()}
        rounds.append(Round(**content))
    return rounds


def test_history_is_a_line_per_round_flushed_at_once_and_reads_back(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    second = replace(RECORD, round=5, loss=None, val=None, absent={}, best=False)
    with FolderJournal(folder, Keeper("accuracy")) as journal:
        journal.expect("train", 4, 10, None)
        journal.round(RECORD)
        assert read_history(folder.path / "history.jsonl") == [RECORD]
        journal.round(second)
    assert read_history(folder.path / "history.jsonl") == [RECORD, second]


def test_a_diverged_round_is_written_as_null_not_as_broken_json(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    with FolderJournal(folder, Keeper("accuracy")) as journal:
        journal.round(replace(RECORD, loss=float("nan"), val={"accuracy": float("inf")}))
    content = json.loads((folder.path / "history.jsonl").read_text())
    assert content["loss"] is None
    assert content["val"] == {"accuracy": None}


def test_a_checkpoint_is_put_down_every_minute(tmp_path):
    time, keeper = Time(), Keeper("accuracy")
    folder = RunFolder.create(tmp_path / "run")
    with FolderJournal(folder, keeper, now=time) as journal:
        for round in range(3):
            keeper.offer(round, {"w": torch.tensor([float(round)])}, {"accuracy": 0.0})
            keeper.rounds = round + 1
            time.seconds += 0.6 * CHECKPOINT_EVERY
            journal.round(replace(RECORD, round=round))
            assert (folder.path / "checkpoint").exists() == (round >= 1)
    assert folder.read_checkpoint().rounds == 2


def test_a_full_disk_is_one_sentence(tmp_path):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError(28, "No space left on device")

    folder = RunFolder.create(tmp_path / "run")
    with FolderJournal(folder, Keeper("accuracy")) as journal:
        journal._stream.close()
        journal._stream = Full()
        with pytest.raises(FarflungError, match="No space left on device"):
            journal.round(RECORD)


def test_journals_pass_everything_on_in_order():
    seen = []

    class Spy(MemoryJournal):
        def expect(self, *args):
            seen.append((id(self), args))

    one, two = Spy(), Spy()
    both = Journals([one, two])
    both.expect("train", 0, 2, None)
    both.round(RECORD)
    assert seen == [(id(one), ("train", 0, 2, None)), (id(two), ("train", 0, 2, None))]
    assert one.history == two.history == [RECORD]


def test_plain_lines_say_it_all_and_are_about_twenty():
    time = Time()
    journal, text = screen(False, time)
    with journal:
        for round in range(400):
            journal.expect("train", round, 400, None)
            journal.round(replace(RECORD, round=round, absent={}))
    lines = text.getvalue().splitlines()
    assert len(lines) == 21
    assert lines[0] == "retexo train round 1/400  loss 0.2500  val accuracy 0.5000*  sent 1.23 MB  clock 1.50 s"
    assert "round 400/400" in lines[-1]


def test_plain_lines_of_unknown_length_come_by_time_and_news_at_once():
    time = Time()
    journal, text = screen(False, time)
    with journal:
        for round in range(100):
            time.seconds += 0.1
            journal.expect("layer0", round, None, None)
            journal.round(replace(RECORD, phase="layer0", round=round, absent={1: "late"} if round == 50 else {}))
    lines = text.getvalue().splitlines()
    assert 5 <= len(lines) <= 9
    assert [line for line in lines if "trainer 1 absent: late" in line] == [
        "retexo layer0 round 51  loss 0.2500  val accuracy 0.5000*  sent 1.23 MB  clock 1.50 s  trainer 1 absent: late"
    ]


def test_a_new_phase_is_said_at_once():
    journal, text = screen(False, Time())
    with journal:
        for phase in ("layer0", "layer1"):
            journal.expect(phase, 0, None, None)
            journal.round(replace(RECORD, phase=phase, absent={}))
    assert [line.split()[1] for line in text.getvalue().splitlines()] == ["layer0", "layer1"]


def drawn(journal: ScreenJournal) -> str:
    text = io.StringIO()
    Console(file=text, width=250, color_system=None).print(journal.__rich__())
    return text.getvalue()


def test_the_live_display_counts_down_to_the_next_aggregation():
    time = Time()
    journal, _ = screen(True, time)
    journal.expect("train", 0, 3, None)
    assert "next in" not in drawn(journal)
    time.seconds = 8.0
    journal.round(RECORD)
    journal.expect("train", 1, 3, None)
    time.seconds = 11.0
    shown = drawn(journal)
    for part in ("retexo", "train round 2/3", "loss 0.2500", "val accuracy 0.5000 (best 0.5000)", "sent 1.23 MB"):
        assert part in shown
    assert "next in 5.00 s" in shown
    assert "absent: 1 (dead: killed)" in shown


def test_an_interval_in_time_is_known_before_the_first_round():
    time = Time()
    journal, _ = screen(True, time)
    journal.expect("train", 0, None, 2.0)
    time.seconds = 0.5
    assert "next in 1.50 s" in drawn(journal)


def test_a_terminal_gets_the_live_display_and_plain_says_no():
    for plain in (False, True):
        journal, text = screen(True, Time(), plain=plain)
        with journal:
            journal.expect("train", 0, 1, None)
            journal.round(replace(RECORD, round=0))
        assert ("\x1b[" in text.getvalue()) != plain
        assert "val accuracy 0.5000" in text.getvalue()
