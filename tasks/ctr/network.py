"""DeepFM (Guo et al., IJCAI 2017) over features with tables: a row has the first-order weight, then the vector."""

import vmhost.engine.numpy as np
from vmhost.engine import nn
from vmhost.engine.features import FeatureEmbedding


class DeepFM(nn.Module):
    """The probability of a click. `numbers`, `ids` and `weights` as from a FeatureSpec."""

    def __init__(self, spec, tables, hidden=(64, 32)):
        super().__init__()
        self.rows = FeatureEmbedding(spec, tables)
        self._fields = len(spec.of_tables)
        self._dims = self.rows.width // self._fields
        count = len(spec.numbers)
        self.linear = nn.Linear(count, 1)
        sizes = (self._fields * (self._dims - 1) + count, *hidden)
        layers = [layer for size, to in zip(sizes, hidden) for layer in (nn.Linear(size, to), nn.ReLU())]
        self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def logits(self, numbers, ids, weights=None):
        rows = self.rows(ids, weights).reshape(len(numbers), self._fields, self._dims)
        vectors = rows[:, :, 1:]
        first = np.sum(rows[:, :, 0], axis=1, keepdims=True) + self.linear(numbers)
        total = np.sum(vectors, axis=1)
        second = np.sum(np.square(total) - np.sum(np.square(vectors), axis=1), axis=1, keepdims=True) * 0.5
        joined = np.concatenate([vectors.reshape(len(numbers), -1), numbers], axis=1)
        return (first + second + self.deep(joined))[:, 0]

    def __call__(self, numbers, ids, weights=None):
        return nn.sigmoid(self.logits(numbers, ids, weights))
