"""N_A, N_P, N_T: the controller, the controller in a run, and what limits a run. Start with `tuner.py`."""
