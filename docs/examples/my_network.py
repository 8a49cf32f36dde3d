"""A network of one's own, for pictures too small for the paper's: two 2x2 convolutions without a stride."""

import keras
from keras import layers


def build_network(settings, spec):
    """From observations to the heads by name: policy (n, actions), value (n, 1). `spec` says what world it is for."""
    observation = keras.Input(spec.observation_shape, dtype=str(spec.observation_dtype))
    hidden = layers.Rescaling(1 / 10)(observation)
    for filters in (16, 32):
        hidden = layers.Conv2D(filters, 2, activation="relu")(hidden)
    hidden = layers.Dense(64, activation="relu")(layers.Flatten()(hidden))
    policy = layers.Dense(int(spec.n_actions), activation="softmax")(hidden)
    value = layers.Dense(1)(hidden)
    return keras.Model(observation, {"policy": policy, "value": value}, name="my_network")
