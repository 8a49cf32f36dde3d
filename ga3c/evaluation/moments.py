"""Plays a policy one agent step at a time, and draws the frames with the policy and the value beside them.

Episode i of a seed is the one that `ga3c-eval` plays: the same environment, no-ops and sampled actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ga3c.algorithms.acting import Acting, Outputs
    from ga3c.envs.watched import Watched
    from ga3c.evaluation.episodes import Predict

_SIDE = 190          # width in pixels of the panel beside the frame
_WIDTH = 1200        # a frame is enlarged to at most this width in pixels
_VALUES = 150        # agent steps that the curve of values shows


class Moment(NamedTuple):
    """One agent step: the frames that it showed, and the model's outputs before it. `ended`: it was the last one."""

    frames: list[NDArray[np.uint8]]  # (h, w, 3) each
    outputs: Outputs                 # for the observation before it, by name
    action: int
    episode: int
    score: float
    length: int
    lives: int | None
    ended: bool


def moments(predict: Predict, acting: Acting, watched: Watched, seed: int, episodes: int,
            greedy: bool) -> Iterator[Moment]:
    """Plays the episodes of `seed`, one agent step at a time."""
    from ga3c.evaluation.episodes import seeds_of
    for episode in range(episodes):
        environment_seed, rng = seeds_of(seed, episode)
        watched.reset(environment_seed)
        frames = watched.frames
        score = 0.0
        length = 0
        ended = False
        while not ended:
            outputs = predict(watched.observation)
            action = acting.best(outputs) if greedy else acting.choose(
                outputs, rng, np.full(1, acting.in_evaluation))
            transition = watched.step(action)
            score += float(transition.scored[0])
            length += 1
            ended = bool(transition.score_ended[0])
            frames = frames + (watched.frames[:-1] if ended and len(watched.frames) > 1 else watched.frames)
            yield Moment(frames, {name: output[0] for name, output in outputs.items()}, int(action[0]), episode, score,
                         length, watched.lives, ended)
            frames = []


class Painter:
    """A painter of enlarged frames. With `names` of the actions, it draws what the model says beside them.

    These are bars for the output with a number per action, as the policy, and a curve of the value: of the output
    "value", else of the largest of these numbers.
    """

    def __init__(self, zoom: int | None, names: Sequence[str] | None) -> None:
        self._zoom = zoom
        self._names = names
        self._values: deque[float] = deque(maxlen=_VALUES)

    def paint(self, moment: Moment) -> list[NDArray[np.uint8]]:
        """Returns the moment's frames as painted, RGB uint8, all of one size with even sides."""
        numbers = self._numbers(moment)
        self._values.append(float(moment.outputs.get("value", max(numbers, default=0.0))))
        zoom = self._zoom or max(1, min(round(400 / moment.frames[0].shape[0]), _WIDTH // moment.frames[0].shape[1]))
        frames = [frame.repeat(zoom, axis=0).repeat(zoom, axis=1) for frame in moment.frames]
        if self._names is not None:
            side = self._side(moment, max(260, frames[0].shape[0]))
            gap = ((0, side.shape[0] - frames[0].shape[0]), (0, 0), (0, 0))
            frames = [np.concatenate([np.pad(frame, gap), side], axis=1) for frame in frames]
        height, width = frames[0].shape[:2]
        return [np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0))) for frame in frames]

    def _numbers(self, moment: Moment) -> list[float]:
        """Returns the first output with a number per action; [] if there is none."""
        per_action = (output.tolist() for output in moment.outputs.values() if output.ndim == 1)
        return next(per_action, [])

    def _side(self, moment: Moment, height: int) -> NDArray[np.uint8]:
        from PIL import Image, ImageDraw, ImageFont
        assert self._names is not None
        image = Image.new("RGB", (_SIDE, height), (24, 26, 32))
        draw = ImageDraw.Draw(image)
        font = ImageFont.load_default(13)
        facts = [("score", f"{moment.score:,.6g}"), ("step", f"{moment.length:,}"),
                 ("value", f"{self._values[-1]:+.2f}")]
        if moment.lives:
            facts.insert(1, ("lives", str(moment.lives)))
        y = 10
        for name, value in facts:
            draw.text((12, y), name, (150, 155, 165), font)
            draw.text((_SIDE - 12, y), value, (255, 255, 255), font, anchor="ra")
            y += 19
        low = min(self._values)
        span = max(max(self._values) - low, 1e-6)
        points = [(12 + (_SIDE - 24) * i / (_VALUES - 1), y + 40 - 36 * (value - low) / span)
                  for i, value in enumerate(self._values)]
        if len(points) > 1:
            draw.line(points, (86, 180, 233), 2)
        y += 52
        row = max(6, min(18, (height - y - 8) // len(self._names)))
        small = ImageFont.load_default(max(6, min(12, row - 2)))
        numbers = self._numbers(moment)
        if "policy" not in moment.outputs and numbers:  # of any size: the bars show the differences
            least = min(numbers)
            spread = max(max(numbers) - least, 1e-6)
            numbers = [(number - least) / spread for number in numbers]
        for action, (name, share) in enumerate(zip(self._names, numbers, strict=False)):
            chosen = action == moment.action
            draw.text((12, y), name.lower(), (255, 255, 255) if chosen else (150, 155, 165), small)
            length = round((_SIDE - 116) * share)
            draw.rectangle((104, y + 2, 104 + length, y + row - 4), (230, 159, 0) if chosen else (90, 95, 105))
            y += row
        return np.asarray(image)
