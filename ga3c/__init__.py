"""GA3C: asynchronous advantage actor-critic around one model, after Babaeizadeh et al., ICLR 2017.

The package has two halves. The server half (one process) holds the model, the predictor and trainer threads and
the supervisor; the agent half (many processes) plays and knows nothing of TensorFlow:

    cli -> service | serial -> predictor | trainer -> model -> losses | network
        -> evaluate -> policy -> network
    ---------------------------------------------------------------------------- what an agent may import:
    agent -> channel -> rollout -> environment | toys -> config

Where to begin: `service.py` draws the flow and says how it stops; `agent.play` is the life of an agent; `losses.py`
is the paper's mathematics. The walk of one observation is told in README.md.

The words, one per thing: *agent*, *predictor*, *trainer* and their numbers N_A, N_P, N_T; *agent step*: one decision
of one environment (4 emulator *frames* on Atari); *rollout*: up to t_max steps of an agent's environments, kept in a
*slot* of shared memory; *version*: updates so far; *policy lag*: version at training minus version at prediction;
*PPS*, *TPS*: predictions and trainings (updates) per second; *score*: raw reward of an episode.
"""

__version__ = "0.2.0"
