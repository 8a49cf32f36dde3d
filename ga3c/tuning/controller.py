"""The annealing controller: finds the N_A, N_P, N_T that train fastest during a run, and follows the load.

Pure decision code, without clock or thread. Once a second the supervisor (`service.Service`) hands a `Measurement` to
`observe`, sees to the wanted `setting`, and records the `Trial` that `observe` returns when one is over.

What counts is *agent steps trained per second*: TPS times the agent steps of an update. While the training batch stays
the same it is TPS but for a factor, and smaller updates do not raise it. With `max_lag`, a setting whose mean policy
lag is below that ceiling beats any whose is not.

`Paper` is the GA3C paper's process: one of the three, by one, every minute. `Fast` is the default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Setting = tuple[int, int, int]
"""N_A, N_P, N_T."""

PATIENCE = 60.0       # seconds without one that counts, after which a trial is given up
FIRST_LOOK = 3        # seconds measured before a verdict is thought of
UNHURRIED = 10        # ... before which more workers of several kinds are not turned down, nor is an uneven trial:
UNEVEN = 3.0          # its seconds differ by so many times what is known of the noise
LONGEST_LOOK = 20     # seconds after which there is a verdict
REMEASURE = 5         # seconds of the accepted setting, measured again
ENOUGH = 10           # seconds of it that an undecided trial can be turned down by for good
KEPT_SECONDS = 40     # of the accepted setting, the newest
OLD = 30.0            # seconds after which the accepted setting is measured again before anything is compared with it
WATCHED = 10          # seconds judged at once when nothing is searched for
PROBE_FIRST = 120.0   # seconds from the end of a search to the first trial of a neighbour; each doubles them, until the
PROBE_LAST = 480.0    # rate changes, up to these: agents that come and go cost more than is likely to be found
PROBE_FACTOR = 1.25
Z_KEEP = 2.5          # standard errors above nothing that keep a trial; a wrong change costs until it is found out
Z_UNDO = 1.0          # standard errors below the least gain that undo it; a missed gain is found by a later trial
LEAST_GAIN = 0.02     # a smaller share is not worth a change
CLEAR_GAIN = 0.25     # a larger share needs no second measurement
CHANGED = 0.1         # the accepted setting's own rate changed by this share: a new search instead of the next trial;
LASTING = 60.0        # ... if it is other programs that took or left the cores, after so many seconds of it;
LOAD = 0.25           # ... if it is not, and it changed by this share: at once
OTHERS = 0.1          # share of the cores that other programs may take more, or less, in a trial than before it
FULL = 2 * LEAST_GAIN  # idle share of the cores below which they are full: threads win less than half of it
GIVE_UPS = 3          # trials in a row that were given up, after which a search
WAIT = 120.0          # ... waits so many seconds
NOISE = 0.1           # relative standard deviation of a second's rate, before anything is known of it
NOISE_WEIGHT = 4.0    # seconds that what is known of the noise weighs beside a window's own
DRIFT = 0.01          # relative standard deviation between windows that no number of seconds averages away
ONCE_MORE = ": once more"  # ends the reason of a trial that is to be repeated
COARSEST, FINEST = 2.0, 1.15  # factor of a search's first steps; below the other the search is over


class Measurement(NamedTuple):
    """One second of training that ended `time` seconds into the run.

    rate: agent steps trained per second; lag: mean policy lag, updates; queues: tickets that wait. void: workers were
    starting or leaving, an agent died, a checkpoint was written, or the second was none: it says nothing of a setting.
    others: the share of all cores that other programs took. idle: the share of them that nothing ran on, where the
    model computes on cores as well; 1 where it has a device, or that was not measured.
    """

    time: float
    rate: float
    lag: float
    prediction_queue: float
    training_queue: float
    void: bool
    others: float = 0.0
    idle: float = 1.0


class Window:
    """Seconds measured at one setting: (rate, lag, prediction queue, training queue, others, idle); the last ended at
    `newest`. Versions before 0.8.0 did not measure the last two.
    """

    def __init__(self, seconds: Sequence[Sequence[float]] = (), newest: float = 0.0) -> None:
        self.seconds = [[*second, *(0.0, 1.0)[len(second) - 4:]] for second in seconds]
        self.newest = newest

    def add(self, m: Measurement) -> None:
        """One more second."""
        self.seconds.append([m.rate, m.lag, m.prediction_queue, m.training_queue, m.others, m.idle])
        self.newest = m.time

    def __len__(self) -> int:
        return len(self.seconds)

    def mean(self, column: int = 0) -> float:
        """Of the rate, or of another column; 0 of nothing."""
        return math.fsum(second[column] for second in self.seconds) / max(1, len(self.seconds))

    def squares(self) -> float:
        """Sum of squared deviations of the rate from its mean."""
        mean = self.mean()
        return math.fsum((second[0] - mean) ** 2 for second in self.seconds)

    def deviation(self) -> float:
        """Standard deviation of a second's rate; 0 of fewer than two."""
        return math.sqrt(self.squares() / (len(self) - 1)) if len(self) > 1 else 0.0


