"""The forms of rules that give reward, lives and game over from a console's memory. `games.py` fills them in.

A rule reads the 128 bytes of RAM after each frame. The score is a sum of digits; the reward is the gain in score.
Where that is not enough, `special` names one of the cases in `special_cases.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BYTES = np.arange(256, dtype=np.int32)
_LOW, _HIGH = _BYTES & 15, _BYTES >> 4


def _blank(digits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the values of digits where 10 is drawn as a blank and counts as 0."""
    return np.where(digits == 10, 0, digits)


# The value of a byte, by kind. Digits above 9 count as they are, as in ale-py.
_VALUES: Final = {
    "bcd": _HIGH * 10 + _LOW,
    "byte": _BYTES,
    "low": _LOW,
    "high": _HIGH,
    "low 3": _BYTES & 7,  # the lowest three bits
    "low 2": _BYTES & 3,
    "low bit": _BYTES & 1,
    "high 3": _HIGH & 7,
    "bcd, blank": _blank(_HIGH) * 10 + _blank(_LOW),
    "low, blank": _blank(_LOW),
    "high, blank": _blank(_HIGH),
    "signed": (_BYTES ^ 128) - 128,
    "boxing": np.where(_BYTES == 0xC0, 100, _HIGH * 10 + _LOW),
    "bits 3": (_BYTES & 1) + (_BYTES >> 1 & 1) + (_BYTES >> 2 & 1),  # how many of the lowest three are set
    "pitfall": np.where(_HIGH == 10, 3, np.where(_HIGH == 8, 2, 1)),
    "riverraid": np.where(_BYTES == 0x58, 4, np.where(_BYTES == 0x59, 1, _BYTES // 8 + 1)),
    "eighth, blank": np.where(_BYTES == 128, 0, _BYTES // 8),
    "eighth": np.where((_BYTES % 8 == 0) & (_BYTES < 80), _BYTES // 8, 0),  # of 8, 16, ... 72, else 0
}
VALUES: Final[NDArray[np.int32]] = np.array(list(_VALUES.values()), np.int32)
_ROW: Final = {name: row for row, name in enumerate(_VALUES)}

SCORE_TERMS, LIVES_TERMS, ENDS, END_TESTS = 6, 2, 7, 4
EQUAL, DIFFERS, AT_LEAST = range(3)


class Term(NamedTuple):
    """A byte of RAM as part of a sum: `unit` times its value as `digits`, plus `plus`."""

    address: int
    digits: str
    unit: int = 1
    plus: int = 0


class Test(NamedTuple):
    """A test of a masked byte of RAM: it is equal to, differs from or is at least `value`."""

    address: int
    how: int
    value: int
    mask: int = 255


class Rules(NamedTuple):
    """The rules of one game.

    score: the terms of the score. lives: the terms of the lives; empty if ale-py counts none, which shows `alive`.
    ends: the game is over when all tests of one of these hold. lowest, highest: the bounds of a reward. wrap: added to
    a reward below 0, for a score that starts again from 0. special: a case in `special_cases.py`. state: the names of
    the last numbers of ale-py's saved state, see `judge.begin`; by default "score over lives" or "score over".
    """

    score: tuple[Term, ...] = ()
    lives: tuple[Term, ...] = ()
    ends: tuple[tuple[Test, ...], ...] = ()
    alive: int = 0
    lowest: int = -2**31
    highest: int = 2**31 - 1
    wrap: int = 0
    special: str = ""
    state: str = ""


def count(address: int, kind: str, plus: int = 0) -> tuple[Term, ...]:
    """Returns the terms of lives kept in one byte. `plus` adds the lives that the byte does not count."""
    return (Term(address, kind, 1, plus),)


def digits(addresses: str, kind: str = "bcd", unit: int = 1) -> tuple[Term, ...]:
    """Returns the terms of a number kept in several bytes: hexadecimal addresses, highest digits first.

    `unit` is the worth of a 1 in the last byte.
    """
    factor = 100 if kind.startswith("bcd") else 10
    listed = [int(address, 16) for address in addresses.split()]
    return tuple(Term(address, kind, unit * factor ** power)
                 for address, power in zip(listed, range(len(listed) - 1, -1, -1), strict=True))


def versus(mine: int, theirs: int, kind: str = "bcd") -> tuple[Term, ...]:
    """Returns the terms of a match's score: my points minus theirs."""
    return Term(mine, kind), Term(theirs, kind, -1)


def when(*tests: Test) -> tuple[tuple[Test, ...], ...]:
    """Returns one end: the game is over when all `tests` hold. Add two such ends for one or the other."""
    return (tests,)


def equal(address: int, value: int, mask: int = 255) -> Test:
    return Test(address, EQUAL, value, mask)


def differs(address: int, value: int, mask: int = 255) -> Test:
    return Test(address, DIFFERS, value, mask)


def either(address: int, *values: int) -> tuple[tuple[Test, ...], ...]:
    """Returns ends: the game is over when a byte has one of `values`."""
    return tuple((equal(address, value),) for value in values)


def at_least(address: int, value: int, mask: int = 255) -> Test:
    return Test(address, AT_LEAST, value, mask)


class Tables(NamedTuple):
    """The rules of all games as the kernels read them: int32 arrays whose first axis is the game's number.

    score: (games, SCORE_TERMS, 4): index in RAM, row of VALUES, unit (0: no more), plus.
    lives: (games, LIVES_TERMS, 4), the same.
    ends: (games, ENDS, END_TESTS, 4): index in RAM, how, value, mask; a mask of -1 ends the list.
    reward: (games, 3): lowest, highest, wrap. case: (games, 2): special case, lives shown where none are counted.
    """

    score: NDArray[np.int32]
    lives: NDArray[np.int32]
    ends: NDArray[np.int32]
    reward: NDArray[np.int32]
    case: NDArray[np.int32]


def tables(games: Mapping[str, Rules], cases: Sequence[str]) -> Tables:
    """Builds the tables of `games`. A special case is its index in `cases`. Raises ValueError if it is not there."""
    count_of = len(games)
    made = Tables(np.zeros((count_of, SCORE_TERMS, 4), np.int32), np.zeros((count_of, LIVES_TERMS, 4), np.int32),
                  np.full((count_of, ENDS, END_TESTS, 4), -1, np.int32), np.zeros((count_of, 3), np.int32),
                  np.zeros((count_of, 2), np.int32))
    for game, rules in enumerate(games.values()):
        for table, terms in ((made.score, rules.score), (made.lives, rules.lives)):
            for place, term in enumerate(terms):
                table[game, place] = term.address & 127, _ROW[term.digits], term.unit, term.plus
        for way, end in enumerate(rules.ends):
            for place, test in enumerate(end):
                made.ends[game, way, place] = test.address & 127, test.how, test.value, test.mask
        made.reward[game] = rules.lowest, rules.highest, rules.wrap
        made.case[game] = cases.index(rules.special), rules.alive
    return made
