"""Figures of triggers: the cost of drift metrics, checks and simulations."""
