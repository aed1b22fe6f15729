"""The host's side of training: samples from Parquet files, and the host functions of a run. docs/features.md explains
how they work together."""
