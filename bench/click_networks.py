"""DeepFM and DLRM for the training bench, with vmhost and with torch, of the same sizes.

26 single keys with tables of D16, 13 numbers. DeepFM: the linear term and pairwise products of all fields, a network
1024-256-32 over rows and numbers, and 128-64-1 over all three. DLRM: numbers through 512-256-64-16, products of all
pairs of the 27 vectors, 512-256-1 over these. DIN: attention (64-36-1) of a candidate over ten visits, 200-80-1 over
their sum, the candidate and the numbers. Keys follow Zipf's law over the ROWS of each table."""

import numpy

TABLES, DIM, NUMBERS, ROWS = 26, 16, 13, 100_000
VISITS = 10  # of DIN
DEEP, LAST = (1024, 256, 32), (128, 64)
BOTTOM, TOP = (512, 256, 64, DIM), (512, 256)


def batches(count, size, seed=0):
    """(keys int64 [size, TABLES], numbers float32, labels float32), `count` of them."""
    generator = numpy.random.default_rng(seed)
    shares = numpy.cumsum(1 / numpy.arange(1, ROWS + 1) ** 1.05)
    made = []
    for _ in range(count):
        keys = numpy.searchsorted(shares, generator.random((size, TABLES)) * shares[-1])
        numbers = generator.normal(size=(size, NUMBERS)).astype("float32")
        chance = 1 / (1 + numpy.exp(-logits(keys, numbers)))
        made.append((keys, numbers, (generator.random(size) < chance).astype("float32")))
    return made


def logits(keys, numbers):
    """The logits of the labels' probabilities in `batches`: what a perfect model returns."""
    return numbers[:, 0] + keys[:, 0] % 3 - keys[:, 1] % 2 - 2


def ours(kind):
    """(model, tables): `model(numbers, ids)` returns logits; `ids` is a dict with keys for each table."""
    import vmhost.engine.numpy as np
    from vmhost.engine import nn, optim
    from vmhost.engine.embedding import EmbeddingVariable, group_embedding_lookup_sparse

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            optimizer = optim.Adagrad(1.0, initial=0.1)
            self.tables = [
                nn.SparseEmbedding(EmbeddingVariable(DIM, optimizer=optimizer, initializer=0.05, name=f"t{i}"), "sum")
                for i in range(TABLES)
            ]

        def rows(self, ids):
            keys = [ids[f"k{i}"] for i in range(TABLES)]
            return group_embedding_lookup_sparse(self.tables, keys, combiners="sum", together=True)

    def layers(size, *sizes, last=True):
        made = [layer for one, to in zip((size, *sizes), sizes) for layer in (nn.Linear(one, to), nn.ReLU())]
        return nn.Sequential(*(made if last else made[:-1]))

    class DeepFM(Network):
        def __init__(self):
            super().__init__()
            width = TABLES * DIM + NUMBERS
            self.linear, self.deep = nn.Linear(width, 1), layers(width, *DEEP)
            self.last = layers(DEEP[-1] + 1 + DIM, *LAST, 1, last=False)

        def __call__(self, numbers, ids):
            rows = self.rows(ids)
            vectors = rows.reshape(len(numbers), TABLES, DIM)
            total = np.sum(vectors, axis=1)
            second = (np.square(total) - np.sum(np.square(vectors), axis=1)) * 0.5
            joined = np.concatenate([rows, numbers], axis=1)
            return self.last(np.concatenate([self.deep(joined), self.linear(joined), second], axis=1))[:, 0]

    class DLRM(Network):
        def __init__(self):
            super().__init__()
            self.bottom = layers(NUMBERS, *BOTTOM)
            self.top = layers((TABLES + 1) ** 2 + DIM, *TOP, 1, last=False)

        def __call__(self, numbers, ids):
            dense = self.bottom(numbers)
            vectors = np.concatenate([dense, self.rows(ids)], axis=1).reshape(len(numbers), TABLES + 1, DIM)
            pairs = np.matmul(vectors, np.swapaxes(vectors, 1, 2)).reshape(len(numbers), (TABLES + 1) ** 2)
            return self.top(np.concatenate([pairs, dense], axis=1))[:, 0]

    class DIN(nn.Module):
        """k0 is a candidate, k1 to k10 are earlier visits, all in one table."""

        def __init__(self):
            super().__init__()
            optimizer = optim.Adagrad(1.0, initial=0.1)
            table = EmbeddingVariable(DIM, optimizer=optimizer, initializer=0.05, name="items")
            self.tables = [nn.SparseEmbedding(table, "sum")]
            self.attention = nn.Sequential(nn.Linear(4 * DIM, 36), nn.Sigmoid(), nn.Linear(36, 1))
            self.last = layers(2 * DIM + NUMBERS, 200, 80, 1, last=False)

        def __call__(self, numbers, ids):
            keys = [ids[f"k{i}"] for i in range(VISITS + 1)]
            rows = group_embedding_lookup_sparse(self.tables * len(keys), keys, combiners="sum", together=True)
            asked, shape = rows[:, :DIM], (len(numbers), VISITS, DIM)
            seen, each = rows[:, DIM:].reshape(shape), np.concatenate([asked] * VISITS, axis=1).reshape(shape)
            weights = self.attention(np.concatenate([each, seen, each - seen, each * seen], axis=2))
            interest = np.sum(weights * seen, axis=1)
            return self.last(np.concatenate([interest, asked, numbers], axis=1))[:, 0]

    model = {"deepfm": DeepFM, "dlrm": DLRM, "din": DIN}[kind]()
    return model, [one._variable for one in model.tables]


