"""An algorithm of one's own: PPO held back by a penalty on the divergence, not by a clip (its paper, section 4)."""

from keras import ops

from ga3c.algorithms.losses import chosen
from ga3c.algorithms.ppo import PPO


class PenaltyPPO(PPO):
    """What is not here is as in PPO: targets fixed before the first pass, value loss, entropy."""

    PENALTY = 1.0

    def loss(self, network, rows, rates):
        """Compiled: tensors in and out. `rows` are the steps of a minibatch."""
        policy, value = self.trained(network, rows["observation"])
        ratio = (chosen(policy, rows["action"]) + 1e-6) / (rows["proximal"] + 1e-6)
        kl = ratio - 1.0 - ops.log(ratio)
        return self.whole_loss(policy, value, rows["returns"], self.PENALTY * kl - ratio * rows["advantage"],
                               rows["filled"], rates, kl=kl)
