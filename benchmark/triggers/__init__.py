"""Figures of triggers: what drift metrics, checks and simulations cost."""
