"""Trained policies, loaded from a run, from one of its checkpoints, from a policy file, or by name.

A policy file holds all that playing needs. It has the network's weights as compressed arrays, the settings and progress
of their training as JSON, and a sha256 of both. It holds no pickle. Files in `policies/` of this package are found by
name.

TensorFlow is imported only when a network is built, so a wrong path is reported at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.algorithms.acting import Outputs
from ga3c.envs.base import EnvSpec
from ga3c.envs.check import probe
from ga3c.learner import backend, checkpoint
from ga3c.learner.checkpoint import CheckpointError
from ga3c.runs.reader import located
from ga3c.settings.files import from_flat, recorded, settings_of
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

SHIPPED = Path(__file__).parent / "policies"
_FORMAT = "ga3c policy 1"
_SETTINGS = ("game", "wrappers", "frame_skip", "noop_max", "sticky_actions", "mode", "difficulty", "fire_reset",
             "full_action_space", "max_episode_frames", "network", "large_stride", "gamma", "reward_clip",
             "normalize_observations", "normalize_rewards", "contrast")
_CHECKPOINT_SETTINGS = _SETTINGS[1:]  # read from the checkpoint: a resume may have changed them since
_PROGRESS = ("game", "agent_steps", "version", "episodes", "time", "ga3c")


class Trained(NamedTuple):
    """Weights, and the settings and progress of their training.

    `settings` has at least what playing, building the network and reading its values need. `weights` are by name:
    `network.00`, ... float32; with `normalize_observations` also the running moments `observation.00`, ... float64.
    `progress` is as `runs.checkpoints` wrote it. `run` is the run's directory, or None. `passed_over` says why newer
    checkpoints of the run were not used, one line each.
    """

    path: Path
    settings: Settings
    weights: dict[str, NDArray]
    progress: dict[str, Any]
    run: Path | None
    passed_over: list[str]


class Choice(NamedTuple):
    """A policy's answer to observations (n, *shape): actions (n,) int64, and the model's outputs (n, ...) by name.

    For one observation (*shape) both are without the first axis.
    """

    action: NDArray[np.int64]
    outputs: dict[str, NDArray]

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """The probabilities of the actions, (n, A). Raises KeyError if the algorithm has no output "policy"."""
        return self.outputs["policy"]

    @property
    def value(self) -> NDArray[np.float32]:
        """The expected discounted sum of the rewards used for learning, (n,): clipped by `reward_clip`.

        With `normalize_rewards`, rewards were first divided by the running deviation of the discounted return. No
        policy file keeps that deviation: the value then predicts no score. Raises KeyError if the algorithm has no
        output "value".
        """
        return self.outputs["value"]


class Policy:
    """A policy to play with: `policy(observation)` chooses actions, `predict` gives the network's outputs.

    `trained` says where the policy comes from, and `spec` which environments it plays. `inference` computes its
    outputs, and `acting` says how to act on them. `outputs` describes them; `network` is the Keras model. `predict` may
    be called from any thread. `seed` is for the sampled actions.

    Without a `spec` the constructor makes the game to find out. A game of users' code is made in another process, and
    played for a step there. Raises ConfigError if the weights belong to another network, or if the game cannot be made.
    """

    def __init__(self, trained: Trained, seed: int = 0, spec: EnvSpec | None = None) -> None:
        backend.prepare()
        from ga3c.learner.learner import make_algorithm
        if spec is None:
            spec = probe(trained.settings)
        self.trained = trained
        self.spec = spec
        self._rng = np.random.default_rng(seed)
        algorithm = make_algorithm(trained.settings)
        try:
            self.inference = backend.make_inference(trained.settings, spec, algorithm, trained.weights)
        except ValueError as error:
            raise ConfigError(f"{trained.path}: {error}, which its settings ask for") from error
        self.network = self.inference.network
        self.acting = algorithm.acting
        self.outputs = algorithm.outputs(spec)

    def __call__(self, observation: NDArray, greedy: bool = False) -> Choice:
        """Chooses actions for observations (n, *shape), or for one (*shape): sampled, or the most likely if `greedy`.

        Raises ValueError if the observation is not of the spec's shape, or of a kind that the spec's dtype cannot hold.
        """
        shape = self.spec.observation_shape
        dtype = self.spec.observation_dtype
        batch = np.asarray(observation)
        single = batch.shape == shape
        batch = batch[None] if single else batch
        if batch.shape[1:] != shape or not np.can_cast(batch.dtype, dtype, "same_kind"):
            raise ValueError(f"observation is {np.asarray(observation).dtype} {np.shape(observation)}; "
                             f"{self.spec.name} shows {dtype} {shape}, or n of them")
        outputs = dict(self.predict(batch.astype(dtype, copy=False)))
        action = (self.acting.best(outputs) if greedy else
                  self.acting.choose(outputs, self._rng, np.full(len(batch), self.acting.in_evaluation)))
        if single:
            return Choice(action[0], {name: output[0] for name, output in outputs.items()})
        return Choice(action, outputs)

    def predict(self, observation: NDArray) -> Outputs:
        """Returns the model's outputs by name, (n, ...), for `observation` (n, *shape) of the spec's dtype."""
        return self.inference.predict(observation)


def load_policy(where: str | os.PathLike[str], seed: int = 0) -> Policy:
    """Loads the policy of a run, a checkpoint, a policy file or a name. Raises as `find` and `Policy` do."""
    return Policy(find(where), seed)


def find(where: str | os.PathLike[str]) -> Trained:
    """Reads the weights that `where` names: RUN (newest intact checkpoint), RUN/checkpoints/N or best, FILE or NAME.

    Raises ConfigError if `where` is none of these or does not fit its run, CheckpointError if it is damaged.
    """
    path = Path(where)
    place = located(where)
    if place is not None:
        run, named = place
        if named is not None:
            return _of_run(run, checkpoint.load(named), named, [])
        if not checkpoint.saved(run / "checkpoints"):
            raise ConfigError(f"{run}: this run has no checkpoint yet")
        return _of_run(run, *checkpoint.newest(run / "checkpoints"))
    if path.is_file():
        return read_policy(path)
    names = shipped()
    if str(where).lower() in names:
        return read_policy(SHIPPED / f"{str(where).lower()}.npz")
    raise ConfigError(f"{path} is not a run, checkpoint (RUN/checkpoints/N or best), policy file or shipped policy "
                      f"({', '.join(names) or 'none is shipped'})")


def shipped() -> list[str]:
    """Returns the names of the policies in this package."""
    return sorted(file.stem for file in SHIPPED.glob("*.npz"))


def _of_run(run: Path, loaded: checkpoint.Checkpoint, path: Path, passed_over: list[str]) -> Trained:
    settings = recorded(run / "config.yaml")
    progress = loaded.progress if isinstance(loaded.progress, dict) else {}
    if progress.get("game") != settings.env.game:
        raise ConfigError(f"{path}: trained on {progress.get('game')}, but {run / 'config.yaml'} says "
                          f"{settings.env.game}")
    saved = settings_of(progress)
    settings = from_flat(settings.flat() | {name: saved[name] for name in _CHECKPOINT_SETTINGS if name in saved},
                         str(path))
    weights = {name: array for name, array in loaded.arrays.items() if name.startswith(("network.", "observation."))}
    return Trained(path, settings, weights, progress, run, passed_over)


def write_policy(path: Path, trained: Trained) -> None:
    """Writes `trained` as a policy file, without optimizer state and run: the whole file or none. Raises OSError."""
    settings = trained.settings.flat()
    own = ("algorithm",) if ":" in settings["algorithm"] else ()  # users' own may act differently; ours act alike
    metadata = {"format": _FORMAT, "settings": {name: settings[name] for name in (*_SETTINGS, *own)},
                "progress": {name: trained.progress[name] for name in _PROGRESS if name in trained.progress}}
    metadata["sha256"] = _digest(metadata, trained.weights)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "xb") as file:
            np.savez_compressed(file, allow_pickle=False, **trained.weights,
                                metadata=np.frombuffer(json.dumps(metadata).encode(), np.uint8))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_policy(path: Path) -> Trained:
    """Reads and verifies a policy file.

    Raises ConfigError if the file is something else or of a newer version, CheckpointError if it is damaged.
    """
    foreign = ConfigError(f"{path} is no policy file of ga3c")
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"PK":
                raise foreign
        weights = checkpoint.read_arrays(path)
        if "metadata" not in weights:
            raise foreign
        metadata = json.loads(weights.pop("metadata").tobytes())
        if metadata["format"] != _FORMAT:
            raise foreign
        if metadata.pop("sha256") != _digest(metadata, weights):
            raise CheckpointError(f"{path} is damaged: its sha256 does not match the recorded one")
        settings = from_flat(metadata["settings"], f"{path}: made by another version of ga3c")
        return Trained(path, settings, weights, dict(metadata["progress"]), None, [])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def _digest(metadata: dict[str, Any], weights: dict[str, NDArray]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, array in sorted(weights.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
