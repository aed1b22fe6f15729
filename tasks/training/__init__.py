"""Trains the networks that the shipped tasks carry; no task imports it, and the demonstration does not run it.

    python -m tasks.training NAME ...       (from the checkout; needs numpy and onnx)

`gradients.py` has the operators and their gradients in plain NumPy, `onnx_files.py` writes what comes out; the others
are a network each, with its data, how it is trained, and its forward pass, which tests hold the engine against. The
same seed gives the same weights on the same machine; another one's linear algebra may round otherwise, and training
makes much of it."""
