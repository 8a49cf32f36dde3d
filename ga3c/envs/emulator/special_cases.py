"""The special cases: games whose rules need more than a sum of digits, a count of lives and a few tests."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ga3c.envs.emulator.jit import kernel
from ga3c.envs.emulator.rules import VALUES

CASES: Final = (
    "", "keeps score", "adventure", "beam_rider", "blackjack", "demon_attack", "double_dunk", "enduro", "gravitar",
    "haunted_house", "journey_escape", "qbert", "riverraid", "star_gunner", "tennis", "time_pilot", "wizard_of_wor",
    "word_zapper")
(_, _KEEPS_SCORE, ADVENTURE, _BEAM_RIDER, _BLACKJACK, _DEMON_ATTACK, _DOUBLE_DUNK, _ENDURO, _GRAVITAR,
 _HAUNTED_HOUSE, _JOURNEY_ESCAPE, _QBERT, _RIVERRAID, _STAR_GUNNER, _TENNIS, _TIME_PILOT, _WIZARD_OF_WOR,
 _WORD_ZAPPER) = range(len(CASES))

_BCD: Final = VALUES[0]


@kernel
def special_score(machine: Any, case: int, score: int, over: bool) -> Any:
    """Returns the score in games where it is not always the sum of digits."""
    ram = machine.ram
    if over and (case == _KEEPS_SCORE or case == _QBERT):
        return machine.score
    if case == _DEMON_ATTACK and ram[0x01] == 0xAB and ram[0x03] == 0xCD and ram[0x05] == 0xEA:
        return 0  # the digits shown before the first game
    if case == _WORD_ZAPPER and ram[0x4F] == 0:
        return machine.score
    if case == _WIZARD_OF_WOR and score >= 800_000:
        return score - 800_000
    if case == _ENDURO and ram[0x2D] == 0:
        return 0
    return score


@kernel
def special_lives(machine: Any, case: int, lives: int) -> Any:
    """Returns the lives in games where counting is not enough. `machine.memory` may hold those of the frame before."""
    ram, memory = machine.ram, machine.memory
    if case == _BEAM_RIDER and lives == machine.lives - 1 and ram[0x0C] != 1:
        return machine.lives  # the console takes a life before the player has lost it
    if case == _GRAVITAR and ram[0x01] == 0:
        return 6
    if case == _QBERT:
        left = (ram[0x08] ^ 128) - 128
        lost = memory[0] - 1 == left
        memory[0] = left
        return machine.lives - lost
    if case == _STAR_GUNNER:
        if ram[0x07] == 5:
            machine.started = 1
        return lives if machine.started else 5
    if case == _TIME_PILOT:
        return lives if ram[0x00] & 15 == 2 else machine.lives
    if case == _WIZARD_OF_WOR:
        return machine.lives if ram[0x57] & 1 else lives
    return lives


@kernel
def special_end(machine: Any, case: int, over: bool, score: int) -> Any:
    """Returns whether the game is over in games where tests of bytes are not enough. Called before `special_lives`."""
    ram, memory = machine.ram, machine.memory
    if case == _BLACKJACK:
        return score >= 1000
    if case == _DOUBLE_DUNK:
        return ram[0x7E] == 0xE7 and max(_BCD[ram[0x76]], _BCD[ram[0x77]]) >= 24
    if case == _WORD_ZAPPER and ram[0x4F] == 0:
        return machine.over
    if case == _QBERT:
        return over | (ram[0x08] == 2 and memory[0] == -1)
    if case == _RIVERRAID:
        last, memory[0] = memory[0], ram[0x40]
        return last == 0x59 and ram[0x40] == 0x58
    if case == _TENNIS:
        mine, theirs = ram[0x47], ram[0x48]
        return mine == 7 or theirs == 7 or (mine >= 6 and score >= 2) or (theirs >= 6 and score <= -2)
    return over


@kernel
def special_reward(machine: Any, case: int, reward: int) -> Any:
    """Returns the reward in games where it is not always the gain in score."""
    if case == _TENNIS:
        points = np.int32(machine.ram[0x45]) - np.int32(machine.ram[0x46])
        if reward == 0:
            reward = points - machine.memory[0]
        machine.memory[0] = points
    if case == ADVENTURE:
        return 1 if machine.ram[0x39] == 0x12 else 0
    if case == _HAUNTED_HOUSE:
        return (-1 if reward else 0) + (100 if machine.ram[0x19] == 0x44 else 0)
    if case == _JOURNEY_ESCAPE and reward == 50_000:
        return 0
    if case == _WORD_ZAPPER:
        if machine.ram[0x4F] == 0:
            return machine.memory[0]
        machine.memory[0] = reward
    return reward
