"""Many rows by few statements: each row once, in order, however many there are."""

import sqlite3

import pytest

from vmhost.stores import write_rows


@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 65, 200])
def test_rows_of_any_number(count):
    connection = sqlite3.connect(":memory:")
    connection.execute('CREATE TABLE "a {} ?" (one, two)')
    rows = [(n, f"text {n}") for n in range(count)]
    write_rows(connection, 'INSERT INTO "a {} ?"', rows)
    assert connection.execute('SELECT * FROM "a {} ?" ORDER BY rowid').fetchall() == rows
    connection.close()


def test_wide_rows_and_what_follows_the_values():
    connection = sqlite3.connect(":memory:")
    names = [f"c{n}" for n in range(1003)]
    connection.execute(f"CREATE TABLE wide (id INTEGER PRIMARY KEY, {', '.join(names)})")
    rows = [(n, *range(1003)) for n in range(100)]
    write_rows(connection, "INSERT INTO wide", rows)
    write_rows(
        connection, "INSERT INTO wide", [(n, *range(1, 1004)) for n in range(50, 150)], "ON CONFLICT (id) DO NOTHING"
    )
    assert connection.execute("SELECT id, c0 FROM wide").fetchall() == [(n, int(n > 99)) for n in range(150)]
    connection.close()
