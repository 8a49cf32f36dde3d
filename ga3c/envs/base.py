from ga3c.envs.factory import EnvSpec, Environment, Transition
