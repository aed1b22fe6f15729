"""The fuzzer's exclusions, and the reasons. A CPython bug stands here only if a guest cannot reach it, or if
docs/isolation.md names it."""

# Tolerated effects, up to a bound.
KEPT = {
    "SQLite's files": (
        "CPython's own functions lose a reference here and there (to what they were given, when they fail half-way). A"
        " connection of sqlite3 that is kept so outlives its interpreter, and nobody can close it then: its functions'"
        " destructors want the interpreter"
    ),
}

SKIPPED = {
    # they end the batch, not the VM: nothing would be tried after them
    "_thread.exit": "ends the fuzzer's own thread",
    "_thread.exit_thread": "ends the fuzzer's own thread",
    "_thread.lock": "a lock that nobody releases: waits until the stop, as it should",
    "sys.setrecursionlimit": "the fuzzer's own frames would be refused",
    "_imp.acquire_lock": "every import of the VM waits for a lock that nobody releases, and no stop reaches it",
    "_acquire_lock": "the same of warnings",
    "gc.freeze": "what is frozen is never collected: the batches would fill the VM",
    # one long call into C, which no stop reaches (docs/isolation.md, threads and waits)
    "itertools.count": "sum(), max() and their like never come back from it",
    "itertools.cycle": "the same",
    "itertools.repeat": "the same",
    "pow": "minutes for long ints",
    "__pow__": "the same",
    "__rpow__": "the same",
    "__ipow__": "the same",
    "ipow": "the same",
    "lshift": "gigabytes for long ints",
    "__lshift__": "the same",
    "__rlshift__": "the same",
    "__ilshift__": "the same",
    "ilshift": "the same",
    "math.factorial": "minutes for one long int",
    "math.perm": "the same",
    "math.comb": "the same",
}
