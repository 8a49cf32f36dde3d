"""A run ends cleanly on a signal, whatever it is doing; and takes all its processes along."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import QUICK, Started, checkpoints, events, learning, recorded, rows, told, train

from ga3c.commands import train as command

pytestmark = pytest.mark.usefixtures("own_directory")

# When the signal comes: while modules are imported, while agents start, and in the middle of training.
PHASES = {"import": lambda each: len(each.group()) > 1, "start": lambda each: Path("run/events.jsonl").exists(),
          "training": lambda each: learning()}


def with_a_signal(states: Iterable[str], often: Iterable[str]) -> list[Any]:
    """Each state with each signal. In an ordinary run are those of `often`, with one of the two in turn."""
    signals = (signal.SIGINT, signal.SIGTERM)
    return [pytest.param(state, number, marks=[] if (row + column) % 2 == 0 and state in often else [pytest.mark.slow])
            for row, state in enumerate(states) for column, number in enumerate(signals)]


@pytest.mark.usefixtures("compiled_emulator")
@pytest.mark.parametrize(("phase", "number"), with_a_signal(PHASES, ("import", "start")))
def test_a_signal_in_any_phase_ends_cleanly(
        phase: str, number: signal.Signals, started: Callable[..., Started]) -> None:
    kernels = "auto" if phase == "import" else "onednn"  # the others do not begin before they are measured
    each = started("--game", "Pong", "--agents", "3", "--envs-per-agent", "4", "--run-dir", "run", "--no-tensorboard",
                   "--kernels", kernels)
    each.wait_for(lambda: PHASES[phase](each))
    if number == signal.SIGINT:
        os.killpg(each.process.pid, number)
    else:
        each.process.send_signal(number)
    out, err = each.end()
    assert each.process.returncode == 128 + number
    assert err == ""
    assert f"Ended by {number.name}" in out
    if phase == "training":
        assert out.splitlines()[-1].endswith("--resume run")
        assert events(Path("run"))[-2]["event"] == "checkpoint"
        assert train("--resume", "run", "--steps", str(int(checkpoints(Path("run"))[-1].name) + 50)).returncode == 0


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts back the signal handlers of before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_second_ctrl_c_during_the_message_is_no_failure(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*given: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it goes on")

    def print_slowly(line: str) -> None:
        signal.raise_signal(signal.SIGINT)
        print(line)

    monkeypatch.setattr(command, "_train", interrupted)
    monkeypatch.setattr(command, "_print", print_slowly)
    assert command.train([]) == 130 and capsys.readouterr().out == "Ended by SIGINT before the run began\n"


def words(processes: list[psutil.Process]) -> list[str]:
    """Their command lines, but of those that have ended meanwhile."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.cmdline()
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_while_the_game_is_checked_ends_cleanly(
        number: signal.Signals, started: Callable[..., Started]) -> None:
    each = started("--game", "odd:BlocksUnmade-v0", "--run-dir", "run")
    each.wait_for(lambda: any("ga3c.envs.check" in word for word in words(each.group())))
    each.process.send_signal(number)
    out, err = each.end()
    assert (each.process.returncode, err) == (128 + number, "")
    assert out.splitlines()[-1] == f"Ended by {number.name} before the run began" and not Path("run").exists()


