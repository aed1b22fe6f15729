"""Serving trained networks with their embedding tables, in the host: published versions, and session groups that switch
versions without downtime. docs/serving.md explains how they work together."""
