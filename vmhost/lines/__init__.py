"""Values and answers as lines of text: what `vmhost run`, `vmhost serve` and a device's vmrun have in common."""
