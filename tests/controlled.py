"""Controllers on machines that answer at once: what their tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from hypothesis import strategies as st

from ga3c.tuning.controller import Controller
from ga3c.tuning.fast import Fast
from ga3c.tuning.measurement import Measurement, Setting
from ga3c.tuning.paper import Paper
from ga3c.tuning.trial import Decision, Trial

counts = st.tuples(st.integers(1, 300), st.integers(1, 9), st.integers(1, 9))
seconds = st.builds(Measurement, st.just(0.0), st.floats(0, 1e5), st.floats(0, 50), st.floats(0, 300),
                    st.floats(0, 300), st.sampled_from([False] * 9 + [True]),
                    st.sampled_from([0.0] * 7 + [0.05, 0.5, 1.0]), st.sampled_from([0.0, 0.03, 1.0]),
                    st.sampled_from([0.0, 0.3, 20.0]))
# Of what may come nothing would be found out: a number stands for so many seconds of a real machine.
courses = st.lists(seconds | st.integers(1, 90), max_size=25)
processes: dict[str, Callable[..., Controller]] = {
    "fast": Fast, "paper": lambda *given: Paper(*given, window=3.0)}
controllers = st.builds(
    lambda kind, *given: processes[kind](*given), st.sampled_from(sorted(processes)), counts, counts,
    st.none() | st.floats(0.5, 30), st.integers(0, 99))


def told(controller: Controller, course: list[Measurement | int], first: int = 0) -> Iterator[Measurement]:
    """What comes second by second, on `hill` as fast as the controller's setting is at that moment."""
    rng, time = np.random.default_rng(0), first
    for part in course:
        for second in [None] * part if isinstance(part, int) else [part]:
            if second is None:
                rate = hill(controller.setting) * (1 + 0.03 * rng.standard_normal())
                second = Measurement(0.0, rate, 1.0, 0.0, 0.0, False)
            yield second._replace(time=float(time))
            time += 1


def play(controller: Controller, rate: Callable[[Setting, int], float], seconds: int, noise: float = 0.05,
         lag: Callable[[Setting], float] = lambda setting: 1.0, first: int = 0) -> list[Trial]:
    """A machine that answers at once."""
    rng, trials = np.random.default_rng(0), []
    for second in range(first, first + seconds):
        setting = controller.setting
        trial = controller.observe(Measurement(
            second + 1.0, rate(setting, second) * (1 + noise * rng.standard_normal()), lag(setting), 0.0, 0.0, False))
        trials += [trial] if trial else []
    return trials


def accepted(trial: Trial) -> bool:
    return trial.decision is Decision.ACCEPTED


def hill(setting: Setting, second: int = 0) -> float:
    """Two cores: best at 12 agents, and more threads cost a little."""
    n_a, n_p, n_t = setting
    return 3000 * min(n_a / 12, (12 / n_a) ** 0.3) * 0.97 ** (n_p + n_t - 2)


def peaked(setting: Setting, best: int) -> float:
    """Two cores beside some load: so many agents are best."""
    return 3000 * min(setting[0] / best, (best / setting[0]) ** 0.5) * 0.97 ** (setting[1] + setting[2] - 2)


def large(setting: Setting, second: int = 0) -> float:
    """A large machine: every kind of worker is a limit."""
    n_a, n_p, n_t = setting
    parts = np.array([400.0 * min(n_a, 160), 12_000.0 * min(n_p, 6), 16_000.0 * min(n_t, 4)])
    return float((parts ** -8).sum() ** (-1 / 8)) * (1 - n_a / 4000)


def crowded(setting: Setting) -> float:
    return 0.6 * setting[0]