class Trial(NamedTuple):
    """A trial that is over. Rates in agent steps trained per second, with the standard deviation of one second.

    kept: whether its setting is the accepted one now; None if it was given up, as it could not be measured.
    """

    before: Setting
    after: Setting
    rate_before: float
    deviation_before: float
    rate: float
    deviation: float
    seconds: int
    lag: float
    prediction_queue: float
    training_queue: float
    kept: bool | None
    reason: str

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return "given up" if self.kept is None else "kept" if self.kept else "undone"

    def brief(self) -> str:
        """For the status line."""
        gain = f" {self.rate / self.rate_before - 1:+.0%}" if self.rate_before and self.seconds else ""
        return f"{name(self.after)} {self.verdict}{gain if self.kept is not None else ''}"


def name(setting: Sequence[int]) -> str:
    """N_A/N_P/N_T, as `--start` has it."""
    return "/".join(map(str, setting))


class Controller:
    """What both processes share: the accepted setting with its own measurements, and the trial under way.

    Args:
        start: the first accepted setting; brought into bounds.
        limits: the most of each; the least is 1.
        max_lag: ceiling of the mean policy lag in updates; None: none.
        seed: of the decisions left to chance.
    """

    searching = True

    def __init__(self, start: Setting, limits: Setting, max_lag: float | None, seed: int) -> None:
        self._limits, self._max_lag = limits, max_lag
        self._rng = np.random.default_rng(seed)
        self.accepted = self._bounded(start)
        self.baseline = Window()
        self._trial: Setting | None = None
        self._window, self._fresh = Window(), Window()  # of the trial; of the accepted setting, measured again
        self._heard = 0.0  # when the trial began, or its last second that counted

    @property
    def setting(self) -> Setting:
        """What is wanted now: the trial's, else the accepted."""
        return self._trial or self.accepted

    @property
    def beside_others(self) -> bool:
        """Whether other programs take so much, or have just come or gone, that what is found may hold for them only."""
        return self.baseline.mean(4) > OTHERS

    def observe(self, m: Measurement) -> Trial | None:
        """Takes a second into account; returns the trial it ended.

        A void second changes nothing, but that a trial which has waited `PATIENCE` for one that counts is given up.
        """
        if m.void:
            if self._trial is None or m.time - self._heard <= PATIENCE:
                return None
            return self._end(m, self._unmeasured(), f"not one undisturbed second in {PATIENCE:.0f}")
        if self._trial is None:
            self._rest(m)
            return None
        self._window.add(m)
        self._heard = m.time
        verdict = self._verdict()
        return self._end(m, *verdict) if verdict else None

    def restrict(self, agents: int) -> Trial | None:
        """No more agents than these from now on; returns the trial that this ends."""
        self._limits = (agents, *self._limits[1:])
        accepted = self._bounded(self.accepted)
        if accepted == self.accepted and self._bounded(self.setting) == self.setting:
            return None
        ended = self.interrupt(f"there is room for {agents} agents")
        self.accepted = accepted
        self.remeasure()
        return ended

    def interrupt(self, reason: str) -> Trial | None:
        """Back to the accepted setting; returns the trial that this ends, which says nothing of its setting."""
        if self._trial is None:
            return None
        ended = self._told(None, reason)
        self._trial, self._window, self._fresh = None, Window(), Window()
        return ended

    def remeasure(self) -> None:
        """What was measured is of another hour: a trial under way is undone, the accepted setting measured again."""
        self._trial, self._window, self._fresh, self.baseline = None, Window(), Window(), Window()

    def state(self) -> dict[str, Any]:
        """Everything as plain JSON values; after `restore` the same measurements lead to the same decisions."""
        state = {key: vars(value) if isinstance(value, Window) else value for key, value in vars(self).items()
                 if key not in ("_limits", "_max_lag", "_rng")}
        state |= {"process": type(self).__name__, "rng": self._rng.bit_generator.state}
        plain: dict[str, Any] = json.loads(json.dumps(state))
        return plain

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Raises ValueError, changing nothing, if it is another process's or out of bounds."""
        if state.get("process") != type(self).__name__ or state.keys() != self.state().keys():
            raise ValueError("it is of another process")
        for setting in (state["accepted"], state["_trial"] or state["accepted"]):
            if list(self._bounded(setting)) != setting:
                raise ValueError(f"{name(setting)} is out of bounds")
        values = {}
        for key in state.keys() - {"process", "rng"}:
            value = values[key] = state[key]
            if isinstance(value, dict):
                values[key] = Window(**value)
            elif key in ("accepted", "_trial", "_doubted", "_once") and value:
                values[key] = tuple(value)
            elif key in ("_tried", "_worse", "_likely"):
                values[key] = [tuple(setting) for setting in value]
            elif key == "_found_beside":
                values[key] = [(others, tuple(setting)) for others, setting in value]
        self._rng.bit_generator.state = state["rng"]
        vars(self).update(values)

    def _rest(self, m: Measurement) -> None:
        """A second of the accepted setting."""
        raise NotImplementedError

    def _verdict(self) -> tuple[bool | None, str] | None:
        """On the trial under way: (kept, reason), as in `Trial`; None as long as there is none."""
        raise NotImplementedError

    def _unmeasured(self) -> bool | None:
        """What becomes of the trial under way, as in `Trial.kept`, if it could not be measured."""
        return None

    def _next(self, m: Measurement, trial: Trial) -> None:
        """A trial is over; its seconds are still in `_window`."""
        raise NotImplementedError

    def _begin(self, m: Measurement, setting: Setting) -> None:
        self._trial, self._window, self._heard = setting, Window(), m.time

    def _told(self, kept: bool | None, reason: str) -> Trial:
        assert self._trial is not None
        before, new = self.baseline, self._window
        return Trial(self.accepted, self._trial, before.mean(), before.deviation(), new.mean(), new.deviation(),
                     len(new), new.mean(1), new.mean(2), new.mean(3), kept, reason)

    def _end(self, m: Measurement, kept: bool | None, reason: str) -> Trial:
        trial = self._told(kept, reason)
        self._trial = None
        if kept:
            self.accepted, self.baseline = trial.after, self._window
        self._next(m, trial)
        if self._trial is None:
            self._window = Window()
        return trial

    def _bounded(self, setting: Sequence[int]) -> Setting:
        n_a, n_p, n_t = (min(max(1, count), most) for count, most in zip(setting, self._limits, strict=True))
        return n_a, n_p, n_t

    def _over(self, window: Window) -> bool:
        return self._max_lag is not None and window.mean(1) > self._max_lag

    def _lag_verdict(self) -> tuple[bool, str] | None:
        """What the ceiling alone has to say; None where it leaves it to the rate."""
        before, now = self.baseline.mean(1), self._window.mean(1)
        if not self._over(self.baseline):
            return (False, f"lag {now:.1f} is over {self._max_lag:g}") if self._over(self._window) else None
        assert self._trial is not None
        lower = now < 0.95 * before or (self._trial[0] < self.accepted[0] and not self._over(self._window))
        return lower, f"lag {now:.1f} after {before:.1f}, which was over {self._max_lag:g}"


