"""Around training, in the host: samples from Parquet files, and the functions of a run that tasks call.
docs/features.md tells how they go together."""
