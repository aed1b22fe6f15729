"""The tensor engine: one C library for the host and every VM. `import engine.numpy as np` computes, `engine.load` opens a model.

This file imports nothing until it is used.
"""


def load(name, **options):
    """The model `name` of the task's bundle, or outside a VM of the task's folder, or the model file at that path: engine.models.load."""
    from engine.models import load as open_model
    return open_model(name, **options)
