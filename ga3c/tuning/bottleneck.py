"""What limits the speed of a run, and what to change: pure judgement of the numbers a run measures every second."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, Literal, NamedTuple

Limit = Literal["environments", "predictors", "trainers", "transport", "device", "other load", "policy lag"]

_FULL = 0.9    # of all cores: nobody gets more work done by waiting less
_BUSY = 0.8    # of a thread's time: more requests would only queue
_MOST = 0.5    # of an agent's time
_FEW = 4       # environments of an agent: with fewer, waking an agent costs about as much as a step of its environments

_NUMBERS = ("cpu_agents", "cpu_server", "cpu_machine", "wait_ms", "slot_wait_ms", "play_ms", "queue_ms", "service_ms",
            "reply_ms", "predict_ms", "predictor_busy", "trainer_busy", "gather_ms", "update_ms")


class Verdict(NamedTuple):
    """`limit` names the part that holds the others up; `why` has its numbers; `advice` says what to change."""

    limit: Limit
    why: str
    advice: str

    def __str__(self) -> str:
        return f"{self.limit}: {self.why}; {self.advice}"


def averages(rows: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """Means of the rows' measurements, None if one of them was never taken (serial mode, a run that has just begun)."""
    rows = list(rows)
    means = {}
    for name in _NUMBERS:
        values = [row[name] for row in rows if row.get(name) is not None]
        if not values:
            return None
        means[name] = fmean(values)
    for kind in ("predictors", "trainers"):
        means[kind] = fmean(row.get(kind) or 1 for row in rows)
    means["cpu_evaluator"] = fmean(row.get("cpu_evaluator") or 0.0 for row in rows)
    lags = [row["lag_mean"] * (1 + 1 / row["agents"]) for row in rows if row.get("lag_mean") and row.get("agents")]
    means["lag_of_one_more"] = fmean(lags) if lags else 0.0  # lag is proportional to what is under way
    return means


def others(measured: Mapping[str, float]) -> float:
    """Cores that other programs take, of the columns `cpu_*`."""
    ours = measured["cpu_agents"] + measured["cpu_server"] + (measured.get("cpu_evaluator") or 0.0)
    return max(0.0, measured["cpu_machine"] - ours)


def verdict(measured: Mapping[str, float], cores: int, envs_per_agent: int, max_lag: float | None = None,
            agents_per_process: int = 1) -> Verdict:
    """Judges `averages` of metrics.jsonl's rows on a machine with `cores` cores.

    Full processors are judged by who fills them; with idle ones, whoever makes the agents wait is the limit, or
    `max_lag`, in updates, where more agents would help and the lag of one more would be over it.
    """
    m = measured
    agents, server, machine = m["cpu_agents"], m["cpu_server"], m["cpu_machine"]
    if machine >= _FULL * cores:
        if others(m) > 0.15 * cores:
            return Verdict("other load", f"other programs take {others(m):.1f} of {cores} cores",
                           "end them, or expect what is left")
        if agents >= server:
            return Verdict("environments", f"all {cores} cores are busy, agents take {agents:.1f}",
                           "fewer agents with more envs_per_agent" if envs_per_agent < _FEW else
                           "only more cores, or a lighter game, would be faster")
        return Verdict("device", f"all {cores} cores are busy, the model takes {server:.1f}",
                       "a GPU or a smaller network would be faster")

    life = m["wait_ms"] + m["slot_wait_ms"] + m["play_ms"]
    if m["play_ms"] > _MOST * life:
        share = 100 * m["play_ms"] / life
        return _room("environments", f"agents play {share:.0f} % of their time and cores are idle", "more agents",
                     m, max_lag)
    if agents_per_process > 1 and m["reply_ms"] > _MOST * life:
        return Verdict("environments", f"agents wait {m['reply_ms']:.1f} ms for their turn in a shared process and "
                       "cores are idle", "fewer agents_per_process")
    if m["slot_wait_ms"] > m["wait_ms"]:
        waits = f"agents wait {m['slot_wait_ms']:.1f} ms a step for free slots"
        updating = m["update_ms"] / max(1e-9, m["gather_ms"] + m["update_ms"])  # trainers take turns at it
        held = m.get("trainers", 1.0) * m["trainer_busy"] * updating >= _BUSY
        busy = m["trainer_busy"] >= _BUSY
        if held or (busy and m["update_ms"] > m["gather_ms"]):
            return Verdict("device", f"{waits}, an update takes {m['update_ms']:.0f} ms",
                           "a larger training_batch_min, more device_threads, a GPU or a smaller network")
        if busy:
            return Verdict("trainers", f"{waits}, gathering a batch takes {m['gather_ms']:.0f} ms", "more trainers")
        return Verdict("transport", f"{waits}, trainers are busy {100 * m['trainer_busy']:.0f} %",
                       "more slots_per_agent, or smaller updates (training_batch_min, envs_per_agent)")
    waits = f"agents wait {m['wait_ms']:.1f} ms for a prediction"
    if m["predictor_busy"] < _BUSY:
        return _room("transport", f"{waits}, predictors are busy {100 * m['predictor_busy']:.0f} %",
                     "more agents, or more envs_per_agent", m, max_lag)
    if m["predict_ms"] > _MOST * m["service_ms"]:
        return Verdict("device", f"{waits}, {m['predict_ms']:.1f} ms of it in the model",
                       "more predictors or device_threads where that is the processor, else a faster GPU; or a smaller "
                       "network")
    # They take turns at the interpreter: the more there are, the fewer observations each time.
    return Verdict("predictors", f"{waits}, {m['queue_ms']:.1f} ms of it in the queue",
                   "a larger prediction_batch_max where predictions are that large, else "
                   + ("fewer predictors, for larger predictions" if m.get("predictors", 1.0) > 1 else
                      "more envs_per_agent"))


def _room(limit: Limit, why: str, advice: str, measured: Mapping[str, float], max_lag: float | None) -> Verdict:
    """More agents would help: `advice`, or what keeps the controller from it."""
    lag = measured.get("lag_of_one_more", 0.0)
    if max_lag is None or lag <= max_lag:
        return Verdict(limit, why, advice)
    return Verdict("policy lag", f"{why}; with one more agent the policy lag would be {lag:.1f} updates, over max_lag",
                   "a larger training_batch_min makes room for more agents; a higher max_lag learns from older steps")


class Judge:
    """The verdict of the seconds since the workers last changed, at most the last ten; none of fewer than three.

    `max_lag`: what keeps the number of agents down; None where nothing does.
    """

    def __init__(self, cores: int, envs_per_agent: int, max_lag: float | None, agents_per_process: int = 1) -> None:
        self._cores, self._envs_per_agent, self._max_lag = cores, envs_per_agent, max_lag
        self._agents_per_process = agents_per_process
        self._seen: deque[Mapping[str, Any]] = deque(maxlen=10)

    def hear(self, row: Mapping[str, Any]) -> Verdict | None:
        """A second has passed; what limits the run now."""
        if self._seen and any(row[kind] != self._seen[-1][kind] for kind in ("agents", "predictors", "trainers")):
            self._seen.clear()
        self._seen.append(row)
        measured = averages(self._seen) if len(self._seen) >= 3 else None
        if not measured:
            return None
        return verdict(measured, self._cores, self._envs_per_agent, self._max_lag, self._agents_per_process)
