"""Anything at all in the files of a run, and on every command line: one line or none, nothing written elsewhere.

Many more cases than in an ordinary run: python -m pytest tests/cli/test_fuzz.py --hypothesis-profile long
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import profile_log
import pytest
from batches import VECTOR
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from rows import ROW

from ga3c.commands import doctor, evaluate, export, play, plot, top, track
from ga3c.commands import train as cli
from ga3c.commands.api import RunRecord
from ga3c.evaluation.policy import find, read_policy
from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint, CheckpointError
from ga3c.runs import figures
from ga3c.runs import reader as record
from ga3c.runs.beginning import resume_from_checkpoint
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError

# ------------------------------------------------------------------------------------------------ a run's record

numbers = st.sampled_from([0, -1, 1e400, -1e400, float("nan"), 10**400, 1e308, 2**63, 0.5, 16, True])
anything = st.recursive(st.none() | numbers | st.text(max_size=5) | st.integers(-5, 50) | st.floats(0, 1e4),
                        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                                    max_size=3), max_leaves=4)
EVENTS = [
    {"time": 0.0, "event": "start", "resumed_at": 0, "command": [], "notes": []},
    {"time": 1.0, "event": "trial", "from": "4/1/1", "to": "5/1/1", "rate_from": 9.0, "rate": 9.5, "seconds": 12.0,
     "decision": "accepted"},
    {"time": 2.0, "event": "search", "over": True, "setting": "5/1/1", "rate": 9.0},
    {"time": 2.0, "event": "agent_died", "agent": 1, "exitcode": -9},
    {"time": 3.0, "event": "checkpoint", "path": "checkpoints/000000000100"},
    {"time": 4.0, "event": "evaluation", "mean": 1.0, "scores": [1.0], "checkpoint": "checkpoints/000000000100"},
    {"time": 5.0, "event": "evaluation_failed", "cause": "it was late"}, {"time": 6.0, "event": "end", "reason": "x"}]


def changed(entry: dict) -> st.SearchStrategy[str]:
    """`entry` as JSON, with some of its values replaced or left out."""
    other = st.dictionaries(st.sampled_from(sorted(entry)), anything, max_size=3)
    return st.tuples(other, st.sets(st.sampled_from(sorted(entry)), max_size=1)).map(
        lambda made: json.dumps({name: value for name, value in (entry | made[0]).items() if name not in made[1]}))


def lines(entries: list[dict]) -> st.SearchStrategy[bytes]:
    """A file of such entries, whole ones among them, and of rubbish."""
    entry = st.sampled_from(entries)
    line = entry.map(json.dumps) | entry.flatmap(changed) | anything.map(json.dumps) | st.text(max_size=9)
    whole = st.lists(st.tuples(st.integers(0, len(entries) - 1), entry.flatmap(changed) | line), max_size=2).map(
        lambda others: [dict(others).get(number, json.dumps(each)) for number, each in enumerate(entries)])
    return (whole | st.lists(line, max_size=12)).map(
        lambda found: "\n".join(found).encode(errors="replace")) | st.binary(max_size=60)


MEASURED = dict.fromkeys(("cpu_agents", "cpu_server", "cpu_machine", "wait_ms", "slot_wait_ms", "play_ms", "queue_ms",
                          "service_ms", "reply_ms", "predict_ms", "predictor_busy", "trainer_busy", "gather_ms",
                          "update_ms", "memory_mb", "best_evaluation"), 0.9)
ROWS = [ROW | MEASURED | {"time": 10.0 * number, "agent_steps": 1000 * number, "bottleneck": "device"}
        for number in range(1, 9)]
YAML = ["steps: !!bool maybe", "minutes: !!timestamp later", "game: !!int x", "frames: " + 3000 * "[",
        "run: !!python/x 1", "env: &a {game: *a}", "run: {steps: !!bool maybe, seed: .nan}", "env: [game]",
        "episodes: !!float 1e999", "steps: .nan", "? [a]", "&a *a", "%YAML 9.9"]
settings = st.dictionaries(st.sampled_from(["game", "seed", "steps", "minutes", "frames", "episodes"]), anything)
groups = st.dictionaries(st.sampled_from(["env", "run", "agents"]), settings | anything)
configs = (settings | groups).map(lambda found: json.dumps(found, default=str).encode()) | st.binary(
    max_size=30) | st.sampled_from(YAML).map(str.encode)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "run"


def quietly(command: Callable[[], object]) -> None:
    """Anything but a mistake told in one line is an error of the command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command()
        except (ConfigError, CheckpointError) as error:
            assert len(str(error).splitlines()) == 1
        except OSError:
            pass  # told by `guarded`
    assert "Traceback" not in err.getvalue(), err.getvalue()


@examples(suppress_health_check=[HealthCheck.too_slow])
@given(metrics=lines(ROWS), events=lines(EVENTS), config=configs, versions=anything, episodes=st.lists(
    st.sampled_from(["time,agent_step,score,length", "1.0,100,3.5,20", "1.0,1", "x,y,z,w", "", "nan,inf,-1,1e999",
                     "\0,\0,\0,\0"])).map("\n".join))
