"""A sequential test: whether a trial is faster than the accepted setting, and how many seconds it takes to say so."""

from __future__ import annotations

import math

from ga3c.tuning.measurement import Window
from ga3c.tuning.trial import Decision, Reason, Verdict

FIRST_LOOK = 3         # seconds before the first look at a trial: fewer say nothing of the noise
SECOND_LOOK = 10       # ... before a rejection where a hiccup costs more: it is uneven, or of several kinds of workers
LAST_LOOK = 20         # seconds after which a trial is decided: a gain that is not seen by then is hardly worth more
UNEVEN = 3.0           # a trial is uneven if its seconds differ by so many times the known noise
ACCEPT = 2.5           # standard errors that a gain needs: a wrong change costs until it is found out
REJECT = 1.0           # standard errors below the least gain: a missed gain is found by a later trial
LEAST_GAIN = 0.02      # a smaller share is not worth a change
LAG_PRICE = 0.15       # least gain of twice the agents: they make twice the policy lag, and each step teaches less
CLEAR_GAIN = 0.25      # a larger share needs no second measurement
NOISE = 0.1            # relative standard deviation of a second's rate, before it is measured
NOISE_WEIGHT = 4.0     # seconds that the known noise weighs beside a window's own: few seconds say little of it
LEARNING = 30.0        # seconds of a window that weigh as much as all that was known
DRIFT = 0.01           # relative standard deviation between windows that no number of seconds averages away


def compare(new: Window, base: Window, noise: float, grown: int, doubting: bool, agents: float = 1.0
            ) -> Verdict | None:
    """The verdict on a trial, None if it needs more seconds.

    Args:
        new: the seconds of the trial, at least one.
        base: the seconds of the accepted setting.
        noise: relative standard deviation of a second's rate, as far as known.
        grown: how many of N_A, N_P and N_T the trial has raised.
        doubting: a gain that is not clear is not accepted the first time.
        agents: N_A of the trial, divided by the accepted N_A.
    """
    seconds, before = len(new), base.mean.rate
    gain, error = new.mean.rate - before, standard_error(new, base, noise)
    # Fewer workers take less memory and make less lag: not to be slower is enough, or chance leads ever upwards.
    least = before * max(LEAST_GAIN, LAG_PRICE * math.log2(agents)) if grown else 0.0
    hurried = grown <= 1 and new.deviation() <= UNEVEN * noise * new.mean.rate
    rejected = Decision.REJECTED, Reason.NO_GAIN if grown else Reason.NOT_FASTER
    if gain <= max(least, ACCEPT * error):
        if gain + REJECT * error < least and seconds >= (FIRST_LOOK if hurried else SECOND_LOOK):
            return rejected
        if seconds < LAST_LOOK:
            return None
        if gain <= (max(least, error) if grown else 0.0):
            return rejected
    doubtful = gain < error or (doubting and gain < CLEAR_GAIN * before)
    return Decision.RETRY if doubtful else Decision.ACCEPTED, Reason.FASTER if gain > error else Reason.NOT_SLOWER


def differ(a: Window, b: Window, noise: float) -> bool:
    """Whether the rates of two windows differ by more than noise explains."""
    return abs(a.mean.rate - b.mean.rate) > ACCEPT * standard_error(a, b, noise)


def standard_error(a: Window, b: Window, noise: float) -> float:
    """Of the difference of two windows' mean rates; never 0."""
    total = (DRIFT * max(a.mean.rate, b.mean.rate, 1e-6)) ** 2
    for window in (a, b):
        known = NOISE_WEIGHT * (noise * window.mean.rate) ** 2
        total += (known + window.squares()) / (NOISE_WEIGHT + len(window) - 1) / len(window)
    return math.sqrt(total)


def learned(noise: float, window: Window) -> float:
    """The known noise, moved towards that of a window."""
    rate, seconds = window.mean.rate, len(window)
    if rate <= 0 or seconds < 2:
        return noise
    share = seconds / (seconds + LEARNING)
    return math.sqrt((1 - share) * noise**2 + share * (window.deviation() / rate) ** 2)
