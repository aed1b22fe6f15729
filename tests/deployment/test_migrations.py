"""The platform's tables from each earlier form to the present one: nothing is lost, and a step that fails changes
nothing. The checks run on PostgreSQL too (test_platform_on_postgresql.py)."""

import json

import pytest

from vmhost.access.accounts import _STEPS as ACCESS_STEPS
from vmhost.deployment.cloud import schema
from vmhost.stores import Database, StoreVersionError

# Rows of the first forms, which every later form keeps: {table: rows}, as far as the form has the table.
ROWS = {
    "deploy_repositories": [("shop", 1, "ann")],
    "deploy_devices": [("a", b"\0secret", '{"os": "linux"}', "{}", 1, 2, "epoch", 7)],
    "deploy_cohorts": [("canary", "a")],
    "deploy_assignments": [("a", 1, 0, "proven", 5, "why")],
    "fleet_devices": [("a", "epoch", 9)],
    "fleet_rules": [(1, "rules: []", "ann", 3)],
    "deploy_blocked": [("b", "stolen", "ann", 4)],
}


def filled(database, steps):
    """Brings an empty database to the form after so many steps, and fills it."""
    database.migrate(schema.NAME, schema.STEPS[:steps])
    made = "".join(step for step in schema.STEPS[:steps])
    with database.transaction() as connection:
        for table, rows in ROWS.items():
            if f"CREATE TABLE {table} " in made and f"DROP TABLE {table}" not in made:
                columns = len(rows[0])
                names = (
                    "(id, secret, facts, profile, first_ms, seen_ms, epoch, reported) "
                    if table == "deploy_devices"
                    else ""
                )
                connection.executemany(f"INSERT INTO {table} {names}VALUES ({', '.join('?' * columns)})", rows)


def held(database, table, columns="*"):
    with database.reader() as connection:
        return [tuple(row) for row in connection.execute(f"SELECT {columns} FROM {table}").fetchall()]


def each_form_keeps_its_rows(opened):
    for steps in range(1, len(schema.STEPS) + 1):
        with opened(f"form{steps}") as database:
            filled(database, steps)
        with opened(f"form{steps}") as database:
            database.migrate(schema.NAME, schema.STEPS)
            database.migrate(schema.NAME, schema.STEPS)  # once
            columns = "id, secret, facts, profile, first_ms, seen_ms, epoch, reported"
            assert held(database, "deploy_devices", columns) == ROWS["deploy_devices"], steps
            assert held(database, "deploy_assignments") == ROWS["deploy_assignments"]
            assert held(database, "deploy_cohorts") == ROWS["deploy_cohorts"]
            if any("fleet_devices" in step for step in schema.STEPS[:steps]) and steps < len(schema.STEPS):
                assert held(database, "fleet_epochs") == [("a", "epoch", 9, 0)], steps
                assert held(database, "fleet_rules") == ROWS["fleet_rules"]
            with database.transaction() as connection:  # numbers go on
                insert = (
                    "INSERT INTO deploy_releases (task, version, state, step, since_ms, plan, priority, who, why, "
                    "time_ms) VALUES ('t', 1, 'queued', 0, 0, '{}', 0, 'ann', '', 0) RETURNING id"
                )
                assert [connection.execute(insert).fetchall()[0][0] for _ in range(2)] == [1, 2]


def a_step_that_fails_changes_nothing(opened):
    with opened("failing") as database:
        filled(database, 5)
        broken = (*schema.STEPS[:7], schema.STEPS[7] + ";\nINSERT INTO no_such_table VALUES (1)")
        with pytest.raises(Exception, match="no_such_table"):
            database.migrate(schema.NAME, broken)
        with pytest.raises(Exception, match="deploy_blocked"):
            held(database, "deploy_blocked")
    with opened("failing") as database:
        database.migrate(schema.NAME, schema.STEPS)
        assert held(database, "fleet_epochs") == [("a", "epoch", 9, 0)]


def a_newer_form_is_refused(opened):
    with opened("newer") as database:
        database.migrate(schema.NAME, (*schema.STEPS, "CREATE TABLE deploy_future (one INTEGER PRIMARY KEY)"))
    with opened("newer") as database:
        with pytest.raises(StoreVersionError, match="use the newer"):
            database.migrate(schema.NAME, schema.STEPS)
        assert held(database, "deploy_future") == []


def older_tokens_work(opened):
    with opened("access") as database:
        database.migrate("access", ACCESS_STEPS[:1])
        with database.transaction() as connection:
            connection.execute("INSERT INTO access_accounts VALUES ('ann', 'releaser', 1, 0)")
            row = ("id", "ann", b"digest", json.dumps(["read"]), "", 1, None)
            connection.execute("INSERT INTO access_tokens VALUES (?, ?, ?, ?, ?, ?, ?, 0)", row)
        database.migrate("access", ACCESS_STEPS)
        assert held(database, "access_tokens", "id, account, uses") == [("id", "ann", None)]


CHECKS = (each_form_keeps_its_rows, a_step_that_fails_changes_nothing, a_newer_form_is_refused, older_tokens_work)


@pytest.mark.parametrize("check", CHECKS)
def test_tables_of_older_platforms_are_brought_to_the_new_form(tmp_path, check):
    check(lambda name: Database(tmp_path / name))