def test_readers_of_a_run_stumble_over_nothing(
        run: Path, metrics: bytes, events: bytes, config: bytes, versions: object, episodes: str) -> None:
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_bytes(metrics)
    (run / "events.jsonl").write_bytes(events)
    (run / "config.yaml").write_bytes(config)
    (run / "versions.json").write_text(json.dumps({"cores": versions}))
    (run / "episodes.csv").write_text(episodes + "\n")
    quietly(lambda: top.top([str(run), "--once"]))
    quietly(lambda: [figures.curve(rows, panel, 3.0) for group in figures.grouped([run]) for rows in group.runs
                     for panel in figures.PANELS.values() if panel.x != "lag"])  # those are of the events, in `grouped`
    quietly(lambda: [RunRecord(run).metrics(), RunRecord(run).episodes(), RunRecord(run).events()])
    quietly(lambda: [track.point(row) for row in record.rows(run).new()])
    quietly(lambda: profile_log.table({"run": found}) if (found := profile_log.window(
        record.rows(run).new(), 1.0)) else None)


# ------------------------------------------------------------------------------------------------ checkpoints, policies

def tree(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            for path in sorted(directory.rglob("*"))}


FILES = ("arrays.npz", "progress.json", "manifest.json")
SETTINGS = configured(game="Pong")
PROGRESS = {"version": 1, "agent_steps": 7, "episodes": 0, "predictions": 9, "time": 1.0, "recent_scores": [1.0],
            "dropped_steps": 0, "game": "Pong", "rollout_length": SETTINGS.algorithm.rollout_length}


class Restored:
    """What a checkpoint is restored into, and looked at by a run that goes on."""

    def restore(self, arrays: dict, version: int) -> None:
        assert version >= 0


@examples(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), name=st.sampled_from(["000000000007", ".000000000007.12", "best.json", "..", "7", "x" * 200]))
def test_readers_of_checkpoints_touch_nothing_outside(
        tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str) -> None:
    import numpy as np
    base = tmp_path_factory.getbasetemp() / "checkpoints-fuzz"
    shutil.rmtree(base, ignore_errors=True)
    (base / "outside").mkdir(parents=True)
    (base / "outside" / "precious").write_text("untouched")
    directory = base / "run" / "checkpoints"
    path = checkpoint.save(directory, "000000000007", Checkpoint(
        {"network.00": np.arange(4, dtype=np.float32)}, PROGRESS), 2)
    (base / "run" / "config.yaml").write_text("env:\n  game: Pong\n")
    file = path / data.draw(st.sampled_from(FILES))
    sealed = file.name != "manifest.json" and data.draw(st.booleans())
    if sealed and data.draw(st.booleans()):  # or hardly a case gets behind the first checks
        file, content = path / "progress.json", data.draw(changed(PROGRESS).map(str.encode))
    else:
        content = data.draw(st.binary(max_size=40) | changed(PROGRESS).map(str.encode) | anything.map(
            lambda found: json.dumps(found).encode()) | st.tuples(
            st.integers(0, file.stat().st_size - 1), st.binary(min_size=1, max_size=3)).map(
                lambda cut: (whole := file.read_bytes())[:cut[0]] + cut[1] + whole[cut[0] + len(cut[1]):]))
    file.write_bytes(content)
    if sealed:  # by somebody who knows how
        (path / "manifest.json").write_text(json.dumps({each: checkpoint._sha256(path / each) for each in FILES[:2]}))
    if name not in ("..", "000000000007"):
        with contextlib.suppress(OSError):
            (directory / name).symlink_to(base / "outside")
    before = tree(base / "outside")
    quietly(lambda: checkpoint.load(path))
    quietly(lambda: checkpoint.newest(directory))
    quietly(lambda: checkpoint.hourly(directory))
    quietly(lambda: checkpoint.best(directory))
    quietly(lambda: checkpoint.clean(directory))
    quietly(lambda: find(base / "run"))
    quietly(lambda: resume_from_checkpoint(SETTINGS, VECTOR, Restored(), base / "run", None))
    quietly(lambda: read_policy(file))
    quietly(lambda: checkpoint.save(directory, "000000000009", Checkpoint({}, {}), 1))
    assert tree(base / "outside") == before


# ------------------------------------------------------------------------------------------------ command lines

PARSERS: dict[str, ArgumentParser] = {
    "train": cli.parser(), "eval": evaluate.parser(), "top": top.parser(), "plot": plot.parser(), "play": play.parser(),
    "doctor": doctor.parser(), "export": export.parser(), "track": track.parser()}


@pytest.mark.parametrize("command", PARSERS)
@given(data=st.data())
def test_any_command_line_is_told_in_one_line(command: str, data: st.DataObject) -> None:
    parser = PARSERS[command]
    flags = [flag for action in parser._actions for flag in action.option_strings]
    pieces = st.sampled_from([*flags, "0", "-1", "nan", "1e999", "x", "--", "-", "", "\n", "é"]) | st.text(max_size=4)
    argv = data.draw(st.lists(pieces, max_size=6))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            parser.parse_args(argv)
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1
        except SystemExit as end:
            assert end.code == 0 and out.getvalue()
    assert not err.getvalue()
