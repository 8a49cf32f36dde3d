"""`ga3c-export`: a trained policy for other programs, with a model card.

    DIRECTORY/
        saved_model/         TensorFlow SavedModel; signature: observation -> policy, value
        model.onnx           the same for ONNX Runtime, if tf2onnx is installed
        policy.npz           the same for ga3c: `ga3c-eval DIRECTORY/policy.npz`
        preprocessing.json   what an observation is, what the outputs are
        README.md            model card as on the Hugging Face Hub: scores, protocol, command, machine

The files hold only graphs and arrays: no pickle, no Python code and no Keras layer that contains any. Each model is
compared with the policy on real observations. If one differs by more than `TOLERANCE`, nothing is written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ga3c.commands.entry import guarded, print_skipped_checkpoints, quiet
from ga3c.learner import backend
from ga3c.runs import reader as record
from ga3c.settings.flags import Parser
from ga3c.settings.messages import ConfigError, printable
from ga3c.settings.schema import AlgorithmSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ga3c.evaluation.policy import Policy, Trained

TOLERANCE = 1e-5
_OBSERVATIONS = 64  # played for the comparison


class ExportDiffers(Exception):
    """The error if an exported model gives other outputs than its policy."""


def export(argv: Sequence[str]) -> int:
    return guarded("ga3c-export", lambda: _export(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ga3c-export", "Write a trained policy as TensorFlow SavedModel and ONNX, with a model card.",
        "examples:\n  ga3c-export runs/Boxing-...                          into runs/Boxing-.../export\n"
        "  ga3c-export runs/Boxing-.../checkpoints/best boxing  the best one found while it learned\n"
        "  ga3c-export pong pong-model --no-onnx                a policy that comes with the package")
    parser.add_argument("policy", metavar="POLICY", help="run directory, one of its checkpoints, policy file, or name")
    parser.add_argument("directory", metavar="DIRECTORY", nargs="?", help="a new directory [RUN/export]")
    parser.add_argument("--no-onnx", action="store_false", dest="onnx", help="leave ONNX out")
    parser.add_argument("--verbose", action="store_true", help="show TensorFlow's own messages")
    return parser


def _export(options: argparse.Namespace) -> int:
    from ga3c.evaluation.policy import Policy, find
    trained = find(options.policy)
    if options.directory is None and trained.run is None:
        raise ConfigError("DIRECTORY: name one; only what belongs to a run has a place of its own")
    print_skipped_checkpoints(trained.passed_over, "ga3c-export")
    directory = Path(options.directory) if options.directory is not None else Path(trained.run or "") / "export"
    if directory.exists():
        raise ConfigError(f"DIRECTORY: {directory} exists; name a new one")
    onnx = options.onnx and all(importlib.util.find_spec(name) for name in ("tf2onnx", "onnxruntime"))
    backend.prepare(options.verbose)
    final = directory.absolute()  # a user's game may change the working directory
    aside = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        with quiet(options.verbose):
            policy = Policy(trained)
            aside.mkdir(parents=True)
            differences = write(aside, policy, onnx)
        aside.rename(final)
    except ExportDiffers as error:
        print(f"ga3c-export: {error}", file=sys.stderr)
        return 6
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for name, difference in differences.items():
        print(f"{directory / name}: differs by at most {difference:.1e} on {_OBSERVATIONS} observations")
    if options.onnx and not onnx:
        print("No ONNX: pip install -e '.[export]'")
    print(f"{directory / 'README.md'}: the model card")
    return 0


def write(directory: Path, policy: Policy, onnx: bool) -> dict[str, float]:
    """Writes all files into `directory`; returns the largest difference of each model. Raises ExportDiffers.

    Differences are relative to the largest output if that is above 1: float32 steps near 200 are 1.5e-5.
    """
    import numpy as np

    from ga3c.evaluation.policy import write_policy
    from ga3c.runs.directory import plain_path
    observation = _played(policy)
    with plain_path(directory) as plain:
        models = {"saved_model": backend.write_saved_model(Path(plain, "saved_model"), policy.inference)}
        if onnx:
            models["model.onnx"] = backend.write_onnx(Path(plain, "model.onnx"), policy.inference)
    expected = policy.inference.predict(observation)
    differences = {}
    for name, model in models.items():
        answers = model(observation)
        differences[name] = float(np.max([abs(answers[output] - right).max() / max(1.0, abs(right).max())
                                          for output, right in expected.items()]))
        if not differences[name] <= TOLERANCE:
            raise ExportDiffers(f"{name} differs from the policy by {differences[name]:.1e}, more than {TOLERANCE:.0e}")
    write_policy(directory / "policy.npz", policy.trained)
    (directory / "preprocessing.json").write_text(json.dumps(preprocessing(policy), indent=1) + "\n", encoding="utf-8")
    (directory / "README.md").write_text(model_card(policy.trained, policy.spec.name, list(models)), encoding="utf-8")
    return differences


def _played(policy: Policy) -> NDArray:
    """Plays with the policy and returns the observations, (n, *shape)."""
    import numpy as np

    from ga3c.envs.containment import contained, reraising
    from ga3c.envs.factory import make_environment
    game = repr(policy.trained.settings.env.game)
    with contained(), reraising(f"game: {game} cannot be made", ConfigError):
        environment = make_environment(policy.trained.settings, 1)
        environment.reset(0)
    observations = []
    for _ in range(_OBSERVATIONS):
        observations.append(environment.observation[0].copy())
        action = policy(environment.observation).action
        with reraising(f"{game} failed while it played"):
            environment.step(action)
    with reraising(f"{game} failed when it was closed"):
        environment.close()
    return np.stack(observations)


def preprocessing(policy: Policy) -> dict[str, Any]:
    """Describes inputs and outputs for programs that use the models, as plain JSON values."""
    import numpy as np

    from ga3c.envs.atari_games import atari_game_of
    settings = policy.trained.settings
    spec = policy.spec
    described: dict[str, Any] = {
        "game": settings.env.game, "wrappers": list(settings.env.wrappers),
        "observation": {"name": "observation", "shape": ["n", *spec.observation_shape],
                        "dtype": str(spec.observation_dtype), "scaling": "none: done inside the model",
                        "normalized": settings.algorithm.normalize_observations},
        **{name: {"name": name, "shape": ["n", *field.shape], "dtype": str(np.dtype(field.dtype)),
                  **_meaning(name, settings.algorithm)} for name, field in policy.outputs.items()}}
    atari = atari_game_of(settings.env)
    if atari:
        described["atari"] = {
            "gymnasium_id": atari.identifier, "frame_skip": atari.frame_skip_shown, "grayscale": True,
            "maxpool": "of the last two frames",
            "resize": "84 x 84, each pixel the mean of its area (OpenCV's INTER_AREA)",
            "stack": "4 observations as channels, the newest last; those before an episode's first are 0",
            "noops": "0 to noop_max frames, each number as likely; with fire_reset the first is FIRE",
            "noop_max": settings.env.noop_max, "fire_reset": settings.env.fire_reset,
            "sticky_actions": atari.sticky_actions, "mode": settings.env.mode, "difficulty": settings.env.difficulty,
            "full_action_space": settings.env.full_action_space}
    return described


def _meaning(output: str, settings: AlgorithmSettings) -> dict[str, Any]:
    """Says what the numbers of an output are for. Outputs with other names are for who knows the algorithm."""
    if output == "policy":
        return {"meaning": "probability of each action; draw one, or take the likeliest"}
    if output == "q":
        return {"meaning": "value of each action, as `value` has it; take the highest"}
    if output == "value":
        return {"meaning": "expected discounted sum of rewards as they were learned from",
                "gamma": settings.gamma, "reward_clip": settings.reward_clip,
                "rewards": ("divided by the running deviation of the discounted return, before the clip"
                            if settings.normalize_rewards else "as the game gives them, before the clip")}
    return {"meaning": f"as --algorithm {settings.algorithm} defines it"}


# ------------------------------------------------------------------------------------------------ the model card

def model_card(trained: Trained, game: str, models: Sequence[str]) -> str:
    """Writes the text of README.md, with the metadata and results that the Hugging Face Hub reads."""
    steps = trained.progress.get("agent_steps")
    learned = trained.settings.algorithm
    clip = learned.reward_clip
    algorithm = [learned.algorithm] if trained.run else []  # a policy file does not say
    evaluation = _evaluation(trained)
    metadata: dict[str, Any] = {
        "library_name": "ga3c", "pipeline_tag": "reinforcement-learning",
        "tags": [game, "deep-reinforcement-learning", "reinforcement-learning", "ga3c", *algorithm]}
    scores = "Not evaluated yet: `ga3c-eval` on the run, then export again.\n"
    if evaluation is not None:
        deviation = float((sum((score - evaluation["mean"]) ** 2 for score in evaluation["scores"])
                           / len(evaluation["scores"])) ** 0.5)
        metadata["model-index"] = [{"name": f"ga3c-{game}", "results": [{
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": game, "type": game},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "verified": False,
                         "value": f"{evaluation['mean']:.2f} +/- {deviation:.2f}"}]}]}]
        low, high = evaluation["mean_interval"]
        scores = (f"Mean **{evaluation['mean']:.2f}** of {len(evaluation['scores'])} episodes, 95 % interval {low:.2f} "
                  f"to {high:.2f}; least {evaluation['min']:.2f}, most {evaluation['max']:.2f}.\n")
        if evaluation.get("cut"):
            most = evaluation["limits"]["steps"]
            minutes = evaluation["limits"]["minutes"]
            scores += f"Cut short: {len(evaluation['cut'])}, at {most:,} agent steps or {minutes:g} minutes.\n"
        if "human_normalised" in evaluation:
            scores += f"Human-normalised: {100 * evaluation['human_normalised']:.1f} %.\n"
        protocol = ", ".join(f"{name} {value}" for name, value in evaluation["protocol"].items())
        scores += f"\nProtocol: {protocol}.\n"
    normalized = "divided by the running deviation of the discounted return, " if learned.normalize_rewards else ""
    origin = [f"version of ga3c: {trained.progress.get('ga3c', 'unknown')}",
              f"discount per agent step (gamma): {learned.gamma:g}",
              f"rewards learned from: {normalized}{f'clipped to [-{clip:g}, {clip:g}]' if clip else 'as they are'}"]
    if learned.normalize_observations:
        origin.append("observations: normalised inside the model, by their mean and deviation in training")
    if algorithm:
        origin.insert(0, f"algorithm {learned.algorithm}, {learned.passes} passes; schedule "
                         f"{trained.settings.batching.schedule}")
    if steps is not None:
        origin.insert(0, f"trained for {steps:,} agent steps, {trained.progress.get('time', 0.0) / 60:.1f} minutes")
    versions = _versions(trained)
    with suppress(LookupError, TypeError, ValueError):  # incomplete
        origin += [f"machine: {versions['cores']} cores, {versions['memory_gb']} GB, {versions['platform']}",
                   f"Python {versions['python']}, TensorFlow {versions['tensorflow']}"]
        program, *arguments = versions["command"]
        origin += [f"command: `{printable(shlex.join(['ga3c-train', *arguments]))}`" if program != "-c" else
                   "trained from Python, by `ga3c.train`"]
    return "\n".join([
        "---", yaml.safe_dump(metadata, sort_keys=False).rstrip(), "---", "", f"# {game}, played by GA3C", "",
        "An actor-critic, trained by GA3C.", "", "## Scores", "", scores,
        "## How it was made", "", *(f"- {line}" for line in origin), "", "## Use", "",
        f"Here are {', '.join(f'`{name}`' for name in models)} (observation in, policy and value out),",
        "`policy.npz` and `preprocessing.json`, which says what an observation is. With ga3c itself:", "",
        "```python", "from ga3c import load_policy", "", 'policy = load_policy("policy.npz")',
        "action, probabilities, value = policy(observation)", "```", ""])


def _evaluation(trained: Trained) -> dict[str, Any] | None:
    """Returns the last `ga3c-eval` of this checkpoint. Evaluations during training chose it, so they are biased."""
    if trained.run is None:
        return None
    try:
        events = record.events(trained.run).new()
    except OSError:
        return None
    newest = None
    for event in events:
        if event["event"] == "start" and event.get("resumed_at", 0) < trained.progress.get("agent_steps", 0):
            newest = None  # an abandoned branch had a checkpoint of the same name
        elif (event["event"] == "evaluation" and event.get("checkpoint") == f"checkpoints/{trained.path.name}"
              and "best" not in event):
            newest = event
    return newest


def _versions(trained: Trained) -> dict[str, Any]:
    try:
        versions: dict[str, Any] = json.loads(((trained.run or Path("/nowhere")) / "versions.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return versions
