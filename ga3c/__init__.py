"""GA3C: asynchronous advantage actor-critic around one model, after Babaeizadeh et al., ICLR 2017.

Each agent plays in its own process. The main process holds the model: predictor threads query it, trainer threads
update it. Agents and threads exchange data through slots of shared memory and queues of tickets:

    agents --ticket--> prediction queue --> predictors --> model
      ^                                                      |
      +------------------------ answer ----------------------+
    agents --ticket--> training queue ----> trainers ----> model

Eleven packages; each imports only from those below it.

    commands      One file per command: arguments in, exit code out.
    service       Supervisor, agent processes, predictor and trainer threads, serial mode.
    evaluation    Policies, episodes, scores.
    runs          The record of a run: written, read back, shown.
    tuning        The numbers of agents, predictors, trainers; the bottleneck of a run.
    learner       Model, update, snapshot, checkpoints.
    algorithms    Losses, returns, networks.
    agents        An agent's loop and its process. This package and those below do not import TensorFlow.
    transport     Slots of shared memory, tickets, queues.
    envs          Atari, Gymnasium, toys.
    settings      Schema, presets, YAML, flags; cores and memory of the machine.

Terms: N_A agents, N_P predictors, N_T trainers. An *agent step* is one decision of one environment, on Atari 4
emulator *frames*. A *rollout* is up to rollout_length steps of all environments of an agent, in one *slot*. *Version*
counts updates; *policy lag* is the version at training minus the version at prediction. *PPS* and *TPS* are
predictions and updates a second. A *score* is the raw reward of an episode.

From Python: `from ga3c import Config, train, evaluate, load_policy, load_run`; see `commands/api.py`.
"""

from __future__ import annotations

import sys

# `python -m ga3c` puts the working directory first in the path. A `types.py` there would replace Python's own.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and f"{sys.path[0]}/ga3c" != __path__[0]:
    sys.path.append(sys.path.pop(0))

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ga3c.commands.api import CommandFailed as CommandFailed
    from ga3c.commands.api import RunRecord as RunRecord
    from ga3c.commands.api import evaluate as evaluate
    from ga3c.commands.api import load_run as load_run
    from ga3c.commands.api import train as train
    from ga3c.envs.factory import make_environment as make_environment
    from ga3c.evaluation.policy import load_policy as load_policy
    from ga3c.settings.files import configured as Config
    from ga3c.settings.messages import ConfigError as ConfigError

__version__ = "0.9.0"
_WHERE = {"Config": ("settings.files", "configured"), "ConfigError": ("settings.messages", "ConfigError"),
          "load_policy": ("evaluation.policy", "load_policy"), "make_environment": ("envs.factory", "make_environment"),
          **{name: ("commands.api", name) for name in ("CommandFailed", "RunRecord", "evaluate", "load_run", "train")}}
__all__ = ["CommandFailed", "Config", "ConfigError", "RunRecord", "evaluate", "load_policy", "load_run",
           "make_environment", "train"]


def __getattr__(name: str) -> Any:
    # Imported on first use: agents and `--help` need none of these modules.
    if name not in _WHERE:
        raise AttributeError(f"module 'ga3c' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(f"ga3c.{module}"), attribute)
