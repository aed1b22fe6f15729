"""Features of keys: the cost of an event and of a vector, and what is saved when many consumers ask for the same ones.

The peer computes each operator from scratch in plain Python over the stored events of the window, like a task that
keeps its own list (tests/pipeline/features_reference.py); and polars, for the operators that it has."""

import random

from bench.measure import Figure, Result, interleaved, per_call_us, per_second
from tests.pipeline.features_reference import computed
from vmhost.pipeline.events import Event, StoredEvent
from vmhost.pipeline.features import OPERATORS, Features, FeatureSet

NOW_MS = 1_800_000_000_000
KEPT = 100  # events in the window of a key
CONSUMERS = 20
WINDOW_S = 86400


def _definitions(number):
    names = list(OPERATORS)[:number]
    one = {"source": "order", "field": "price", "window": f"{WINDOW_S} s"}
    wants = {"parameter": 1, "other": "price"}
    return {
        name: one | {"operator": name} | {key: wants[key] for key in wants if getattr(OPERATORS[name], key)}
        for name in names
    }


def _events(number, keys=1):
    random_ = random.Random(7)
    times = sorted(random_.randrange(WINDOW_S * 1000) for _ in range(number))
    begin_ms = NOW_MS - WINDOW_S * 1000
    return [
        StoredEvent(place, Event("order", begin_ms + time_ms, contents={"price": price}, key=f"user-{place % keys}"))
        for place, time_ms in enumerate(times, 1)
        for price in [random_.choice((1, 2.5, 9, 40))]
    ]


def all_operators(quick):
    """An event, followed by the vector of all operators over 100 events."""
    definitions = _definitions(len(OPERATORS))
    features = Features(FeatureSet.of({"features": definitions}), max_events=KEPT)
    features.feed(_events(KEPT))
    late = [StoredEvent(10**6 + n, Event("order", NOW_MS, contents={"price": 3}, key="user-0")) for n in range(10**5)]
    feed = iter(late)
    plain = [(e.event.time_ms / 1000, *[e.event.contents["price"]] * 3) for e in _events(KEPT)]
    moments = iter(range(NOW_MS, NOW_MS + 10**7))

    def updated():
        features.feed([next(feed)])
        features.read("*", "user-0", NOW_MS)

    count, rounds = (200, 2) if quick else (1000, 7)
    small = Features(FeatureSet.of({"features": _definitions(100)}))
    small.feed(_events(KEPT))
    read = interleaved(
        {"vmhost": lambda: per_call_us(lambda: small.read("*", "user-0", next(moments)), count)}, rounds, "us", "less"
    )
    yield Result(
        f"a vector of 100 features read, {KEPT} events in its window",
        read,
        promises=(("under 20 us", read["vmhost"].median < 20),),
    )
    fresh = interleaved(
        {
            "vmhost": lambda: per_call_us(updated, min(count, 100)),
            "plain Python": lambda: per_call_us(lambda: computed(plain, NOW_MS / 1000, WINDOW_S, 1), 5),
        },
        rounds,
        "us",
        "less",
    )
    yield Result(
        f"all {len(OPERATORS)} operators brought up to date for one event, {KEPT} events in the window",
        fresh,
        promises=(("under 50 us", fresh["vmhost"].median < 50),),
    )


def sharing(quick):
    """20 consumers that each ask for 100 features after each event: shared, and each with features of its own."""
    declared = FeatureSet.of({"features": _definitions(100)})
    events = _events(500 if quick else 2000, keys=20)

    def run(engines):
        for stored in events:
            for engine in engines:
                engine.feed([stored])
            vectors = [
                engines[number % len(engines)].read("*", stored.event.key, stored.event.time_ms)
                for number in range(CONSUMERS)
            ]
        return vectors

    shared, own = run([Features(declared)]), run([Features(declared) for _ in range(CONSUMERS)])
    figures = interleaved(
        {
            "shared": lambda: per_second(lambda: run([Features(declared)]), len(events)),
            "each for itself": lambda: per_second(
                lambda: run([Features(declared) for _ in range(CONSUMERS)]), len(events)
            ),
        },
        1 if quick else 3,
        "events/s",
        "more",
    )
    ratio = figures["shared"].advantage_over(figures["each for itself"])
    yield Result(
        f"100 features for {CONSUMERS} consumers, each after every event",
        figures,
        promises=(("8x less", ratio >= 8), ("equal values", list(map(str, shared)) == list(map(str, own)))),
    )


def _in_polars(polars):
    """{name of an operator: the same as an expression over the column `price`}."""
    price = polars.col("price")
    return {
        "count": polars.len(),
        "valued": price.count(),
        "missing": price.null_count(),
        "positive": (price > 0).sum(),
        "negative": (price < 0).sum(),
        "sum": price.sum(),
        "mean": price.mean(),
        "least": price.min(),
        "most": price.max(),
        "range": price.max() - price.min(),
        "variance": price.var(ddof=0),
        "deviation": price.std(ddof=0),
        "sample_deviation": price.std(),
        "sum_of_squares": (price * price).sum(),
        "absolute_sum": price.abs().sum(),
        "median": price.median(),
        "percentile_90": price.quantile(0.9, "linear"),
        "percentile_95": price.quantile(0.95, "linear"),
        "first": price.first(),
        "last": price.last(),
        "change": price.last() - price.first(),
        "largest_rise": price.diff().max(),
        "distinct": price.n_unique(),
        "recency": (NOW_MS - polars.col("time_ms").max()) / 1000,
        "span": (polars.col("time_ms").max() - polars.col("time_ms").min()) / 1000,
    }


def frames(quick):
    """A vector that polars can compute too, over the key's stored window. Its frame is made in advance."""
    try:
        import polars
    except ImportError:
        return  # `make bench-peers` installs it
    for kept in (KEPT, 10_000):
        events = _events(kept)
        frame = polars.DataFrame(
            {
                "time_ms": [stored.event.time_ms for stored in events],
                "price": [float(stored.event.contents["price"]) for stored in events],
            }
        )
        expressions = _in_polars(polars)
        definitions = {name: {"operator": name, "field": "price", "window": f"{WINDOW_S} s"} for name in expressions}
        features = Features(FeatureSet.of({"features": definitions}))
        features.feed(events)
        moments = iter(range(NOW_MS, NOW_MS + 10**7))

        def in_polars(frame=frame, expressions=expressions):
            window = frame.filter(polars.col("time_ms") > NOW_MS - WINDOW_S * 1000)
            return window.select(**expressions).row(0)

        ours, theirs = features.read("*", "user-0", NOW_MS), in_polars()
        figures = interleaved(
            {
                "vmhost": lambda features=features, moments=moments: per_call_us(
                    lambda: features.read("*", "user-0", next(moments)), 20
                ),
                "polars": lambda in_polars=in_polars: per_call_us(in_polars, 20),
            },
            2 if quick else 7,
            "us",
            "less",
        )
        equal = all(abs(a - b) <= 1e-9 * max(1, abs(b)) for a, b in zip(ours, theirs, strict=True))
        yield Result(
            f"a vector of {len(definitions)} features read, {kept} events in its window",
            figures,
            promises=(("equal values", equal),),
        )


def memory(quick):
    """The size of a key's history: 24 bytes per event of each stream, for any number of operators."""
    features = Features(FeatureSet.of({"features": _definitions(100)}))
    features.feed(_events(KEPT))
    size = features.statistics()["bytes"]
    yield Result(
        f"state of a key with 100 features over one stream, {KEPT} events in the window",
        {"vmhost": Figure((float(size),), "bytes", "less")},
    )


ROWS = (all_operators, sharing, frames, memory)
