"""The network that fits a game's observations, found without TensorFlow, whose import takes seconds."""

from __future__ import annotations

from ga3c.envs.base import EnvSpec
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import AlgorithmSettings


def fitting_network(settings: AlgorithmSettings, spec: EnvSpec) -> str:
    """Returns the name of the network for these observations: "auto" is small for images and dense for vectors.

    A user's own network is not checked. Raises ConfigError if the network, or `normalize_observations`, does not fit.
    """
    shape, network = spec.observation_shape, settings.network
    if settings.normalize_observations and len(shape) != 1:
        raise ConfigError(f"normalize_observations: true does not fit {spec.name}, whose observations are images "
                          f"{shape}; only vectors are normalised: leave it false")
    if ":" in network:
        return network
    images = len(shape) == 3
    if network == "auto":
        network = "small" if images else "dense"
    if images == (network == "dense"):
        raise ConfigError(f"network: '{network}' does not fit {spec.name}, whose observations are "
                          f"{'images: small, large or nature' if images else 'vectors: dense'}")
    if images and min(shape[:2]) < 36:
        raise ConfigError(f"network: images of {spec.name} are {shape[0]}x{shape[1]}, at least 36x36 is needed for "
                          f"'{network}'")
    return network
