"""GA3C: asynchronous advantage actor-critic around one model, after Babaeizadeh et al., ICLR 2017.

The package has two halves. The server half (one process) holds the model, the predictor and trainer threads and
the supervisor; the agent half (many processes) plays and knows nothing of TensorFlow:

    cli -> service | serial -> predictor | trainer -> model -> losses | network
        -> evaluation -> policy -> network; evaluation -> episodes
    ---------------------------------------------------------------------------- what an agent may import:
    episodes -> agent -> channel -> rollout -> environment | toys -> config | machine
                      -> guard -> environment; prepared -> environment

Where to begin: `service.py` draws the flow and says how it stops; `agent.play` is the life of an agent; `losses.py`
is the paper's mathematics. The walk of one observation is told in README.md.

The words, one per thing: *agent*, *predictor*, *trainer* and their numbers N_A, N_P, N_T; *agent step*: one decision
of one environment (4 emulator *frames* on Atari); *rollout*: up to rollout_length steps of an agent's environments, kept in a
*slot* of shared memory; *version*: updates so far; *policy lag*: version at training minus version at prediction;
*PPS*, *TPS*: predictions and trainings (updates) per second; *score*: raw reward of an episode.

From Python, in scripts and notebooks: `from ga3c import Config, train, evaluate, load_policy, load_run`; see `api.py`.
"""

from __future__ import annotations

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

__version__ = "0.8.0"
_WHERE = {"Config": ("settings.files", "configured"), "ConfigError": ("settings.messages", "ConfigError"),
          "load_policy": ("evaluation.policy", "load_policy"), "make_environment": ("envs.factory", "make_environment"),
          **{name: ("commands.api", name) for name in ("CommandFailed", "RunRecord", "evaluate", "load_run", "train")}}
__all__ = ["CommandFailed", "Config", "ConfigError", "RunRecord", "evaluate", "load_policy", "load_run",
           "make_environment", "train"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: an agent, and `--help`, need none of it.
    if name not in _WHERE:
        raise AttributeError(f"module 'ga3c' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(f"ga3c.{module}"), attribute)
