"""How a run begins: questions, mistakes, directories, and the fork server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Command, recorded, told
from trained import make_trained

from ga3c.commands import train as cli
from ga3c.envs.base import EnvSpec
from ga3c.learner.checkpoint import Best, set_best
from ga3c.learner.tensorflow.kernels import Kernel
from ga3c.runs.reader import located
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

pytestmark = pytest.mark.usefixtures("own_directory")


@pytest.mark.parametrize(("arguments", "says"), [
    (["--lerning-rate", "1"], "unknown option --lerning-rate; did you mean --learning-rate?"),
    (["--game", "Boxin"], "game: no game is called 'Boxin'; nearest: Boxing"),
    (["--game", "Boxing", "--network", "dense"], "network: 'dense' does not fit Boxing"),
    (["--resume", "nowhere"], "nowhere is neither a run"),
    (["--weights-only"], "--weights-only: goes with --resume"),
    (["--resume", ""], "--resume: '' names nothing"),
    (["--schedule", "multi-batch", "--update-groups", "3"], "update_groups: 3 must divide rollout_length 64; 2 does"),
    (["--schedule", "multi-batch", "--steps-per-update", "1"], "each step is in 16 updates; at most 15 are possible"),
    (["--run-dir", "/proc/none"], "disk: 500 MB needed in /proc, 0 MB free"),
])
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments: list[str], says: str, train_here: Command) -> None:
    done = train_here(*arguments)
    assert done.returncode == 2
    assert told(done.stderr).count("\n") == 1 and says in done.stderr, done.stderr
    assert "TensorFlow" not in done.stdout, "a mistake is told before it is imported"
    assert not Path("runs").exists()


@pytest.mark.parametrize(("config", "made", "says"), [
    ("game: Pong", (), "run is neither a run (no config.yaml and metrics.jsonl in it)"),
    ("game: Pong", ("metrics.jsonl",), "--resume: run has no checkpoint yet; a new run may have its settings: --config "
                                       "run/config.yaml --run-dir null"),
    ("", ("checkpoints/000000000001/",), "run/config.yaml: these are no run's settings, they name no game")])
def test_what_cannot_be_resumed_is_told_at_once(
        config: str, made: tuple[str, ...], says: str, train_here: Command) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text(config)
    for path in made:
        if path.endswith("/"):
            Path("run", path).mkdir(parents=True)
        else:
            Path("run", path).touch()
    done = train_here("--resume", "run")
    assert (done.returncode, done.stdout) == (2, "") and says in done.stderr, done.stderr


def test_the_start_tells_of_settings_without_effect_and_of_the_chosen_kernel(
        train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(settings: Settings, spec: EnvSpec, tell: Callable[[str], object], *how: object) -> Kernel:
        tell("Kernels: what was measured")
        return Kernel("onednn", "bfloat16")

    monkeypatch.setattr("ga3c.learner.backend.choose_kernel", choose)
    done = train_here("--game", "toy:catch", "--no-tensorboard", "--agents", "2", "--algorithm", "a2c", "--trainers",
                      "2", "--frame-skip", "2", "--steps", "100", "--run-dir", "run")
    assert (done.returncode, done.stderr) == (0, "")
    begun, = recorded("start")
    for line in ("--algorithm a2c begins with the values of --preset fast and --schedule alternating; --preset default "
                 "would leave all other values",
                 "No effect: --trainers; --schedule alternating says which agents are answered, and what an update "
                 "takes",
                 "No effect: --frame-skip; toy:catch is no Atari game", "Kernels: what was measured"):
        assert line in begun["notes"] and done.stdout.count(line) == 1, begun["notes"]
    assert (begun["kernels"], begun["precision"]) == ("onednn", "float32"), "layers for vectors are float32"


def test_counts_of_flags_win_over_the_start_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("tuning: {start: 3/2/1, dynamic: true}\n")
    for given, start in (((), "3/2/1"), (("--agents", "5"), "null"), (("--agents", "5", "--start", "7/1/1"), "7/1/1")):
        assert cli.train(["--config", "mine.yaml", *given, "--print-config"]) == 0
        assert f"\n  start: {start} " in capsys.readouterr().out


def test_a_run_is_located_by_its_path_or_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    make_trained(Path("run"), configured(game="toy:catch"), (10, 20))
    assert located("run") == (Path("run"), None)
    assert located("run/checkpoints/000000000020") == (Path("run"), Path("run/checkpoints/000000000020"))
    with pytest.raises(ConfigError, match="run/checkpoints/best: no evaluation"):
        located("run/checkpoints/best")
    set_best(Path("run/checkpoints"), Best("000000000010", 1.0, {}))
    assert located("run/checkpoints/best") == (Path("run"), Path("run/checkpoints/000000000010"))
    for nothing in (".", "run/checkpoints", "run/checkpoints/7", "run/config.yaml", "run/checkpoints/config.yaml"):
        assert located(nothing) is None, nothing
    monkeypatch.chdir("run/checkpoints")
    assert located("best") == located("000000000010") == (Path(".."), Path("../checkpoints/000000000010"))
    assert located("../checkpoints/000000000020/") == (Path(".."), Path("../checkpoints/000000000020"))
