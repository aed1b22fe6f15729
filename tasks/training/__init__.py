"""Trains the networks of the shipped tasks; no task imports it, and the demonstration does not run it.

    python -m tasks.training NAME ...       (from the checkout; needs numpy and onnx)

`gradients.py` has the operators and their gradients in plain NumPy, `onnx_files.py` writes the results; each of the
other files has a network, its data, its training, and its forward pass, which tests compare the engine with. The same
seed gives the same weights on the same machine; another machine's linear algebra may round differently, which training
amplifies."""
