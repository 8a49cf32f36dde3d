"""Slots in shared memory: layout, the one copy or none, and two processes that see the same bytes."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.agents.forkserver import start_forkserver
from ga3c.envs.base import EnvSpec
from ga3c.settings.schema import EnvSettings
from ga3c.transport.fields import Field
from ga3c.transport.slots import Slots

WITH_EXTRA_ROW = {"policy", "value", "version"}


def spec(shape: tuple[int, ...], dtype: str = "u1", n_actions: int = 3) -> EnvSpec:
    return EnvSpec("a world", shape, np.dtype(dtype), n_actions, 1)


def shapes(world: EnvSpec, T: int, E: int) -> dict[str, tuple[int, ...]]:
    return {
        "observation": (T, E, *world.observation_shape), "following": (E, *world.observation_shape),
        "policy": (T + 1, E, world.n_actions), "value": (T + 1, E),
        "version": (T + 1,), "action": (T, E), "reward": (T, E), "terminated": (T, E), "truncated": (T, E),
        "final_value": (T, E), "bootstrap_value": (E,), "score": (T, E), "episode_length": (T, E), "steps": (),
    }


def filled_at_random(store: Slots, names: list[str], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    content = {name: rng.integers(0, 2 if getattr(store, name).dtype == bool else 200, getattr(store, name).shape)
               .astype(getattr(store, name).dtype) for name in names}
    for name, values in content.items():
        getattr(store, name)[:] = values
    return content


stores = st.tuples(
    st.builds(spec, st.sampled_from([(3,), (1,), (5, 4, 2)]), st.sampled_from(["u1", "f4"]), st.integers(1, 18)),
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 6))


@examples(deadline=None, max_examples=100)
@given(stores, st.data())
def test_a_gathered_batch_holds_exactly_the_facts_of_its_slots(
        made: tuple[EnvSpec, int, int, int], data: st.DataObject) -> None:
    world, rollout_length, n_envs, n_slots = made
    store, layout = Slots(*made), shapes(world, rollout_length, n_envs)
    content = filled_at_random(store, list(layout), data.draw(st.integers(0, 99)))
    slots = data.draw(st.lists(st.integers(0, n_slots - 1), unique=True))
    at, spare = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
    batch = store.empty_batch(at + len(slots) + spare)
    before = {name: getattr(batch, name).copy() for name in layout}

    store.gather(slots, batch, at)

    assert len(batch) == at + len(slots) + spare
    for name in layout:
        got, facts = getattr(batch, name), content[name]
        if name in WITH_EXTRA_ROW:
            facts = facts[:, :rollout_length]
        assert got.dtype == facts.dtype
        assert got[at:at + len(slots)].tobytes() == facts[slots].tobytes()
        assert got[:at].tobytes() == before[name][:at].tobytes()
        assert got[at + len(slots):].tobytes() == before[name][at + len(slots):].tobytes()


@examples(deadline=None, max_examples=50)
@given(stores)
def test_every_field_has_its_shape_and_begins_on_a_cache_line(made: tuple[EnvSpec, int, int, int]) -> None:
    world, rollout_length, n_envs, n_slots = made
    store = Slots(*made)
    for name, shape in shapes(world, rollout_length, n_envs).items():
        field = getattr(store, name)
        assert field.shape == (n_slots, *shape)
        assert field.ctypes.data % 64 == 0


@examples(deadline=None, max_examples=100)
@given(stores, st.data())
def test_a_rollout_can_be_trained_on_as_it_lies(made: tuple[EnvSpec, int, int, int], data: st.DataObject) -> None:
    store = Slots(*made)
    content = filled_at_random(store, list(shapes(*made[:3])), 0)
    slot = data.draw(st.integers(0, made[3] - 1))
    batch = store.view(slot)
    assert len(batch) == 1 and batch.observation.flags.c_contiguous
    for name, facts in content.items():
        got = getattr(batch, name)
        assert np.shares_memory(got, getattr(store, name))
        assert np.array_equal(got[0], (facts[:, :made[1]] if name in WITH_EXTRA_ROW else facts)[slot])


def test_an_algorithm_adds_its_outputs_to_a_slot() -> None:
    store = Slots(spec((2,)), 3, 2, 4, 2, {"quantiles": Field((5, 7), np.float32)})
    rows = [store.row(2, 3), store.row(0, 1)]
    store.answer(rows, {"quantiles": np.arange(140, dtype=np.float32).reshape(2, 2, 5, 7)}, 6)
    quantiles = store.quantiles  # type: ignore[attr-defined]
    assert quantiles[2, 3].ravel().tolist() == list(range(70))
    assert quantiles[0, 1].ravel().tolist() == list(range(70, 140))
    assert store.version[2, 3] == store.version[0, 1] == 6 and store.version.sum() == 12
    assert store.empty_batch(1).arrays["quantiles"].shape == (1, 3, 2, 5, 7)


def test_a_slice_of_a_batch_is_a_view_of_its_first_rollouts() -> None:
    batch = Slots(spec((2,)), 3, 2, 1).empty_batch(4)
    batch[:2].reward[:] = 7
    assert len(batch[:2]) == 2
    assert (batch.reward[:2] == 7).all()


def test_rows_after_the_steps_of_a_short_rollout_are_not_filled_and_not_counted() -> None:
    batch = Slots(spec((2,)), 3, 2, 1).empty_batch(3)
    batch.steps[:] = [3, 1, 0]
    assert batch.filled.tolist() == [[[True], [True], [True]], [[True], [False], [False]], [[False]] * 3]
    assert batch.agent_steps == (3 + 1 + 0) * 2
    assert batch[:1].agent_steps == 6


def answers(store: Slots) -> None:
    assert store.action[1].tolist() == [[1, 2], [3, 4], [5, 6]]
    store.reward[1] = 10 * store.action[1]
    store.observation[2, 2] = 9
    store.steps[0] = 2


def test_two_processes_see_each_others_writes() -> None:
    store = Slots(spec((4, 4, 1)), 3, 2, 3)
    store.action[1] = [[1, 2], [3, 4], [5, 6]]
    start_forkserver(EnvSettings(game="toy:catch"), 1)  # as the service has it: others will use it
    child = multiprocessing.get_context("forkserver").Process(target=answers, args=(store,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert store.reward[1].tolist() == [[10, 20], [30, 40], [50, 60]]
    assert (store.observation[2, 2] == 9).all()
    assert (store.observation[2, :2] == 0).all()
    assert store.steps.tolist() == [2, 0, 0]


@pytest.mark.parametrize("name", ["reward", "observation"])
def test_what_is_gathered_is_a_copy(name: str) -> None:
    store = Slots(spec((2,)), 3, 2, 1)
    batch = store.empty_batch(1)
    store.gather([0], batch, 0)
    getattr(store, name)[:] = 5
    assert (getattr(batch, name) == 0).all()


def test_rollouts_in_a_mask_are_copied_out() -> None:
    batch = Slots(spec((1,)), 3, 2, 4).empty_batch(4)
    batch.steps[:], batch.reward[:] = range(4), np.arange(4)[:, None, None]
    mask = np.array([True, False, True])
    out = batch[:3][~mask]
    batch.steps[1] = 9
    assert out.steps.tolist() == [1] and len(out) == 1 and out.reward.shape == (1, 3, 2)


def test_observations_are_copied_to_the_front_of_the_buffer() -> None:
    spec = EnvSpec("none", (3,), np.dtype(np.float32), 2, 1)
    store = Slots(spec, rollout_length=2, n_envs=2, n_slots=40_000)  # slot x row is more than 16 bits hold
    store.observation[:] = np.arange(store.observation.size).reshape(store.observation.shape)
    store.following[:] = -1.0 - np.arange(store.following.size).reshape(store.following.shape)
    buffer = store.empty_observations(4)
    slots, rows = [39_999, 0, 7], [2, 0, 1]
    store.observations([store.row(*each) for each in zip(slots, rows, strict=True)], buffer)
    assert np.array_equal(buffer[0], store.following[39_999]), "of a truncated episode"
    assert np.array_equal(buffer[1:3], store.observation[slots[1:], rows[1:]]) and not buffer[3].any()
    assert buffer.ctypes.data % 64 == 0


@examples(max_examples=60)
@given(stores, st.data())
def test_slots_of_an_agent_are_joined_to_one_rollout_whose_last_steps_are_the_new_ones(
        made: tuple[EnvSpec, int, int, int], data: st.DataObject) -> None:
    world, rollout_length, n_envs, n_slots = made
    store, layout = Slots(*made), shapes(world, rollout_length, n_envs)
    content = filled_at_random(store, list(layout), data.draw(st.integers(0, 99)))
    store.steps[:] = data.draw(st.lists(st.integers(1, rollout_length), min_size=n_slots, max_size=n_slots))
    slots = data.draw(st.lists(st.integers(0, n_slots - 1), min_size=1, unique=True))
    batch, place = store.empty_batch(2, rollout_length * n_slots), data.draw(st.integers(0, 1))
    for slot in slots:
        store.append(slot, batch, place)
    steps = store.steps[slots].tolist()
    assert batch.steps[place] == sum(steps) and batch.steps[1 - place] == 0
    assert batch.agent_steps == steps[-1] * n_envs and batch.filled[place].sum() == sum(steps)
    assert batch.new[place].sum() == steps[-1] and not batch.new[place, :sum(steps[:-1])].any()
    for name in layout:
        if name in ("following", "bootstrap_value"):
            np.testing.assert_array_equal(batch.arrays[name][place], content[name][slots[-1]])
        elif name != "steps":
            whole = np.concatenate([content[name][slot, :n] for slot, n in zip(slots, steps, strict=True)])
            np.testing.assert_array_equal(batch.arrays[name][place, :sum(steps)], whole)
    batch.clear(slice(None))
    assert batch.agent_steps == 0
