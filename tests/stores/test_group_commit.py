"""Group commit: threads that write at the same time share a transaction, after which each gets its own result."""

import threading

import pytest

from vmhost.stores import Database, GroupCommit, StoreError


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "store") as opened:
        with opened.transaction() as connection:
            connection.execute("CREATE TABLE notes (item INTEGER PRIMARY KEY)")
        yield opened


def items_of(database):
    with database.reader() as connection:
        return [row[0] for row in connection.execute("SELECT item FROM notes ORDER BY item")]


class Writer:
    """Writes numbers; refuses odd ones below zero, breaks at -100. `batches`: what each transaction was given."""

    def __init__(self, database):
        self.batches, self.befores = [], 0
        self.hold, self.began = threading.Event(), threading.Event()
        self.commit = GroupCommit(database, self.act, self.before)

    def before(self):
        self.befores += 1

    def act(self, connection, items):
        self.batches.append(list(items))
        self.began.set()
        assert self.hold.wait(60)
        results = []
        for item in items:
            if item == -100:
                raise ZeroDivisionError("broken")
            if item < 0:
                results.append(LookupError(str(item)))
            else:
                connection.execute("INSERT INTO notes VALUES (?)", (item,))
                results.append(item * 10)
        return results


def together(writer, items):
    """{item: result or exception} of threads that all wait while the first one writes."""
    results = {}

    def one(item):
        try:
            results[item] = writer.commit.run(item)
        except Exception as error:
            results[item] = error

    threads = [threading.Thread(target=one, args=(item,)) for item in items]
    threads[0].start()
    assert writer.began.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(writer.commit._waiting) < len(items) - 1:
        pass
    writer.hold.set()
    for thread in threads:
        thread.join()
    return results


def test_what_waits_is_one_transaction(database):
    writer = Writer(database)
    assert together(writer, range(1, 41)) == {item: item * 10 for item in range(1, 41)}
    assert [len(batch) for batch in writer.batches] == [1, 39] and writer.befores == 2
    assert items_of(database) == list(range(1, 41))
    assert writer.commit.run(50) == 500  # and then one by itself


def test_each_is_told_of_its_own_refusal(database):
    writer = Writer(database)
    results = together(writer, [1, 2, -3, 4])
    assert isinstance(results[-3], LookupError) and results[4] == 40
    assert items_of(database) == [1, 2, 4]


def test_one_that_breaks_does_not_take_others_along(database):
    writer = Writer(database)
    results = together(writer, [1, 2, -100, 3])
    assert isinstance(results.pop(-100), ZeroDivisionError)
    assert results == {1: 10, 2: 20, 3: 30} and items_of(database) == [1, 2, 3]
    results = together(Writer(database), [7, 8, 2])  # 2 is there already
    assert isinstance(results.pop(2), StoreError) and results == {7: 70, 8: 80}


def test_nobody_is_told_before_the_commit(database):
    """A reader of its own connection finds each item as soon as its `run` returned."""
    writer = Writer(database)
    missing = []

    def one(begin):
        for item in range(begin, begin + 25):
            writer.commit.run(item)
            if item not in items_of(database):
                missing.append(item)

    threads = [threading.Thread(target=one, args=(1000 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    while len(writer.commit._waiting) < len(threads) - 1:
        pass
    writer.hold.set()
    for thread in threads:
        thread.join()
    assert missing == [] and len(items_of(database)) == 200
    assert len(writer.batches) < 200


def test_a_store_that_is_closed_is_told_to_all(database):
    writer = Writer(database)
    writer.hold.set()
    database.close()
    with pytest.raises(StoreError):
        writer.commit.run(1)
    with pytest.raises(StoreError):
        writer.commit.run(2)
