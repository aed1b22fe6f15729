"""Values and answers as lines of text: shared by `vmhost run`, `vmhost serve` and a device's vmrun."""