def of_torch(torch, kind, form):
    """(model, its sparse parameters, its other parameters). `form`: "26 tables", or "one table" with offsets."""
    functional = torch.nn.functional

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            count, rows = (TABLES, ROWS) if form == "26 tables" else (1, ROWS * TABLES)
            made = [torch.nn.Embedding(rows, DIM, sparse=True) for _ in range(count)]
            for one in made:
                torch.nn.init.normal_(one.weight, std=0.05)
            self.tables = torch.nn.ModuleList(made)
            self.register_buffer("starts", torch.arange(TABLES) * ROWS)

        def rows(self, keys):
            if form == "26 tables":
                return torch.cat([table(keys[:, i]) for i, table in enumerate(self.tables)], 1)
            return self.tables[0](keys + self.starts).flatten(1)

    def layers(size, *sizes, last=True):
        made = [
            layer
            for one, to in zip((size, *sizes), sizes)
            for layer in (torch.nn.Linear(one, to), torch.nn.ReLU(inplace=True))
        ]
        return torch.nn.Sequential(*(made if last else made[:-1]))

    class DeepFM(Network):
        def __init__(self):
            super().__init__()
            width = TABLES * DIM + NUMBERS
            self.linear, self.deep = torch.nn.Linear(width, 1), layers(width, *DEEP)
            self.last = layers(DEEP[-1] + 1 + DIM, *LAST, 1, last=False)

        def forward(self, numbers, keys):
            rows = self.rows(keys)
            vectors = rows.view(len(numbers), TABLES, DIM)
            second = (vectors.sum(1).square() - vectors.square().sum(1)) * 0.5
            joined = torch.cat([rows, numbers], 1)
            return self.last(torch.cat([self.deep(joined), self.linear(joined), second], 1))[:, 0]

    class DLRM(Network):
        def __init__(self):
            super().__init__()
            self.bottom = layers(NUMBERS, *BOTTOM)
            self.top = layers((TABLES + 1) ** 2 + DIM, *TOP, 1, last=False)

        def forward(self, numbers, keys):
            dense = self.bottom(numbers)
            vectors = torch.cat([dense, self.rows(keys)], 1).view(len(numbers), TABLES + 1, DIM)
            pairs = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
            return self.top(torch.cat([pairs, dense], 1))[:, 0]

    model = {"deepfm": DeepFM, "dlrm": DLRM}[kind]()
    sparse = list(model.tables.parameters())
    rest = [one for name, one in model.named_parameters() if not name.startswith("tables.")]
    model.loss = functional.binary_cross_entropy_with_logits
    return model, sparse, rest
