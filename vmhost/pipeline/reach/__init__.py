"""Reaching people: what happens outside of a pipeline when a rule matches."""
