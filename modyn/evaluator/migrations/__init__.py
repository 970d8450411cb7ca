"""Migrations of the evaluator's schema."""
