"""The diagnosis of a run: what limits its speed, and what to change. Pure functions of the metrics of each second."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, Literal, NamedTuple

Bottleneck = Literal["environments", "predictors", "trainers", "transport", "device", "external load", "policy lag",
                     "rounds"]

_FULL_SHARE = 0.9    # share of all cores, or of the time for updates, from which less waiting would bring no more work
_BUSY_SHARE = 0.8    # share of a thread's time from which more requests would only queue
_MAJORITY = 0.5    # share that counts as most of an agent's time, of a prediction, or of the time for updates
_SLOT_WAIT_SHARE = 0.1  # share of an agent's time without a slot, above which agents would play more than updates take
_SMALL = 32    # observations of a prediction; with fewer, each has a large part of the call's fixed cost
_FEW = 4       # environments of an agent; with fewer, waking it costs about as much as a step of its environments

_CORES = ("cpu_agents", "cpu_server", "cpu_machine")
_TIMES = ("wait_ms", "slot_wait_ms", "play_ms", "queue_ms", "service_ms", "reply_ms", "predict_ms", "predictor_busy",
          "trainer_busy", "gather_ms", "update_ms")


class Diagnosis(NamedTuple):
    """A diagnosis: the `bottleneck` that other parts wait for, the `reason` with its numbers, and `advice`."""

    bottleneck: Bottleneck
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.bottleneck}: {self.reason}; {self.advice}"


def averages(rows: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """Returns the means of the rows' measurements by name; None if one was never taken, as in serial mode.

    In rounds one thread predicts and trains; it is counted as a trainer. Such rows need only the columns of cores.
    """
    rows = list(rows)
    one_thread = all(row.get("trainers") and not row.get("predictors") for row in rows)
    means = {}
    for name in _CORES if one_thread else (*_CORES, *_TIMES):
        values = [row[name] for row in rows if row.get(name) is not None]
        if not values:
            return None
        means[name] = fmean(values)
    for kind in ("predictors", "trainers"):
        means[kind] = fmean(row.get(kind) or 1 for row in rows)
    for name, usual in (("passes", 1.0), ("prediction_batch", float(_SMALL))):  # if no row has such a call
        values = [row[name] for row in rows if row.get(name) is not None]
        means[name] = fmean(values) if values else usual
    if intensities := [row["intensity"] for row in rows if "intensity" in row]:
        means["intensity"] = fmean(intensities)
    means["cpu_evaluator"] = fmean(row.get("cpu_evaluator") or 0.0 for row in rows)
    measured = [(row.get("lag_mean"), row.get("agents")) for row in rows]
    lags = [lag * (1 + 1 / agents) for lag, agents in measured if lag and agents]
    means["lag_of_one_more"] = fmean(lags) if lags else 0.0  # lag grows with the rollouts under way
    return means


def external_load(measured: Mapping[str, float]) -> float:
    """Returns the cores that other programs take, from the columns `cpu_*` of a row or of averages."""
    run = measured["cpu_agents"] + measured["cpu_server"] + (measured.get("cpu_evaluator") or 0.0)
    return max(0.0, measured["cpu_machine"] - run)


def diagnose(measured: Mapping[str, float], cores: int, envs_per_agent: int,
             max_lag: float | None = None) -> Diagnosis:
    """Returns the bottleneck, from the `averages` of rows.

    If all cores are busy, the bottleneck is the part that takes most of them. If some are idle, it is the part that the
    agents wait for. If more agents would help, but one more would raise the policy lag over `max_lag`, it is the policy
    lag.

    Args:
        cores: usable cores of the machine.
        max_lag: in updates; None if there is no ceiling.
    """
    m = measured
    if m["cpu_machine"] >= _FULL_SHARE * cores:
        return _of_full_cores(m, cores, envs_per_agent)
    if _one_thread(m):
        return Diagnosis("rounds", "agents and model wait for each other, "
                         f"{cores - m['cpu_machine']:.1f} of {cores} cores are idle",
                         "the schedule queues lets both work at the same time" + (
                             "" if "intensity" in m else ", with an algorithm that corrects policy lag: appo, a3c"))

    updating = _updating(m)
    life = m["wait_ms"] + m["slot_wait_ms"] + m["play_ms"]
    if updating >= _FULL_SHARE and m["slot_wait_ms"] > _SLOT_WAIT_SHARE * life:
        return _updates(m)
    if m["play_ms"] > _MAJORITY * life:
        share = 100 * m["play_ms"] / life
        return _more_agents("environments", f"agents play {share:.0f} % of their time and cores are idle",
                            "more agents", m, max_lag)
    if m["slot_wait_ms"] > m["wait_ms"]:
        waits = f"agents wait {m['slot_wait_ms']:.1f} ms a step for free slots"
        busy = m["trainer_busy"] >= _BUSY_SHARE
        if updating >= _BUSY_SHARE or (busy and m["update_ms"] > m["gather_ms"]):
            return _updates(m)
        if busy:
            return Diagnosis("trainers", f"{waits}, gathering a batch takes {m['gather_ms']:.0f} ms", "more trainers")
        return Diagnosis("transport", f"{waits}, trainers are busy {100 * m['trainer_busy']:.0f} %",
                         "more slots_per_agent, or smaller updates (training_batch_min, envs_per_agent)")
    waits = f"agents wait {m['wait_ms']:.1f} ms for a prediction"
    if m["predictor_busy"] < _BUSY_SHARE:
        return _more_agents("transport", f"{waits}, predictors are busy {100 * m['predictor_busy']:.0f} %",
                            "more agents, or more envs_per_agent", m, max_lag)
    if m["predict_ms"] > _MAJORITY * m["service_ms"]:
        within = f"{waits}, {m['predict_ms']:.1f} ms of it in the model"
        if m.get("prediction_batch", _SMALL) < _SMALL:
            return _more_agents("device", f"{within}, which gets {m['prediction_batch']:.0f} at a time",
                                "more agents, or more envs_per_agent, for larger predictions", m, max_lag)
        if updating >= _MAJORITY:
            return Diagnosis("device", f"{within}, and updates are under way {100 * updating:.0f} % of the time",
                             f"{_less_training(m)}a larger training_batch_min, a faster GPU or a smaller network")
        return Diagnosis("device", within,
                         "more predictors or device_threads where that is the processor, else a faster GPU; or a "
                         "smaller network")
    # Predictors share one interpreter: the more there are, the fewer observations each call has.
    return Diagnosis("predictors", f"{waits}, {m['queue_ms']:.1f} ms of it in the queue",
                     "a larger prediction_batch_max where predictions are that large, else "
                     + ("fewer predictors, for larger predictions" if m.get("predictors", 1.0) > 1 else
                        "more envs_per_agent"))


def _of_full_cores(m: Mapping[str, float], cores: int, envs_per_agent: int) -> Diagnosis:
    agents, server = m["cpu_agents"], m["cpu_server"]
    if external_load(m) > 0.15 * cores:
        return Diagnosis("external load", f"other programs take {external_load(m):.1f} of {cores} cores",
                         "end them, or accept a slower run")
    if agents >= server:
        return Diagnosis("environments", f"all {cores} cores are busy, agents take {agents:.1f}",
                         "fewer agents with more envs_per_agent" if envs_per_agent < _FEW else
                         "only more cores, or a lighter game, would be faster")
    model = f"all {cores} cores are busy, the model takes {server:.1f}"
    advice = "a GPU or a smaller network would be faster"
    if _one_thread(m):
        return Diagnosis("device", model, _less_training(m) + advice)
    predicting = m.get("predictors", 1.0) * m["predictor_busy"] * m["predict_ms"] / max(
        1e-9, m["predict_ms"], m["service_ms"])
    if _updating(m) >= min(predicting, _BUSY_SHARE):
        return Diagnosis("device", f"{model}, most of it for updates", _less_training(m) + advice)
    return Diagnosis("device", f"{model}, most of it for predictions", advice)


def _one_thread(m: Mapping[str, float]) -> bool:
    return "wait_ms" not in m


def _updating(m: Mapping[str, float]) -> float:
    """Returns the share of the time in which an update is under way. Trainers update in turn."""
    trainers = m.get("trainers", 1.0) * m["trainer_busy"]
    return trainers * m["update_ms"] / max(1e-9, m["gather_ms"] + m["update_ms"])


def _updates(m: Mapping[str, float]) -> Diagnosis:
    if "intensity" in m:  # the replay takes no rollout while updates are owed
        return Diagnosis("device",
                         f"agents wait {m['slot_wait_ms']:.1f} ms a step for updates of {m['update_ms']:.0f} ms, "
                         f"{m['intensity']:.1f} uses of each step",
                         "a lower intensity, more device_threads, a GPU or a smaller network")
    return Diagnosis("device",
                     f"agents wait {m['slot_wait_ms']:.1f} ms a step for free slots, an update takes "
                     f"{m['update_ms']:.0f} ms",
                     f"{_less_training(m)}a larger training_batch_min, more device_threads, a GPU or a smaller network")


def _less_training(m: Mapping[str, float]) -> str:
    if "intensity" in m:
        return "a lower intensity, "
    return "fewer passes, " if m.get("passes", 1.0) > 1.0 else ""


def _more_agents(bottleneck: Bottleneck, reason: str, advice: str, measured: Mapping[str, float],
                 max_lag: float | None) -> Diagnosis:
    """Returns the diagnosis where more agents would help: with `advice`, or the policy lag if that forbids them."""
    lag = measured.get("lag_of_one_more", 0.0)
    if max_lag is None or lag <= max_lag:
        return Diagnosis(bottleneck, reason, advice)
    return Diagnosis(
        "policy lag", f"{reason}; with one more agent the policy lag would be {lag:.1f} updates, over max_lag",
        "a larger training_batch_min makes room for more agents; a higher max_lag learns from older steps")


class Diagnoser:
    """The diagnosis of the last seconds: three to ten of them, since the numbers of workers last changed."""

    def __init__(self, cores: int, envs_per_agent: int, max_lag: float | None) -> None:
        self._cores = cores
        self._envs_per_agent = envs_per_agent
        self._max_lag = max_lag
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=10)

    def observe(self, row: Mapping[str, Any]) -> Diagnosis | None:
        """Takes the row of a second that has passed. Returns the diagnosis, or None if there are too few rows."""
        if self._rows and any(row[kind] != self._rows[-1][kind] for kind in ("agents", "predictors", "trainers")):
            self._rows.clear()
        self._rows.append(row)
        measured = averages(self._rows) if len(self._rows) >= 3 else None
        return diagnose(measured, self._cores, self._envs_per_agent, self._max_lag) if measured else None
