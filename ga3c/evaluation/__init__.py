"""Evaluation: trained policies, their episodes and their scores. Start with `policy.py`."""
