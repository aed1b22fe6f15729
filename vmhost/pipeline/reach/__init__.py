"""Reaching people: sends messages outside of the pipeline when a rule matches or a task has a result."""
