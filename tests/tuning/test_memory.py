"""What is remembered of a search: found again by the same kind of run only, whatever is in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.tuning.memory import Counts, entries, recall, remember

SETTINGS = configured(game="toy:catch", precision="bfloat16")


class Lines(list[str]):
    """What was said."""

    def __call__(self, line: str) -> None:
        assert line.splitlines() == [line]
        self.append(line)


def kept(counts: Counts, settings: Settings = SETTINGS, game: str = "toy:catch") -> None:
    said = Lines()
    remember(settings, game, counts, 5.0, said)
    assert said == []


def found(settings: Settings = SETTINGS, game: str = "toy:catch") -> Counts | None:
    return recall(settings, game, Lines())


@pytest.mark.parametrize("content", [b"", b"7", b"[" * 100_000])
def test_a_damaged_file_is_ignored_with_one_line_and_replaced(cache: Path, content: bytes) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    said = Lines()
    assert recall(SETTINGS, "toy:catch", said) is None and len(said) == 1 and str(cache) in said[0]
    remember(SETTINGS, "toy:catch", (3, 1, 1), 5.0, said)
    assert found() == (3, 1, 1)
    assert os.listdir(cache.parent) == ["tuned.json"]


@pytest.mark.parametrize("counts", [None, [1, 1], [0, 1, 1], [1.5, 1, 1]])
def test_an_entry_that_is_no_counts_is_ignored(cache: Path, counts: Any) -> None:
    kept((3, 1, 1))
    entry, = json.loads(cache.read_text())
    for damaged in ({**entry, "counts": counts}, {**entry, "rate": "fast"}, counts):
        cache.write_text(json.dumps([damaged]))
        assert entries() == [] and found() is None


def test_a_directory_that_cannot_be_written_is_one_line(cache: Path) -> None:
    cache.parent.parent.write_text("a file where a directory is wanted")
    said = Lines()
    remember(SETTINGS, "toy:catch", (3, 1, 1), 5.0, said)
    assert any(line.startswith("Counts are not remembered: ") for line in said) and found() is None


@pytest.mark.parametrize(("where", "other"), [
    ("ga3c.settings.remembered.__version__", "99.0"),
    ("ga3c.settings.remembered.platform.node", lambda: "another machine"),
    ("ga3c.settings.remembered.usable_cores", lambda: 99),
    ("ga3c.tuning.memory.processor", lambda: "Z80")])
def test_another_version_or_machine_recalls_nothing(
        cache: Path, monkeypatch: pytest.MonkeyPatch, where: str, other: Any) -> None:
    kept((3, 1, 1))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(where, other)
        assert found() is None
    assert found() == (3, 1, 1)


@pytest.mark.parametrize("changed", [
    {"network": "large"}, {"envs_per_agent": 1}, {"rollout_length": 5}, {"max_lag": None}, {"passes": 2},
    {"wrappers": ("mine:Slow",)}, {"kernels": "onednn"}, {"mode": 1}])
def test_what_was_found_for_another_shape_of_work_is_not_recalled(
        cache: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    kept((3, 1, 1))
    assert found() == (3, 1, 1) and found(SETTINGS.changed(**changed)) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert found() is None


def test_entries_of_other_runs_are_kept_and_the_own_is_replaced(cache: Path) -> None:
    other = SETTINGS.changed(rollout_length=7)
    kept((3, 1, 1))
    kept((4, 2, 1), other)
    kept((5, 1, 1))
    assert (found(), found(other), len(entries())) == ((5, 1, 1), (4, 2, 1), 2)


def test_names_of_one_game_that_skip_other_frames_are_other_work(cache: Path) -> None:
    def named(game: str) -> Settings:
        return SETTINGS.changed(game=game)

    for steps, game in enumerate(("Pong", "PongNoFrameskip-v4", "Pong-v4"), 3):
        kept((steps, 1, 1), named(game), "Pong")  # which an environment calls itself by any of these names
    assert [found(named(game), "Pong") for game in ("Pong", "PongNoFrameskip-v4", "Pong-v4", "PongDeterministic-v4")
            ] == [(3, 1, 1), (4, 1, 1), (5, 1, 1), (3, 1, 1)]


def test_a_write_that_fails_leaves_no_file_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    said = Lines()
    remember(SETTINGS, "toy:catch", (3, 1, 1), 5.0, said)
    assert "No space left on device" in said[0] and not [*cache.parent.iterdir()]
