"""How well it plays: trained policies, episodes, scores. Start with `policy.py`."""
