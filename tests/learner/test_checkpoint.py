"""Checkpoints: there wholly or not at all, and never believed when damaged."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ga3c.learner.checkpoint import (
    Best,
    Checkpoint,
    CheckpointError,
    best,
    clean,
    hourly,
    load,
    newest,
    read_arrays,
    save,
    saved,
    set_aside_after,
    set_best,
)

FILES = ("arrays.npz", "progress.json", "manifest.json")


def some(number: int = 1) -> Checkpoint:
    weights = np.arange(12, dtype=np.float32).reshape(3, 4) * number
    return Checkpoint({"network.00.kernel": weights, "optimizer.00.iteration": np.array(number)},
                      {"agent_steps": number, "recent_scores": [1.5, -2.0], "game": "Pong", "nothing": None})


def equal(one: Checkpoint, other: Checkpoint) -> bool:
    return one.progress == other.progress and list(one.arrays) == list(other.arrays) and all(
        one.arrays[name].dtype == other.arrays[name].dtype and one.arrays[name].shape == other.arrays[name].shape
        and one.arrays[name].tobytes() == other.arrays[name].tobytes() for name in one.arrays)


def why_not(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    assert message.splitlines() == [message]
    assert str(path) in message
    return message


@examples(deadline=None, max_examples=40)
@given(st.dictionaries(
    st.from_regex(r"[a-z]+\.[0-9]{2}\.[a-z_]+", fullmatch=True),
    arrays.arrays(st.sampled_from([np.float32, np.float64, np.int64, np.uint8]), arrays.array_shapes(min_dims=0)),
    max_size=4), st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.lists(st.floats(0, 9))))
def test_what_was_saved_is_loaded(
        tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any], progress: dict[str, Any]) -> None:
    made = Checkpoint(content, progress)
    assert equal(load(save(tmp_path_factory.getbasetemp() / "any", "000000000001", made, 1)), made)


def test_a_checkpoint_is_its_three_files_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", "000000000001", some(), 3)
    assert path == tmp_path / "checkpoints" / "000000000001"
    assert sorted(os.listdir(path)) == sorted(FILES)
    assert os.listdir(path.parent) == ["000000000001"]


def test_the_newest_few_stay(tmp_path: Path) -> None:
    for number in (1, 2, 3, 10, 20):
        save(tmp_path, f"{number:012d}", some(number), 3)
    assert [int(path.name) for path in saved(tmp_path)] == [20, 10, 3]
    assert equal(load(saved(tmp_path)[0]), some(20))


def test_saving_again_under_the_same_name_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, "000000000001", some(1), 3)
    assert equal(load(save(tmp_path, "000000000001", some(2), 3)), some(2))


def test_what_was_just_saved_stays_even_if_newer_ones_lie_beside_it(tmp_path: Path) -> None:
    for number in (10, 20, 30):
        save(tmp_path, f"{number:012d}", some(number), 3)
    assert equal(load(save(tmp_path, "000000000005", some(5), 3)), some(5))


def test_other_directories_are_no_checkpoints_and_stay(tmp_path: Path) -> None:
    for name in (".000000000009.123", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "000000000009").write_text("a file")
    save(tmp_path, "000000000001", some(), 1)
    assert [path.name for path in saved(tmp_path)] == ["000000000001"]
    assert {".000000000009.123", "notes"} <= set(os.listdir(tmp_path))


# ------------------------------------------------------------------------------------------------ damage

@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newer one of two."""
    directory = tmp_path_factory.mktemp("checkpoints")
    save(directory, "000000000000", some(7), 2)
    return save(directory, "000000000001", some(), 2)