@pytest.mark.slow  # the mechanism: tests/envs/emulator/test_own_environment.py
def test_a_signal_while_the_emulator_is_compiled_ends_cleanly(
        started: Callable[..., Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    each = started("--game", "Pong", "--run-dir", "run")
    # Something has been compiled. It takes half a minute in all.
    each.wait_for(lambda: next((tmp_path / "empty").rglob("*.nbi"), None) is not None)
    each.process.send_signal(signal.SIGINT)
    out, err = each.end()
    assert (each.process.returncode, told(err)) == (130, "")
    assert out.splitlines()[-1] == "Ended by SIGINT before the run began" and not Path("run").exists()


@pytest.mark.parametrize(("presses", "says"), [
    (2, "No checkpoint: it was not waited for"), pytest.param(3, "", marks=pytest.mark.slow)])
def test_a_second_ctrl_c_skips_the_checkpoint_and_a_third_the_rest(
        presses: int, says: str, started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run")
    each.wait_for(learning)
    agents = [event["pid"] for event in recorded("agent_started")]
    assert len(agents) >= 2
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)  # so that the first one takes its time
    each.wait_for(lambda: all(psutil.Process(agent).status() == psutil.STATUS_STOPPED for agent in agents))
    for _ in range(presses):
        each.process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # two at once are one
    out, err = each.end()
    assert (each.process.returncode, err) == (130, "") and says in out
    assert not Path("run/checkpoints").exists()


def test_a_second_ctrl_c_does_not_wait_for_a_checkpoint(started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run", changed=SLOW.format("checkpoint.save", HELD.format("True", 1000)))
    each.wait_for(learning)
    each.process.send_signal(signal.SIGINT)
    assert each.process.stdout is not None
    assert any(line == "held\n" for line in each.process.stdout)
    each.process.send_signal(signal.SIGINT)
    out, err = each.end()
    assert (each.process.returncode, told(err)) == (130, "")
    assert "No checkpoint: it was not waited for" in out


def test_agents_leave_signals_to_the_main_process_and_several_are_one(started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run")
    each.wait_for(learning)
    agents = [event["pid"] for event in events(Path("run")) if event["event"] == "agent_started"]

    def caught(pid: int) -> bool:
        masks = next(line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                     if line.startswith("SigCgt"))
        return bool(int(masks, 16) & 1 << (signal.SIGINT - 1))

    each.wait_for(lambda: all(map(caught, agents)))  # one may not have begun, though there was an update
    for pid in agents:
        os.kill(pid, signal.SIGINT)
    for pid in [each.process.pid, *agents]:
        assert not psutil.Process(pid).net_connections("inet"), "nothing is on the network"
    ours, main = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", each.process.pid)]
    assert main == ours
    each.wait_for(lambda: all(  # one may not have begun, though there was an update
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == max(ours, 500) for pid in agents))
    before = len(rows(Path("run")))
    os.killpg(each.process.pid, signal.SIGHUP)  # its terminal goes away
    each.wait_for(lambda: len(rows(Path("run"))) > before + 1)
    assert all(psutil.pid_exists(pid) for pid in agents) and not recorded("agent_died")
    os.killpg(each.process.pid, signal.SIGINT)  # as Ctrl-C in a terminal, and then the program above, send them
    for _ in range(2):
        each.process.send_signal(signal.SIGTERM)  # a repetition is no reason to lose the checkpoint
    out, err = each.end()
    assert (each.process.returncode, err) == (130, "")
    assert not recorded("agent_died") and "Ended by SIGINT" in out and checkpoints(Path("run"))


# What the service is doing when the signal comes, beside those of PHASES.
STATES = {"stopped agents": ["--agents", "2"], "nothing trained": ["--training-batch-min", "65536", "--agents", "2"],
          "changing workers": ["--start", "1/1/1", "--agents-max", "6", "--controller", "paper", "--window", "1"]}


@pytest.mark.parametrize(("state", "number"), with_a_signal(STATES, ("stopped agents",)))
def test_it_stops_in_every_state(state: str, number: signal.Signals, started: Callable[..., Started]) -> None:
    each = started("--game", "toy:catch", "--no-tensorboard", "--run-dir", "run", *STATES[state])
    each.wait_for(lambda: Path("run/metrics.jsonl").exists() and len(rows(Path("run"))) > 0)
    if state == "stopped agents":
        each.wait_for(learning)
        for event in recorded("agent_started"):
            os.kill(event["pid"], signal.SIGSTOP)
    elif state == "changing workers":
        each.wait_for(lambda: any(row["agents"] * row["predictors"] * row["trainers"] > 1 for row in rows(Path("run"))))
    os.killpg(each.process.pid, number) if number == signal.SIGINT else each.process.send_signal(number)
    out, err = each.end()
    assert (each.process.returncode, err) == (128 + number, "")
    assert f"Ended by {number.name}" in out and out.splitlines()[-1].endswith("run")


# What the service does when the signal comes: (lines before it starts, when the signal comes, exit code, message).
SLOW = "right = {0}\ndef slow(*arguments, **options):\n{1}\n    return right(*arguments, **options)\n{0} = slow"
HELD = "    if {}:\n        print('held', flush=True)\n        time.sleep({})"
STUCK = SLOW.format("learner.Skips.record_update", HELD.format("arguments[1] > 20", 1000))  # within an update
DOING: dict[str, tuple[str, int | None, str]] = {
    "queues full": (SLOW.format("learner.Learner.update", "    time.sleep(1.5)"), None, "--resume run"),
    "a predictor stuck": (SLOW.format("learner.Learner.predict", HELD.format("arguments[0].version > 20", 1000)), None,
                          "--resume run"),
    "a trainer stuck": ("from ga3c.service import supervisor\nsupervisor.DRAIN_TRAINERS_SECONDS = 0.5\n"
                        "supervisor.STOP_SECONDS = 1.5\n" + STUCK, 6, "an update did not end within"),
    "a trainer stuck, as long as it may be": (STUCK, 6, "an update did not end within"),
    "a predictor that has failed": (
        SLOW.format("learner.Learner.predict", "    if arguments[0].version > 20 and not hasattr(cli, 'failed'):\n"
                    "        cli.failed = 1\n        1 / 0"), None, "--resume run"),
    "saving": (SLOW.format("checkpoint.save", HELD.format("True", 2)), None, "--resume run"),
    "ending": (SLOW.format("recorder.Checkpoints.save_last", HELD.format("True", 1)), None, "--resume run")}
FLAGS = {"saving": ["--checkpoint-minutes", "0.02"], "ending": ["--steps", "2000"]}


@pytest.mark.parametrize(("doing", "number"), with_a_signal(DOING, ("a trainer stuck",)))
def test_it_stops_whatever_it_is_doing(doing: str, number: signal.Signals, started: Callable[..., Started]) -> None:
    changed, code, says = DOING[doing]
    each = started(*QUICK, "--run-dir", "run", *FLAGS.get(doing, []), changed=changed)
    if "held" in changed:
        assert each.process.stdout is not None
        for line in each.process.stdout:
            if line == "held\n":
                break
    elif doing == "queues full":
        each.wait_for(lambda: learning() and rows(Path("run"))[-1]["training_queue"] >= 2)
    else:
        each.wait_for(lambda: bool(recorded("thread_failed")))
    os.killpg(each.process.pid, number) if number == signal.SIGINT else each.process.send_signal(number)
    out, err = each.end()
    assert each.process.returncode == (128 + number if code is None else code), (out, err)
    assert told(err).count("\n") == (code is not None)
    assert says in out.splitlines()[-1] + err
