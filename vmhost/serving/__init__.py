"""Serving of trained networks with their embedding tables, in the host: versions that are published as a whole, and
session groups that change them without a stop. docs/serving.md tells how they go together."""
