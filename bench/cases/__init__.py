"""One module per subject; each has `run(quick) -> list of Result`."""
