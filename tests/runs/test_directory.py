"""The directory of a run: its name, what it holds from the beginning, its lock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ga3c.envs.base import EnvSpec
from ga3c.runs.directory import _commit, create_directory, lock_directory
from ga3c.settings.files import configured, resolve, to_yaml
from ga3c.settings.machine import processor
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

SPEC = EnvSpec("Pong", (2,), np.dtype("u1"), 3, 4)


def test_a_directory_is_named_after_game_time_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ga3c.runs.directory.time", SimpleNamespace(
        strftime=lambda form: time.strftime(form, time.gmtime(0))))
    made = create_directory(configured(seed=3), SPEC._replace(name="a.b:C/D-v0"))
    assert made == Path("runs/a.b-C-D-v0-19700101-000000-s3")


def test_runs_of_the_same_second_get_directories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ga3c.runs.directory.time", SimpleNamespace(strftime=lambda form: "now"))
    made = [create_directory(Settings(), SPEC) for _ in range(3)]
    assert made == [Path("runs/Pong-now-s0"), Path("runs/Pong-now-s0-2"), Path("runs/Pong-now-s0-3")]
    assert all((path / "config.yaml").is_file() for path in made)


def test_a_directory_holds_the_settings_and_the_versions(tmp_path: Path) -> None:
    settings = configured(run_dir=str(tmp_path / "deep" / "mine"), gamma=0.5)
    path = create_directory(settings, SPEC)
    assert (path / "config.yaml").read_text() == to_yaml(settings)
    assert resolve({}, str(path / "config.yaml")) == settings
    versions = json.loads((path / "versions.json").read_text())
    assert {"ga3c", "python", "tensorflow", "keras", "gymnasium", "ale-py", "numpy", "command", "commit"} <= {*versions}
    assert versions["processor"] == processor()


def test_the_commit_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("git"):
        pytest.skip("no git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    (tmp_path / "here.py").touch()
    monkeypatch.setattr("ga3c.runs.directory.__file__", str(tmp_path / "here.py"))
    commit = _commit.__wrapped__
    assert commit() is None
    for command in (["init", "--quiet"], ["add", "here.py"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *command], check=True)
    first = commit()
    assert first and len(first) >= 7
    (tmp_path / "here.py").write_text("changed")
    assert commit() == f"{first}+"
    monkeypatch.setattr("ga3c.runs.directory.__file__", str(tmp_path / "installed.py"))
    assert commit() is None, "in somebody else's checkout"


def test_a_directory_that_is_not_empty_is_refused_with_the_way_on(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 7")
    with pytest.raises(ConfigError) as caught:
        create_directory(configured(run_dir=str(tmp_path)), SPEC)
    assert str(caught.value) == (
        f"run_dir: {tmp_path} is not empty; choose another directory, or resume its run: --resume {tmp_path}")
    assert (tmp_path / "config.yaml").read_text() == "seed: 7"


def test_a_directory_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        create_directory(configured(run_dir=str(tmp_path / "file/deeper")), SPEC)
    assert str(caught.value).startswith(f"run_dir: {tmp_path / 'file'}")
    assert len(str(caught.value).splitlines()) == 1


def test_a_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    program = ("import sys, time\nfrom pathlib import Path\nfrom ga3c.runs.directory import lock_directory\n"
               "lock_directory(Path(sys.argv[1]))\nprint('has it', flush=True)\ntime.sleep(100)\n")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as owner:
        assert owner.stdout and owner.stdout.readline() == "has it\n"
        with pytest.raises(ConfigError, match=f"run_dir: {tmp_path} is in use by process {owner.pid}"):
            lock_directory(tmp_path)
        owner.kill()
    os.close(lock_directory(tmp_path))