def goes_on_from(whole: Path) -> int:
    """The number in the checkpoint that a resumed run would take."""
    return int(newest(whole.parent)[0].progress["agent_steps"])


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("file", FILES)
@examples(deadline=None, max_examples=200)
@given(data=st.data(), bit=st.integers(0, 7))
def test_one_flipped_bit_is_noticed_or_harmless(whole: Path, file: str, data: st.DataObject, bit: int) -> None:
    content = bytearray((whole / file).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << bit
    with changed(whole / file, bytes(content)):
        try:
            assert equal(load(whole), some())
            assert file == "manifest.json" and goes_on_from(whole) == 1
        except CheckpointError as error:
            assert str(whole) in str(error)
            assert len(str(error).splitlines()) == 1
            assert goes_on_from(whole) == 7


@pytest.mark.parametrize("file", FILES)
@examples(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_file_cut_short_is_noticed(whole: Path, file: str, data: st.DataObject) -> None:
    content = (whole / file).read_bytes()
    with changed(whole / file, content[:data.draw(st.integers(0, len(content) - 1))]):
        why_not(whole)
        assert goes_on_from(whole) == 7


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    path = save(tmp_path, "000000000001", some(), 1)
    (path / file).unlink()
    assert why_not(path) == f"{path} is not a whole checkpoint: {file} is missing"


@pytest.mark.parametrize("manifest", ["[]", "3", '"arrays.npz"', "{}", "null", "nonsense", "\0"])
def test_a_manifest_of_something_else_is_noticed(whole: Path, manifest: str) -> None:
    with changed(whole / "manifest.json", manifest.encode()):
        why_not(whole)


class Trap:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_pickled_objects_are_refused_and_not_run(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", "000000000001", some(), 1)
    np.savez(path / "arrays.npz", weights=np.array([Trap(tmp_path / "mark")], object))
    manifest = {file: hashlib.sha256((path / file).read_bytes()).hexdigest() for file in FILES[:2]}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert "weights.npy is not the object" in why_not(path)
    assert not (tmp_path / "mark").exists()


# ------------------------------------------------------------------------------------------------ falling back

def test_the_newest_whole_checkpoint_is_taken_and_newer_ones_are_told(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save(tmp_path, f"{number:012d}", some(number), 3)
    (tmp_path / "000000000003" / "progress.json").unlink()
    with changed(tmp_path / "000000000002" / "arrays.npz", b"torn"):
        found, path, passed_over = newest(tmp_path)
    assert equal(found, some(1))
    assert path == tmp_path / "000000000001"
    assert passed_over == [f"{tmp_path / '000000000003'} is not a whole checkpoint: progress.json is missing",
                           f"{tmp_path / '000000000002' / 'arrays.npz'} is damaged: its sha256 is not the one in "
                           "manifest.json"]


def test_with_no_whole_checkpoint_every_reason_is_told(tmp_path: Path) -> None:
    save(tmp_path, "000000000001", some(), 3)
    (tmp_path / "000000000001" / "arrays.npz").unlink()
    with pytest.raises(CheckpointError, match="000000000001 is not a whole checkpoint: arrays.npz is missing"):
        newest(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere has no checkpoint"):
        newest(tmp_path / "nowhere")


# ------------------------------------------------------------------------------------------------ storage that fails

@pytest.mark.parametrize("name", ["000000000001", "000000000002"])
@pytest.mark.parametrize(("owner", "function"), [(os, "fsync"), (Path, "rename"), (np, "savez")])
def test_a_failure_while_saving_leaves_the_old_one_and_no_rubbish(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, name: str) -> None:
    old = save(tmp_path, "000000000001", some(1), 1)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(owner, function, full)
        save(tmp_path, name, some(2), 1)
    assert os.listdir(tmp_path) == ["000000000001"]
    assert equal(load(old), some(1))


def test_what_was_moved_aside_is_put_back_when_its_successor_gets_no_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = save(tmp_path, "000000000001", some(1), 1)
    right = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name.endswith(str(os.getpid())):
            raise OSError(28, "No space left on device")
        return right(path, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "rename", rename)
        save(tmp_path, "000000000001", some(2), 1)
    assert os.listdir(tmp_path) == ["000000000001"] and equal(load(old), some(1))


@pytest.mark.parametrize("how", ["kill", "raise"])
def test_killed_or_failing_at_any_call_to_the_disk_it_leaves_a_whole_checkpoint(tmp_path: Path, how: str) -> None:
    script = Path(__file__).parents[1] / "torture.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path), how], capture_output=True, text=True,
                          timeout=200, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


def test_cleaning_touches_nothing_that_saving_did_not_leave(tmp_path: Path) -> None:
    save(tmp_path, "000000000001", some(), 3)
    for name in (".hidden.dir", ".000000000001.abandoned", "notes", ".000000000009.4711"):
        (tmp_path / name).mkdir()
    (tmp_path / ".000000000008.12").symlink_to(tmp_path / "notes")
    assert clean(tmp_path) == [f"{tmp_path / '.000000000009.4711'} was removed: it was never finished"]
    assert len(os.listdir(tmp_path)) == 5
    assert clean(tmp_path / "nowhere") == []


def test_everything_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        done.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    save(tmp_path, "000000000001", some(), 1)
    before, after = done[:done.index("rename")], done[done.index("rename") + 1:]
    assert {*FILES, f".000000000001.{os.getpid()}"} == set(before)
    assert after == [tmp_path.name]


def test_going_on_from_an_older_checkpoint_sets_the_newer_ones_aside(tmp_path: Path) -> None:
    for number in (10, 20, 30):
        save(tmp_path, f"{number:012d}", some(number), 5)
    set_aside_after(tmp_path / "000000000010")
    assert [path.name for path in saved(tmp_path)] == ["000000000010"]
    assert equal(load(tmp_path / "000000000030.abandoned"), some(30))


# ------------------------------------------------------------------------------------------------ the best one

def test_what_is_spared_stays_beside_the_newest_few(tmp_path: Path) -> None:
    for number in (10, 20, 30, 40, 50):
        save(tmp_path, f"{number:012d}", some(number), 2, spared={"000000000010", "000000000040"})
    assert [int(path.name) for path in saved(tmp_path)] == [50, 40, 10]
    save(tmp_path, "000000000060", some(60), 2)
    assert [int(path.name) for path in saved(tmp_path)] == [60, 50]


def test_the_best_one_is_noted(tmp_path: Path) -> None:
    assert best(tmp_path) is None
    for number in (10, 20):
        save(tmp_path, f"{number:012d}", some(number), 5)
        noted = Best(f"{number:012d}", -number / 3, {"episodes": 10, "greedy": False})
        set_best(tmp_path, noted)
        assert best(tmp_path) == noted
    assert sorted(os.listdir(tmp_path)) == ["000000000010", "000000000020", "best.json"]


@pytest.mark.parametrize("note", ["", "[]", '{"checkpoint": "000000000010"}', '{"checkpoint": "../x", "mean": 1}',
                                  '{"checkpoint": "000000000020", "mean": 1}'])
def test_a_note_that_is_damaged_or_of_a_branch_left_is_none(tmp_path: Path, note: str) -> None:
    save(tmp_path, "000000000010", some(10), 5)
    (tmp_path / "best.json").write_text(note)
    assert best(tmp_path) is None


@pytest.mark.parametrize(("owner", "function"), [(os, "fsync"), (Path, "replace"), (Path, "write_text")])
def test_a_failure_while_noting_leaves_the_old_note(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str) -> None:
    save(tmp_path, "000000000010", some(10), 5)
    set_best(tmp_path, Best("000000000010", 1.0, {}))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(owner, function, full)
        set_best(tmp_path, Best("000000000010", 2.0, {}))
    assert best(tmp_path) == Best("000000000010", 1.0, {})


def test_the_first_after_each_full_hour_of_training_is_told(tmp_path: Path) -> None:
    for steps, minutes in ((10, 59), (20, 61), (30, 119), (40, 121), (50, 179)):
        save(tmp_path, f"{steps:012d}", Checkpoint({}, {"time": 60.0 * minutes}), 9)
    save(tmp_path, "000000000060", Checkpoint({}, {"time": "noon"}), 9)
    assert sorted(hourly(tmp_path)) == ["000000000020", "000000000040"]


@pytest.mark.parametrize(("shape", "dtype"), [((10**12,), "<f4"), ((10**6, 10**6, 10**6), "<f4"), ((3,), "<f4"),
                                              ((5,), "<f4"), ((4,), "|O"), ((2, 2), "<f8")])
def test_an_array_larger_than_its_file_is_refused_before_anything_is_made(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str) -> None:
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + bytes(16)
    with zipfile.ZipFile(tmp_path / "arrays.npz", "w") as file:
        file.writestr("network.00.npy", content)
    monkeypatch.setattr(np, "load", lambda *arguments, **options: pytest.fail("it was about to be read"))
    with pytest.raises(CheckpointError, match="arrays.npz cannot be read: network.00.npy is not"):
        read_arrays(tmp_path / "arrays.npz")


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "arrays.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("network.00.npy", bytes(50_000_000))
    with pytest.raises(CheckpointError, match="it is said to unpack to 50,000,000 bytes"):
        read_arrays(tmp_path / "arrays.npz")


def test_the_best_of_a_branch_that_was_left_is_not_that_of_another_with_its_name(tmp_path: Path) -> None:
    for steps in (10, 20):
        save(tmp_path, f"{steps:012d}", some(steps), 9)
    set_best(tmp_path, Best("000000000020", 12.0, {}))
    set_aside_after(tmp_path / "000000000010")
    save(tmp_path, "000000000020", some(21), 9)
    assert best(tmp_path) is None
    set_best(tmp_path, Best("000000000010", 3.0, {}))
    set_aside_after(tmp_path / "000000000010")
    assert best(tmp_path) == Best("000000000010", 3.0, {})