class Paper(Controller):
    """One of the three, chosen by chance, changes by one for `window` seconds (GA3C, section 4.3).

    The rate is compared with the one measured at the accepted setting. Simulated annealing (Kirkpatrick et al., 1983):
    a trial that loses the share x of it is kept with probability exp(-x / temperature); every trial cools by 3 %.
    Temperature 0 is the paper's greedy rule.
    """

    def __init__(self, start: Setting, limits: Setting, max_lag: float | None, seed: int,
                 window: float = 60.0, temperature: float = 0.0) -> None:
        super().__init__(start, limits, max_lag, seed)
        self._length, self._temperature = max(1, round(window)), temperature

    def restore(self, state: dict[str, Any]) -> None:
        """As of any controller, with windows as they are asked for now."""
        super().restore(state | {"_length": self._length})

    def _rest(self, m: Measurement) -> None:
        self._fresh.add(m)
        if len(self._fresh) >= self._length:
            self.baseline, self._fresh = self._fresh, Window()
            self._try_neighbour(m)

    def _try_neighbour(self, m: Measurement) -> None:
        neighbours = []
        for which in range(3):
            for sign in (-1, 1):
                changed = list(self.accepted)
                changed[which] += sign
                if list(self._bounded(changed)) == changed:
                    neighbours.append(self._bounded(changed))
        if neighbours:
            self._begin(m, neighbours[self._rng.integers(len(neighbours))])

    def _verdict(self) -> tuple[bool, str] | None:
        if len(self._window) < self._length:
            return None
        ceiling = self._lag_verdict()
        if ceiling:
            return ceiling
        loss = 1 - self._window.mean() / max(self.baseline.mean(), 1e-9)
        if loss < 0:
            return True, "faster"
        if self._temperature and self._rng.random() < math.exp(-loss / self._temperature):
            return True, f"slower, kept at temperature {self._temperature:.3g}"
        return False, "not faster"

    def _next(self, m: Measurement, trial: Trial) -> None:
        if trial.kept is not None:
            self._temperature *= 0.97
        self._try_neighbour(m)


