"""Generates tokens, with a cache of a fixed capacity that is written in place. bench/decoders.py writes the model."""

import time

import vmhost.engine.numpy as np
from vmhost import engine


def setup():
    global model
    model = engine.load("decoder", threads=1)


def run(request):
    """{"began", "done": clock, "made": tokens}, for tokens after the first one, which the prompt yields."""
    prompt, tokens = request["prompt"], request["tokens"]
    capacity = len(prompt) + tokens + 2
    sizes = {port.name: port.shape for port in model.inputs}
    cache = {
        name: np.zeros((1, sizes[name][1], capacity, sizes[name][3]), "float32") for name in model.continued.values()
    }
    out = {present: cache[past] for present, past in model.continued.items()}
    mask = np.zeros((1, capacity), "int64")
    total, ids, made, began = 0, np.array([prompt]), [], 0.0
    while len(made) <= tokens:
        total += ids.shape[1]
        mask[0, :total] = 1
        logits = model({"input_ids": ids, "attention_mask": mask, **cache}, out=out)["logits"]
        token = int(logits[0, -1].argmax())
        ids = np.array([[token]])
        made.append(token)
        began = began or time.perf_counter()
    return {"began": began, "done": time.perf_counter(), "made": made}
