"""A trial's words for people."""

from __future__ import annotations

import pytest

from ga3c.tuning.measurement import Second, Window
from ga3c.tuning.trial import Decision, Reason, Trial


def window(rate: float, lag: float = 2.0, load: float = 0.0, seconds: int = 3) -> Window:
    return Window([Second(rate, lag, 0.0, 0.0, load, 1.0)] * seconds, 1.0)


@pytest.mark.parametrize(("decision", "reason", "brief", "explanation"), [
    (Decision.RETRY, Reason.FASTER, "4/1/1 rejected +25%", "faster: +25.0% in 3 s, to be tried once more"),
    (Decision.REJECTED, Reason.LAG_OVER_CEILING, "4/1/1 rejected +25%",
     "the policy lag is over its ceiling: 12.0 updates after 6.0"),
    (Decision.ABORTED, Reason.EVALUATION, "4/1/1 aborted", "an evaluation began"),
    (Decision.ABORTED, Reason.EXTERNAL_LOAD, "4/1/1 aborted",
     "other programs took more or less of the cores: 50% after 0%")])
def test_a_trial_says_what_became_of_it_and_why(
        decision: Decision, reason: Reason, brief: str, explanation: str) -> None:
    trial = Trial((2, 1, 1), (4, 1, 1), window(1000.0, 6.0), window(1250.0, 12.0, 0.5), decision, reason)
    assert (trial.brief(), trial.explanation()) == (brief, explanation)
