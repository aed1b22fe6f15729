"""DeepFM (Guo et al., IJCAI 2017): a factorization machine and a deep network over the same embeddings."""

import vmhost.engine.numpy as np
from vmhost.engine import nn


class DeepFM(nn.Module):
    """The logit of a click. `ids` (n, fields) are rows of one table for all fields, `numbers` (n, count) floats."""

    def __init__(self, rows, fields, numbers, dims=8, hidden=(64, 32)):
        super().__init__()
        self.vectors = nn.Embedding(rows, dims, scale=0.2)
        self.weights = nn.Embedding(rows, 1, scale=0.01)
        self.linear = nn.Linear(numbers, 1)
        sizes = (fields * dims + numbers, *hidden)
        layers = [layer for size, to in zip(sizes, hidden) for layer in (nn.Linear(size, to), nn.ReLU())]
        self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def __call__(self, ids, numbers):
        vectors = self.vectors(ids)
        first = np.sum(self.weights(ids), axis=1) + self.linear(numbers)
        total = np.sum(vectors, axis=1)
        second = np.sum(np.square(total) - np.sum(np.square(vectors), axis=1), axis=1, keepdims=True) * 0.5
        joined = np.concatenate([vectors.reshape(len(ids), -1), numbers], axis=1)
        return (first + second + self.deep(joined))[:, 0]


class Clicks(nn.Module):
    """The probability of a click: what is exported."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def __call__(self, ids, numbers):
        return nn.sigmoid(self.network(ids, numbers))
