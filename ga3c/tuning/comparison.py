"""A sequential test of whether a trial is faster than the accepted setting, in as few seconds as needed."""

from __future__ import annotations

import math

from ga3c.tuning.measurement import Window
from ga3c.tuning.trial import Decision, Reason, Verdict

FIRST_LOOK = 3         # seconds before a trial is first judged: fewer do not show the noise
SECOND_LOOK = 10       # ... before an uneven trial, or one that raises several counts, is rejected: a hiccup costs more
LAST_LOOK = 20         # seconds after which a trial is decided: a gain not seen by then is hardly worth more time
UNEVEN = 3.0           # a trial is uneven if its seconds deviate by more than this many times the known noise
ACCEPT = 2.5           # standard errors that a gain needs: a wrong change costs until a later trial corrects it
REJECT = 1.0           # standard errors below the least gain: a missed gain is found by a later trial
LEAST_GAIN = 0.02      # relative gain; a smaller one is not worth a change
LAG_PRICE = 0.15       # least gain of twice the agents: they double the policy lag, and each step teaches less
CLEAR_GAIN = 0.25      # relative gain; a larger one needs no second measurement
NOISE = 0.1            # relative standard deviation of a second's rate, before it is measured
NOISE_WEIGHT = 4.0     # weight of the known noise in seconds: a short window says little about its own noise
LEARNING = 30.0        # seconds of a window that weigh as much as the noise known before
DRIFT = 0.01           # relative standard deviation between windows that no number of seconds averages away


def compare(new: Window, base: Window, noise: float, grown: int, doubting: bool, agents_ratio: float = 1.0
            ) -> Verdict | None:
    """Returns the verdict on a trial, or None if it needs more seconds.

    A gain has to exceed the least one that is worth a change. One that also exceeds `ACCEPT` standard errors is
    accepted; one that is `REJECT` standard errors below the least is rejected. After `LAST_LOOK` seconds the likelier
    of the two is taken.

    Args:
        new: the seconds of the trial, at least one.
        base: the seconds of the accepted setting.
        noise: relative standard deviation of a second's rate, as far as known.
        grown: how many of N_A, N_P and N_T the trial has raised.
        doubting: whether a gain that is not clear must be measured a second time.
        agents_ratio: N_A of the trial, divided by the accepted N_A.
    """
    seconds, before = len(new), base.mean.rate
    gain, error = new.mean.rate - before, standard_error(new, base, noise)
    # Fewer workers take less memory and cause less lag, so it is enough that they are not slower. Otherwise chance
    # would add workers.
    least = before * max(LEAST_GAIN, LAG_PRICE * math.log2(agents_ratio)) if grown else 0.0
    patience = FIRST_LOOK if grown <= 1 and new.deviation() <= UNEVEN * noise * new.mean.rate else SECOND_LOOK
    rejected = Decision.REJECTED, Reason.NO_GAIN if grown else Reason.NOT_FASTER
    if gain > max(least, ACCEPT * error):
        pass  # clearly worth it
    elif gain + REJECT * error < least and seconds >= patience:
        return rejected
    elif seconds < LAST_LOOK:
        return None
    elif gain <= (max(least, error) if grown else 0.0):
        return rejected
    doubtful = gain < error or (doubting and gain < CLEAR_GAIN * before)
    return Decision.RETRY if doubtful else Decision.ACCEPTED, Reason.FASTER if gain > error else Reason.NOT_SLOWER


def differ(a: Window, b: Window, noise: float) -> bool:
    """Returns whether the rates of two windows differ by more than noise explains."""
    return abs(a.mean.rate - b.mean.rate) > ACCEPT * standard_error(a, b, noise)


def standard_error(a: Window, b: Window, noise: float) -> float:
    """Returns the standard error of the difference of two windows' mean rates; never 0."""
    total = (DRIFT * max(a.mean.rate, b.mean.rate, 1e-6)) ** 2
    for window in (a, b):
        known = NOISE_WEIGHT * (noise * window.mean.rate) ** 2
        total += (known + window.squares()) / (NOISE_WEIGHT + len(window) - 1) / len(window)
    return math.sqrt(total)


def learned(noise: float, window: Window) -> float:
    """Returns the known noise, moved towards the noise of a window."""
    rate, seconds = window.mean.rate, len(window)
    if rate <= 0 or seconds < 2:
        return noise
    share = seconds / (seconds + LEARNING)
    return math.sqrt((1 - share) * noise**2 + share * (window.deviation() / rate) ** 2)
