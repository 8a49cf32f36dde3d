"""The default controller: steps grow while they raise the rate, and a trial ends as soon as its result is clear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from ga3c.tuning.comparison import (
    CLEAR_GAIN, FIRST_LOOK, LAST_LOOK, LEAST_GAIN, NOISE, compare, differ, learned)
from ga3c.tuning.controller import LOADED, Controller, State
from ga3c.tuning.measurement import Measurement, Setting, Window
from ga3c.tuning.trial import Decision, Reason, Trial, Verdict

COARSEST, FINEST = 2.0, 1.15  # factors of a search's first and last steps
REMEASURED = 5         # seconds of each measurement of the accepted setting in a search,
WATCHED = 10           # ... and outside a search
ENOUGH = 10            # seconds of the accepted setting, from which an undecided trial is rejected for good
BASELINE_SECONDS = 40  # newest seconds of the accepted setting that are kept
OLD = 30.0             # seconds after which the accepted setting is measured again before a trial
FULL = 0.04            # idle share of the cores below which more threads would bring nothing
PROBE_FIRST = 120.0    # seconds from the end of a search to the first trial of a neighbour. Each trial doubles them
PROBE_LAST = 480.0     # ... up to these: more trials cost more than they are likely to find
PROBE_FACTOR = 1.25    # factor of a step to a neighbour
WORSE_TRIALS = 2       # a neighbour that was clearly worse so often is tried after all others: once may be a hiccup
START_SHARE = 0.02     # share of the time outside a search in which agents may be starting
CHANGED = 0.1          # relative change of the rate that begins a search when a neighbour is due
CHANGED_AT_ONCE = 0.25  # ... and at once
LASTING = 60.0         # seconds after which a change of the external load begins a search
ABORTED, WAIT = 3, 120.0  # after that many aborted trials in a row, a search waits that many seconds

Sign = Annotated[int, Field(ge=-1, le=1)]
Move = tuple[Sign, Sign, Sign]
"""Which of N_A, N_P and N_T grow (1) or shrink (-1) in a step."""

_MORE_AGENTS: Move = (1, 0, 0)


@dataclass
class FastState(State):
    """The state of a `Fast` controller; see `State`."""

    searching: bool = True
    factor: Annotated[float, Field(gt=0)] = COARSEST    # of this search's steps
    towards: Move | None = None                         # the last step that was accepted
    streak: int = 0                                     # steps accepted in that direction in a row
    rejected: list[Setting] = field(default_factory=list)  # since the search began
    worse: list[Setting] = field(default_factory=list)  # rejected settings and neighbours that were clearly worse
    retry: Setting | None = None                        # a setting that was a little better, once
    ready: bool = False                                 # the accepted setting is measured well enough to compare with
    noise: Annotated[float, Field(ge=0)] = NOISE        # relative standard deviation of a second's rate
    probe_at: float = 0.0                               # when a neighbour is due
    probe_wait: float = PROBE_FIRST
    found_at: float = 0.0                               # when the last search ended
    found_rate: float = 0.0                             # the rate then; 0: another search is due
    found: list[tuple[float, Setting]] = field(default_factory=list)  # (external load, setting) of searches that ended
    likely: list[Setting] = field(default_factory=list)  # settings of `found` that this search tries first
    load_changed_at: float | None = None                # time of a change, until it has lasted
    aborted: Setting | None = None                      # the last trial, if it was aborted
    aborts: int = 0                                     # trials aborted in a row
    wait_until: float = 0.0


class Fast(Controller[FastState]):
    """A hill climber. A step multiplies N_A, N_P or N_T, or several of them, as two may be limits at once.

    Steps grow while they raise the rate, and shrink when none does. When the finest does not, the search is over. Then
    the rate is watched, and a neighbour is tried now and then. A changed rate or external load begins a new search.

    Args:
        fine: whether the start is likely near the best. The first search then begins with smaller steps.
    """

    def __init__(self, start: Setting, limits: Setting, max_lag: float | None, seed: int, fine: bool = False) -> None:
        super().__init__(FastState(seed, start, factor=COARSEST ** 0.5 if fine else COARSEST), limits, max_lag)

    @property
    def searching(self) -> bool:
        return self._state.searching

    @property
    def under_external_load(self) -> bool:
        return super().under_external_load or not self._state.found_rate

    def remeasure(self) -> None:
        """Also forgets which settings were worse, and the setting that was to be tried once more."""
        super().remeasure()
        self._state.worse = []
        self._state.retry = None

    def forget(self) -> None:
        """Forgets what searches found, and begins a search from the accepted setting."""
        self._search(COARSEST)
        self._state.found = []
        self._state.likely = []
        self._state.found_rate = 0.0

    # ------------------------------------------------------------------------- at the accepted setting

    def _watch(self, m: Measurement) -> None:
        """Collects seconds of the accepted setting. Once they are enough they become its baseline, and it goes on."""
        s = self._state
        if m.time - s.fresh.newest > OLD:
            s.fresh = Window()
        s.fresh.add(m)
        enough = REMEASURED if s.searching else WATCHED
        if len(s.fresh) < enough:
            return
        differs = bool(s.baseline) and (
            not self._same_load(s.fresh.mean.external_load) or differ(s.fresh, s.baseline, s.noise))
        if differs and len(s.fresh) < 2 * enough:
            return  # the next seconds show whether this is a hiccup or a change
        search = self._take_baseline(m, s.fresh.last(enough) if differs else s.fresh, differs)
        if s.load_changed_at is not None and m.time - s.load_changed_at >= LASTING and not s.searching:
            s.load_changed_at, search = None, self._changed()
        if search and m.time >= s.found_at + m.agent_start_seconds / START_SHARE:
            s.probe_wait = PROBE_FIRST
            self._search(COARSEST)
        self._go_on(m)

    def _take_baseline(self, m: Measurement, fresh: Window, differs: bool) -> bool:
        """Adds `fresh` to the baseline, or puts it in its place if it differs. Returns whether the rate jumped."""
        s, before, jumped = self._state, self._state.baseline, False
        if differs and not self._same_load(fresh.mean.external_load):
            s.load_changed_at = m.time
            s.aborted = None
        elif differs:
            jumped = abs(fresh.mean.rate - before.mean.rate) > CHANGED_AT_ONCE * before.mean.rate
        s.noise = learned(s.noise, fresh)
        s.baseline = fresh if differs else Window([*before.seconds, *fresh.seconds], m.time).last(BASELINE_SECONDS)
        s.fresh = Window()
        s.ready = True
        if self._over_ceiling(s.baseline) and not self._over_ceiling(before):
            s.rejected = []  # any setting below the ceiling is better now
        return jumped

    def _go_on(self, m: Measurement) -> None:
        """Begins the next trial, if it is time for one."""
        s = self._state
        if s.retry and self._bounded(s.retry) != s.retry:
            s.retry = None
        if not s.ready or m.time - s.baseline.newest > OLD:
            return
        due = m.time >= s.probe_at and s.load_changed_at is None
        over = self._over_ceiling(s.baseline) and m.time >= s.found_at + PROBE_FIRST
        if not s.searching and not s.retry and (over or (due and self._changed())):
            self._search(COARSEST)
        if s.retry:
            self._begin(m, s.retry)
        elif s.searching and m.time >= s.wait_until:
            self._try_step(m)
        elif not s.searching and due:
            self._try_neighbour(m)

    def _try_neighbour(self, m: Measurement) -> None:
        s = self._state
        fewer = self._step((-1, 0, 0), PROBE_FACTOR)
        neighbours = {fewer, *self._steps(PROBE_FACTOR)} - {s.accepted}
        candidates = sorted({setting for setting in neighbours if s.worse.count(setting) < WORSE_TRIALS} or neighbours)
        if fewer in candidates and self._random().random() < 0.5:
            candidates = [fewer]  # on a plateau only memory can be gained
        if candidates:
            self._begin(m, candidates[self._random().integers(len(candidates))])

    def _schedule(self, m: Measurement) -> None:
        """Sets when the next neighbour is due: later where agents take long to start."""
        s = self._state
        s.probe_at = m.time + max(s.probe_wait, m.agent_start_seconds / START_SHARE)
        s.probe_wait = min(2 * s.probe_wait, PROBE_LAST)

    # ------------------------------------------------------------------------- a search

    def _search(self, factor: float) -> None:
        s = self._state
        s.searching = True
        s.factor = factor
        s.streak = 0
        s.rejected = []
        s.worse = []
        s.retry = None
        s.load_changed_at = None
        s.aborts = 0
        s.wait_until = 0.0
        s.likely = [setting for load, setting in s.found if self._same_load(load)]

    def _try_step(self, m: Measurement) -> None:
        """Begins the most promising step. If there is none, ends the search."""
        s = self._state
        while s.factor >= FINEST:
            for candidate in [*map(self._bounded, s.likely), *self._steps(s.factor)]:
                if not self._already_decided(candidate):
                    self._begin(m, candidate)
                    return
            s.factor = s.factor ** 0.5
            s.streak = 0
        s.searching = False
        s.found_rate = 0.0
        s.found_at = m.time
        self._schedule(m)
        if s.load_changed_at is None:  # else it may be the best only under the old load
            s.found_rate, load = s.baseline.mean.rate, s.baseline.mean.external_load
            s.found = [*((before, setting) for before, setting in s.found if not self._same_load(before)),
                       (load, s.accepted)]

    def _same_load(self, load: float) -> bool:
        """Returns whether `load` is about that of the time when the accepted setting was measured."""
        return abs(self._state.baseline.mean.external_load - load) <= LOADED

    def _changed(self) -> bool:
        """Returns whether the rate has changed since the last search, or other programs have left cores.

        The rate may not show the latter.
        """
        s = self._state
        left = bool(s.found) and s.found[-1][0] - s.baseline.mean.external_load > LOADED
        return left or abs(s.baseline.mean.rate - s.found_rate) > CHANGED * s.found_rate

    def _steps(self, factor: float) -> Iterator[Setting]:
        """Yields the settings one step away, the most promising first.

        Over the lag ceiling that is as few agents as it allows. Else it is the direction of the last accepted step,
        first by two steps at once if it was taken twice. Then come all moves.
        """
        s = self._state
        if self._over_ceiling(s.baseline):
            yield self._bounded((min(s.accepted[0] - 1, self._agents_at_ceiling()), *s.accepted[1:]))
        elif s.towards:
            if s.streak > 1:
                yield self._step(s.towards, factor * factor)
            yield from self._towards(s.towards, factor)
        for move in self._moves():
            yield from self._towards(move, factor)

    def _moves(self) -> list[Move]:
        """Returns all moves, the most promising first."""
        mean = self._state.baseline.mean
        threads: list[Move] = [(0, 1, 0), (0, 0, 1)]
        if mean.training_queue > mean.prediction_queue:
            threads.reverse()
        fewer: list[Move] = [(0, -move[1], -move[2]) for move in threads]
        # If most agents wait for threads, more agents do not help.
        agents_first = mean.training_queue + mean.prediction_queue <= 0.5 * self.accepted[0]
        moves = [_MORE_AGENTS, *threads] if agents_first else [*threads, _MORE_AGENTS]
        return [*moves, (-1, 0, 0), *([(0, 1, 1), (1, 1, 1)] if self._state.searching else []), *fewer]

    def _towards(self, move: Move, factor: float) -> Iterator[Setting]:
        """Yields the step of a move. Near the lag ceiling more agents come in ever smaller steps, too."""
        n_a, n_p, n_t = self.accepted
        step = self._step(move, factor)
        if move != _MORE_AGENTS or self._agents_at_ceiling() >= n_a * max(FINEST, 1 + 1 / n_a) ** 2:
            yield step
            return
        while step[0] > n_a + max(1, LEAST_GAIN * n_a):
            yield step
            step = self._bounded(((n_a + step[0] + 1) // 2, n_p, n_t))
        yield step
        yield self._bounded((n_a + 1, n_p, n_t // 2))  # fewer threads make less lag
        yield self._bounded((n_a + 1, n_p // 2, n_t))

    def _step(self, move: Move, factor: float) -> Setting:
        """Returns the accepted setting changed by a factor, or by one if that is more. The lag ceiling limits agents.

        Returns the accepted setting itself if the move adds threads, but the run itself keeps all cores busy.
        """
        s = self._state
        if max(move[1:]) > 0 and s.baseline.mean.external_load <= LOADED and s.baseline.mean.idle < FULL:
            return s.accepted
        setting = [round(count * factor ** sign) for count, sign in zip(s.accepted, move, strict=True)]
        setting = [old + sign if count == old else count
                   for count, old, sign in zip(setting, s.accepted, move, strict=True)]
        setting[0] = min(setting[0], max(s.accepted[0] + 1, self._agents_at_ceiling()))
        return self._bounded(setting)

    def _agents_at_ceiling(self) -> int:
        """Returns how many agents would bring the lag to its ceiling, if it is proportional to them."""
        lag = self._state.baseline.mean.lag
        return int(self.accepted[0] * self._max_lag / lag) if self._max_lag and lag > 0 else 10**9

    def _already_decided(self, candidate: Setting) -> bool:
        """Returns whether `candidate` is the accepted setting or was rejected.

        Numbers of threads also count as rejected if they were rejected with about as many agents.
        """
        s = self._state
        if candidate[1:] == s.accepted[1:]:
            return candidate in (s.accepted, *s.rejected)
        near = self._agents_at_ceiling() < candidate[0] + 2  # the one agent more or fewer may be why it was rejected
        return any(candidate[1:] == rejected[1:] and 2 / 3 < candidate[0] / rejected[0] < 3 / 2
                   and not (near and abs(candidate[0] - rejected[0]) == 1) for rejected in s.rejected)

    # ------------------------------------------------------------------------- during and after a trial

    def _judge(self) -> Verdict | None:
        s = self._state
        assert s.trial is not None
        if len(s.window) < FIRST_LOOK:
            return None
        # Outside a search there are many trials and few gains to find: an unclear gain is likely chance.
        grown = sum(after > before for after, before in zip(s.trial, s.accepted, strict=True))
        verdict = self._judge_lag() or compare(s.window, s.baseline, s.noise, grown, doubting=not s.searching,
                                               agents_ratio=s.trial[0] / s.accepted[0])
        if verdict and verdict[0] is Decision.RETRY and s.trial == s.retry:
            verdict = Decision.ACCEPTED, verdict[1]
        recent = s.window.last(FIRST_LOOK) if verdict else s.window  # other programs may have come or gone just now
        if not self._same_load(recent.mean.external_load) and self._without_measurement() is Decision.ABORTED:
            return Decision.ABORTED, Reason.EXTERNAL_LOAD
        return verdict

    def _without_measurement(self) -> Decision:
        """Returns REJECTED the second time in a row, as the setting itself then causes the load."""
        return Decision.REJECTED if self._state.trial == self._state.aborted else Decision.ABORTED

    def _after(self, m: Measurement, trial: Trial) -> None:
        s = self._state
        s.fresh = Window()
        s.retry = trial.after if trial.decision is Decision.RETRY else None
        if not s.searching and trial.decision in (Decision.REJECTED, Decision.ABORTED):
            self._schedule(m)
        if trial.decision is Decision.ABORTED:
            s.ready = False
            s.aborted = trial.after
            s.aborts += 1
            if s.aborts == ABORTED:
                s.aborts = 0
                s.wait_until = m.time + WAIT
            return
        s.aborts = 0
        s.aborted = None
        s.likely = []
        s.noise = learned(s.noise, trial.window)
        if trial.decision is Decision.ACCEPTED:
            self._follow(trial)
        else:
            # A few seconds that were good suffice to climb on from, but not to reject others by.
            s.streak = 0
            s.ready = s.ready and not s.retry and len(s.baseline) >= ENOUGH
        if trial.decision is Decision.REJECTED:
            undecided = len(trial.window) >= LAST_LOOK and trial.window.mean.rate > s.baseline.mean.rate
            if len(s.baseline) >= ENOUGH or not undecided or not s.searching:
                s.rejected.append(trial.after)
            slower = trial.window.mean.rate < s.baseline.mean.rate
            if not trial.window or self._over_ceiling(trial.window) or (
                    slower and differ(trial.window, s.baseline, s.noise)):
                s.worse.append(trial.after)
        self._go_on(m)

    def _follow(self, trial: Trial) -> None:
        """Makes the next steps go on in the direction of an accepted trial."""
        s = self._state
        signs = [(after > before) - (after < before) for before, after in zip(trial.before, trial.after, strict=True)]
        towards = (signs[0], signs[1], signs[2]) if len({*signs} - {0}) == 1 else None  # else it was a jump
        s.streak = s.streak + 1 if towards == s.towards else 1
        s.towards = towards
        s.ready = trial.window.mean.rate > (1 + CLEAR_GAIN) * trial.baseline.mean.rate
        if not s.searching:
            self._search(COARSEST ** 0.5)
            s.rejected = [trial.before]
        elif s.ready:
            s.rejected.append(trial.before)