class Fast(Controller):
    """Compares as long as it takes to tell and no longer, in steps that grow while they pay.

    A step multiplies the number of agents, of predictors or of trainers, or of several of them (where two are limits at
    once, neither pays alone); near the ceiling on lag it is as many agents as that leaves room for. When no step pays,
    steps shrink; when the finest does not, the search is over, the rate is watched, and a neighbour is tried now and
    then, of those that are not worse without a doubt; it is kept if it is better twice. Where the model computes on
    cores and none is idle, more threads are not tried: they would share what is there. A rate that has changed much by
    itself begins a new search; if it changed a little, as rates do, that waits until a neighbour would be tried, and if
    other programs did it, until that has lasted. A search first tries what one beside as much of them found. A trial
    beside which they came or went is made again. `fine`: the start is likely near the best, so the first search begins
    with smaller steps.
    """

    def __init__(self, start: Setting, limits: Setting, max_lag: float | None, seed: int, fine: bool = False) -> None:
        super().__init__(start, limits, max_lag, seed)
        self.searching = True
        self._factor = COARSEST ** 0.5 if fine else COARSEST
        self._tried: list[Setting] = []          # undone since the search began
        self._worse: list[Setting] = []          # of those and of the probes since, without a doubt
        self._once: Setting | None = None        # better by a little, once: to be tried again
        self._towards: list[list[int]] = []      # what the last trial that was kept changed, and up or down
        self._streak = 0                         # trials kept that way in a row
        self._noise = NOISE
        self._confirmed = False
        self._probe_at, self._probe_wait = 0.0, PROBE_FIRST
        self._found = 0.0                        # the rate when the last search was over; 0: another is due
        self._ceiling_at = 0.0
        self._others_at: float | None = None     # when other programs came or went, until it has lasted
        self._given_up = 0                       # trials in a row
        self._doubted: Setting | None = None     # the last of those
        self._wait_until = 0.0
        self._found_beside: list[tuple[float, Setting]] = []  # what searches found, by the share that others took then
        self._likely: list[Setting] = []         # of those, what this search tries first

    def restore(self, state: dict[str, Any]) -> None:
        """As of any controller; earlier versions knew less, and `_changed` instead of the rate found."""
        known: dict[str, Any] = {
            "_probe_wait": PROBE_FIRST, "_ceiling_at": 0.0, "_found": 0.0, "_others_at": None, "_given_up": 0,
            "_doubted": None, "_wait_until": 0.0, "_found_beside": [], "_likely": [], "_worse": [], "_once": None}
        super().restore(known | {key: value for key, value in state.items() if key != "_changed"})

    @property
    def beside_others(self) -> bool:
        return super().beside_others or not self._found

    def interrupt(self, reason: str) -> Trial | None:
        """As of any controller; a neighbour that was tried is due again."""
        repeated = self._once is not None and self._trial == self._once  # which is due by itself
        ended = super().interrupt(reason)
        if ended and not self.searching and not repeated:
            self._probe_at, self._probe_wait = 0.0, max(PROBE_FIRST, self._probe_wait / 2)
        return ended

    def remeasure(self) -> None:
        """As of any controller; what was worse then may not be, and no trial is to be repeated."""
        super().remeasure()
        self._worse, self._once = [], None

    # ------------------------------------------------------------------------- at the accepted setting

    def _rest(self, m: Measurement) -> None:
        if m.time - self._fresh.newest > OLD:
            self._fresh = Window()
        self._fresh.add(m)
        enough = REMEASURE if self.searching else WATCHED
        if len(self._fresh) < enough:
            return
        fresh, before = self._fresh, self.baseline.mean()
        differs = len(self.baseline) > 0 and (
            self._others_changed(fresh) or abs(fresh.mean() - before) > Z_KEEP * self._error(fresh, self.baseline))
        if differs and len(fresh) < 2 * enough:
            return  # a hiccup, or the load has changed
        if differs:
            fresh = Window(fresh.seconds[-enough:], fresh.newest)  # those before are partly of the time before
        self._learn_noise(fresh.mean(), fresh.deviation(), len(fresh))
        self._fresh, self._confirmed = Window(), True
        if differs:
            others_changed, self.baseline = self._others_changed(fresh), fresh
            if others_changed:
                self._others_at, self._doubted = m.time, None
            elif abs(fresh.mean() - before) > LOAD * before:
                self._search_anew()
        else:
            self.baseline = Window([*self.baseline.seconds, *fresh.seconds][-KEPT_SECONDS:], fresh.newest)
        if self._others_at is not None and m.time - self._others_at >= LASTING and not self.searching:
            self._others_at = None
            if self._changed():
                self._search_anew()
        self._go_on(m)

    def _changed(self) -> bool:
        """Whether the rate is another than when the last search was over, or other programs have left cores since: the
        rate of a setting that cannot use those stays the same."""
        left = self._found_beside and self._found_beside[-1][0] - self.baseline.mean(4) > OTHERS
        return bool(left) or abs(self.baseline.mean() - self._found) > CHANGED * self._found

    def _search_anew(self) -> None:
        self._probe_wait = PROBE_FIRST
        self._search(COARSEST)

    def _search(self, factor: float) -> None:
        self.searching, self._factor, self._streak = True, factor, 0
        self._tried, self._worse, self._once = [], [], None
        self._others_at, self._given_up, self._wait_until = None, 0, 0.0
        self._likely = [setting for others, setting in self._found_beside if self._beside(others)]

    def _go_on(self, m: Measurement) -> None:
        """The next trial, if it is time for one."""
        if self._once and self._bounded(self._once) != self._once:
            self._once = None  # there is no room for it any more
        if self._once and m.time - self.baseline.newest <= OLD:
            self._begin(m, self._once)
        elif self.searching:
            if not self._confirmed or m.time - self.baseline.newest > OLD or m.time < self._wait_until:
                return
            while self._factor >= FINEST:
                for candidate in self._candidates(self._factor):
                    if not self._known(candidate):
                        self._begin(m, candidate)
                        return
                self._factor **= 0.5
                self._streak = 0
            self._end_search()
            self._probe_at, self._ceiling_at = m.time + self._probe_wait, m.time + PROBE_FIRST
        elif m.time >= self._ceiling_at and self._over(self.baseline):
            self._search(COARSEST)
        elif m.time >= self._probe_at and self._others_at is None:
            self._probe_wait = min(2 * self._probe_wait, PROBE_LAST)
            self._probe_at = m.time + self._probe_wait
            if self._changed():
                self._search(COARSEST)
                self._go_on(m)
                return
            fewer = self._step([0], 1 / PROBE_FACTOR)  # half of the time: on a plateau all that can be gained is memory
            neighbours = {fewer, *self._candidates(PROBE_FACTOR)} - {self.accepted}
            candidates = sorted(neighbours.difference(self._worse) or neighbours)
            if fewer in candidates and self._rng.random() < 0.5:
                candidates = [fewer]
            if candidates:
                self._begin(m, candidates[self._rng.integers(len(candidates))])

    def _near_ceiling(self) -> bool:
        """Whether two steps, even of the finest, would bring the lag over its ceiling."""
        finest = max(FINEST, 1 + 1 / self.accepted[0])
        return self._max_lag is not None and self.baseline.mean(1) * finest**2 > self._max_lag

    def _towards_ceiling(self) -> Iterator[Setting]:
        """As many agents more as would bring the lag there, were it in proportion to them, half as many, and so on;
        and one more with fewer threads, which lowers it. From above the ceiling: as many agents fewer.
        """
        assert self._max_lag is not None
        n_a, n_p, n_t = self.accepted
        more = int(n_a * self._max_lag / self.baseline.mean(1)) - n_a
        if self._over(self.baseline):
            yield self._bounded((n_a + min(-1, more), n_p, n_t))
            return
        more = max(1, more)
        while more >= LEAST_GAIN * n_a:
            yield self._bounded((n_a + more, n_p, n_t))
            if more == 1:
                break
            more = (more + 1) // 2
        for fewer in ((n_p, n_t // 2), (n_p // 2, n_t)):
            yield self._bounded((n_a + 1, *fewer))

    def _end_search(self) -> None:
        self.searching = False
        if self._others_at is not None:
            self._found = 0.0
            return
        self._found = self.baseline.mean()
        elsewhere = [(others, setting) for others, setting in self._found_beside if not self._beside(others)]
        self._found_beside = [*elsewhere, (self.baseline.mean(4), self.accepted)]

    def _beside(self, others: float) -> bool:
        """Whether other programs take about that share of the cores."""
        return abs(self.baseline.mean(4) - others) <= OTHERS

    def _known(self, candidate: Setting) -> bool:
        """Whether it is the accepted one or was undone; threads also, if it was with about as many agents (but not near
        the ceiling on lag, where one agent more or fewer may be what was undone)."""
        if candidate[1:] == self.accepted[1:]:
            return candidate in (self.accepted, *self._tried)
        other = 1 if self._near_ceiling() else None
        return any(candidate[1:] == tried[1:] and 2 / 3 < candidate[0] / tried[0] < 3 / 2
                   and abs(candidate[0] - tried[0]) != other for tried in self._tried)

    def _candidates(self, factor: float) -> Iterator[Setting]:
        """Settings a step away, the most promising first."""
        waiting, handed_in = (self.baseline.mean(column) / self.accepted[0] for column in (2, 3))
        threads = [[2], [1]] if handed_in > waiting else [[1], [2]]
        # If most agents wait for the threads, more agents are no help.
        ups = [*threads, [0]] if waiting + handed_in > 0.5 else [[0], *threads]
        steps = [(which, 1) for which in ups] + [([0], -1)]
        if self.searching:
            steps += [([1, 2], 1), ([0, 1, 2], 1)]
        steps += [(which, -1) for which in threads]
        yield from map(self._bounded, self._likely)
        near = self._near_ceiling()
        if self._over(self.baseline):
            yield from self._towards_ceiling()
        elif self._towards:
            which, (sign,) = self._towards
            steps.insert(0, (which, sign))
            if self._streak > 1 and not near and self._may_pay(which, sign):
                yield self._step(which, min(factor * factor, 4.0) ** sign)
        for which, sign in steps:
            if not self._may_pay(which, sign):
                continue
            if near and 0 in which and sign > 0:
                yield from self._towards_ceiling()
            else:
                yield self._step(which, factor ** sign)

    def _may_pay(self, which: Sequence[int], sign: int) -> bool:
        """Not so for more threads where all cores are at work, and for us."""
        full = self.baseline.mean(4) <= OTHERS and self.baseline.mean(5) < FULL
        return sign < 0 or which == [0] or not full

    def _step(self, which: Sequence[int], factor: float) -> Setting:
        setting = list(self.accepted)
        for i in which:
            count = round(setting[i] * factor)
            setting[i] = max(count, setting[i] + 1) if factor > 1 else min(count, setting[i] - 1)
        return self._bounded(setting)

    # ------------------------------------------------------------------------- during and after a trial

    def _verdict(self) -> tuple[bool | None, str] | None:
        if len(self._window) < FIRST_LOOK:
            return None
        verdict, last = self._compared(), Window(self._window.seconds[-FIRST_LOOK:])
        for seconds in (self._window, last) if verdict else (self._window,):  # they may just have come or gone
            if self._others_changed(seconds) and self._unmeasured() is None:
                return None, (f"other programs took {seconds.mean(4):.0%} of the cores, and "
                              f"{self.baseline.mean(4):.0%} before")
        return verdict

    def _compared(self) -> tuple[bool, str] | None:
        ceiling = self._lag_verdict()
        if ceiling:
            return ceiling
        new, base = self._window, self.baseline
        assert self._trial is not None
        gain, error = new.mean() - base.mean(), self._error(new, base)
        # Fewer workers need less memory and make less lag: not to be slower is enough, or chance leads ever further up.
        fewer = self._fewer(self._trial)
        least = 0.0 if fewer else LEAST_GAIN * base.mean()
        # There is no second trial of several kinds, and a hiccup takes some of few seconds.
        unhurried = (sum(after > before for after, before in zip(self._trial, self.accepted, strict=True)) > 1
                     or new.deviation() > UNEVEN * self._noise * new.mean())
        if gain > max(least, Z_KEEP * error):
            kept, reason = True, f"faster by {gain / error:.1f} standard errors"
        elif gain + Z_UNDO * error < least and len(new) >= (UNHURRIED if unhurried else FIRST_LOOK):
            return False, "slower" if fewer else "no gain worth a change"
        elif len(new) < LONGEST_LOOK:
            return None
        else:
            kept, reason = gain > (least if fewer else max(least, error)), f"{gain / error:+.1f} standard errors"
            reason += f" after {len(new)} s{', with less' if kept and fewer else ''}"
        # Where nothing is searched for there are many looks and hardly a gain to be found: chance would lead away.
        doubtful = gain < error or (not self.searching and gain < CLEAR_GAIN * base.mean())
        if kept and doubtful and self._trial != self._once:
            return False, f"{reason}{ONCE_MORE}"
        return kept, reason

    def _fewer(self, setting: Setting) -> bool:
        """Whether it has more of nothing."""
        return all(after <= before for after, before in zip(setting, self.accepted, strict=True))

    def _far_below(self) -> bool:
        """Whether the trial that was undone is no better without a doubt."""
        new, base = self._window, self.baseline
        return not len(new) or self._over(new) or new.mean() + Z_KEEP * self._error(new, base) < base.mean()

    def _unmeasured(self) -> bool | None:
        return False if self._trial == self._doubted else None  # again: it is the setting's own doing

    def _next(self, m: Measurement, trial: Trial) -> None:
        if trial.kept is None:
            self._give_up(m, trial.after)
            return
        self._given_up, self._doubted, self._likely = 0, None, []
        self._learn_noise(trial.rate, trial.deviation, trial.seconds)
        if not trial.kept:
            if self._far_below():
                self._worse.append(trial.after)
            undecided = trial.seconds >= LONGEST_LOOK and trial.rate > trial.rate_before
            self._once = trial.after if trial.reason.endswith(ONCE_MORE) else None
            if self._once:
                self.baseline.newest = -OLD
            elif self.searching and (len(self.baseline) >= ENOUGH or not undecided):
                self._tried.append(trial.after)
            self._streak = 0
            # A few seconds chosen for being good are enough to climb on from, not to turn others down by.
            self._confirmed = self._confirmed and len(self.baseline) >= ENOUGH
        else:
            self._once = None
            signs = [int(np.sign(after - before)) for before, after in zip(trial.before, trial.after, strict=True)]
            ways = sorted({*signs} - {0})
            towards = [[i for i in range(3) if signs[i]], ways] if len(ways) == 1 else []  # else it was a jump
            self._streak = self._streak + 1 if towards == self._towards else 1
            self._towards = towards
            gain = trial.rate / max(trial.rate_before, 1e-9) - 1
            self._confirmed = gain > CLEAR_GAIN
            found_slower = self._confirmed or not self.searching
            if not self.searching:
                self._search(COARSEST ** 0.5)
            if found_slower:
                self._tried.append(trial.before)
        self._fresh = Window()
        self._go_on(m)

    def _others_changed(self, window: Window) -> bool:
        """Whether other programs took more or less than while the accepted setting was measured."""
        return not self._beside(window.mean(4))

    def _give_up(self, m: Measurement, setting: Setting) -> None:
        """The accepted setting is measured again, and in a search then this one."""
        self._fresh, self.baseline.newest, self._once = Window(), -OLD, None
        self._doubted = setting
        self._given_up += 1
        if self._given_up >= GIVE_UPS:
            self._given_up, self._wait_until = 0, m.time + WAIT

    def _learn_noise(self, mean: float, deviation: float, seconds: int) -> None:
        """Moves what is known of a second's relative deviation towards that of a window."""
        if mean > 0 and seconds > 1:
            share = seconds / (seconds + 30)
            self._noise = math.sqrt((1 - share) * self._noise**2 + share * (deviation / mean) ** 2)

    def _error(self, a: Window, b: Window) -> float:
        """Standard error of the difference of two windows' mean rates; never 0.

        A window's variance is its own, moderated by what is known of the noise, as few seconds say little of it.
        """
        total = (DRIFT * max(a.mean(), b.mean(), 1e-6)) ** 2
        for window in (a, b):
            known = NOISE_WEIGHT * (self._noise * window.mean()) ** 2
            total += (known + window.squares()) / (NOISE_WEIGHT + len(window) - 1) / len(window)
        return math.sqrt(total)
