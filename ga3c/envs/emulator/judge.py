"""Reads reward, lives and game over from a console's memory after each frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.emulator.controls import connect
from ga3c.envs.emulator.dump import Dump
from ga3c.envs.emulator.games import GAMES, RULES
from ga3c.envs.emulator.jit import kernel
from ga3c.envs.emulator.special_cases import ADVENTURE, CASES, special_end, special_lives, special_reward, special_score
from ga3c.envs.emulator.rules import DIFFERS, END_TESTS, ENDS, EQUAL, VALUES, tables

_SCORE, _LIVES, _ENDS, _REWARD, _CASE = tables(RULES, CASES)


@kernel
def judge(machine: Any, game: int) -> Any:
    """Returns the reward of the frame just emulated. Sets `machine.score`, `lives` and `over` to ale-py's values.

    `machine` is a record of MACHINE. After game over nothing changes, because ale-py then plays no frame.
    """
    if machine.over:
        return 0
    ram, case = machine.ram, _CASE[game, 0]
    over = is_over(ram, game)
    score = total(ram, _SCORE[game])
    lives = total(ram, _LIVES[game]) if _LIVES[game, 0, 2] else _CASE[game, 1]
    if case:
        over = special_end(machine, case, over, score)
        score = special_score(machine, case, score, over)
        lives = special_lives(machine, case, lives)
    reward = score - machine.score
    if case:
        reward = special_reward(machine, case, reward)
    if reward < 0:
        reward += _REWARD[game, 2]
    machine.score = score
    machine.lives = lives if case == ADVENTURE or not over else 0
    machine.over = over
    return min(max(reward, _REWARD[game, 0]), _REWARD[game, 1])


@kernel
def total(ram: NDArray[np.uint8], terms: NDArray[np.int32]) -> int:
    """Returns the sum of `terms`, (n, 4) int32 as in `rules.Tables.score`."""
    found = 0
    for place in range(len(terms)):
        if terms[place, 2] == 0:
            break
        found += terms[place, 2] * VALUES[terms[place, 1], ram[terms[place, 0]]] + terms[place, 3]
    return found


@kernel
def is_over(ram: NDArray[np.uint8], game: int) -> bool:
    """Returns whether all tests of at least one of the game's ends hold."""
    for way in range(ENDS):
        if _ENDS[game, way, 0, 3] == -1:
            break
        holds = True
        for place in range(END_TESTS):
            index, how, value, mask = _ENDS[game, way, place]
            if mask == -1:
                break
            found = ram[index] & mask
            holds &= found == value if how == EQUAL else found != value if how == DIFFERS else found >= value
        if holds:
            return True
    return False


def begin(machine: NDArray[np.void], game: str, dump: Dump) -> None:
    """Sets the state of the rules, the switches and the paddles as ale-py saved them, so that the game goes on exactly.

    `machine` is (1,) and has the RAM of the state in `dump`. A game may be over before it begins, as Demon Attack is
    in some modes; `lives` is then 0, except in Adventure.
    """
    rules = RULES[game]
    connect(machine, game, dump)
    machine["score"] = machine["over"] = machine["started"] = machine["memory"] = 0
    machine["lives"] = total(machine["ram"][0], _LIVES[GAMES[game]]) if rules.lives else rules.alive
    names = (rules.state or ("score over lives" if rules.lives else "score over")).split()
    for name, value in zip(names, dump.rules[-len(names):], strict=True):
        match name:
            case "score" | "over" | "lives" | "started":
                machine[name] = value
            case "-score":
                machine["score"] = -value
            case "memory":
                machine["memory"][0, 0] = value
            case _:
                assert name == "-", name
    if machine["over"] and rules.special != CASES[ADVENTURE]:
        machine["lives"] = 0
