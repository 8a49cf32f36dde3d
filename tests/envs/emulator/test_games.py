"""The emulator's rules give the reward, lives and end of game that ale-py gives for the same memory."""

from __future__ import annotations

import ale_py
import numpy as np
import pytest
from referees import Referees, play, stand_still

from ga3c.envs.emulator.games import RULES


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


@pytest.mark.parametrize("game", RULES)
def test_rules_give_what_ale_py_gives(game: str) -> None:
    referees, rng = Referees(game, seed=3), np.random.default_rng(3)
    play(referees, rng, 120, poked=False)
    play(referees, rng, 80, poked=True)
    stand_still(referees, rng, 150)
    assert referees.different == 0
