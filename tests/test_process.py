"""The program as a process of its own: exit codes, one-line errors, interrupts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from farflung.run.folder import RunFolder


def heed_interrupts() -> None:
    """In a child: SIGINT works, also where the tests run in the background of a script and so ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def program(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "farflung", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
        **options,
    )


def test_a_process_says_its_errors_in_one_line_and_exits_2():
    process = program("train", "nosuch-graph")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def wait_for(path: Path, process: subprocess.Popen) -> None:
    """Until the history has a few rounds; fails if the process ends before."""
    patience = time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < patience, "no round within two minutes"
        time.sleep(0.05)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_checkpoint_a_partial_result_and_exit_code_130(tmp_path, sent):
    run = tmp_path / "run"
    process = program(
        "train", "digits", "--method", "super-tma", "--steps", "1000000", "--interval", "1steps", "--hidden", "8",
        "--threads", "1", "--out", str(run),
    )  # fmt: skip
    wait_for(run / "history.jsonl", process)
    try:
        os.kill(process.pid, sent)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "interrupted"
    folder = RunFolder.open(run)
    metrics = folder.metrics()
    assert metrics["complete"] is False
    assert metrics["test"] is None
    assert metrics["rounds"] >= 5
    assert metrics["bytes"]["weights"] > 0
    keeper = folder.read_checkpoint()
    assert keeper.rounds == metrics["rounds"]
    lines = (run / "history.jsonl").read_text().count("\n")
    assert keeper.rounds - lines in (0, 1)  # the interrupt may come between a round and its line
    assert all(torch.isfinite(value).all() for value in [*keeper.last.values(), *keeper.best.values()])
    assert keeper.best_score == metrics["val"]["accuracy"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
