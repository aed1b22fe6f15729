"""The platform's tables, as migration steps. Steps that were shipped are never changed."""

NAME = "deployment"
STEPS = (
    """
    CREATE TABLE deploy_repositories (name TEXT PRIMARY KEY, time_ms INTEGER NOT NULL, who TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE deploy_versions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, version TEXT NOT NULL, "commit" TEXT NOT NULL,
        tag TEXT NOT NULL, state TEXT NOT NULL, who TEXT NOT NULL, time_ms INTEGER NOT NULL, bad TEXT, plan TEXT,
        proof TEXT, report TEXT NOT NULL, UNIQUE (task, version)
    );
    CREATE TABLE deploy_bundles (
        version INTEGER NOT NULL, target TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL,
        PRIMARY KEY (version, target)
    ) WITHOUT ROWID;
    CREATE INDEX deploy_bundles_digests ON deploy_bundles (digest);
    CREATE TABLE deploy_deltas (
        old TEXT NOT NULL, new TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL, PRIMARY KEY (new, old)
    ) WITHOUT ROWID;
    CREATE TABLE deploy_releases (
        id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL,
        step INTEGER NOT NULL, since_ms INTEGER NOT NULL, plan TEXT NOT NULL, priority INTEGER NOT NULL,
        who TEXT NOT NULL, why TEXT NOT NULL, time_ms INTEGER NOT NULL, excused INTEGER NOT NULL DEFAULT 0,
        started INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE deploy_history (
        number INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL, task TEXT NOT NULL, release INTEGER,
        version TEXT NOT NULL, event TEXT NOT NULL, state TEXT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL
    );
    CREATE INDEX deploy_history_tasks ON deploy_history (task);
    CREATE TABLE deploy_devices (
        id TEXT PRIMARY KEY, secret BLOB NOT NULL, facts TEXT NOT NULL, profile TEXT NOT NULL,
        first_ms INTEGER NOT NULL, seen_ms INTEGER NOT NULL, epoch TEXT NOT NULL, reported INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE deploy_cohorts (
        cohort TEXT NOT NULL, device TEXT NOT NULL, PRIMARY KEY (cohort, device)
    ) WITHOUT ROWID;
    CREATE INDEX deploy_cohorts_devices ON deploy_cohorts (device);
    CREATE TABLE deploy_assignments (
        device TEXT NOT NULL, release INTEGER NOT NULL, step INTEGER NOT NULL, state TEXT NOT NULL,
        since_ms INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (device, release)
    ) WITHOUT ROWID;
    CREATE INDEX deploy_assignments_releases ON deploy_assignments (release, state, since_ms)
    """,
    """
    CREATE TABLE deploy_files (
        id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
        digest TEXT NOT NULL, size INTEGER NOT NULL, audience TEXT NOT NULL, who TEXT NOT NULL, time_ms INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE deploy_health (
        device TEXT NOT NULL, task TEXT NOT NULL, release INTEGER NOT NULL, calls INTEGER NOT NULL,
        failures INTEGER NOT NULL, PRIMARY KEY (device, task)
    ) WITHOUT ROWID;
    CREATE TABLE deploy_calls (
        release INTEGER PRIMARY KEY, calls INTEGER NOT NULL, failures INTEGER NOT NULL, control_calls INTEGER NOT NULL,
        control_failures INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE deploy_changes (one INTEGER PRIMARY KEY, number INTEGER NOT NULL);
    INSERT INTO deploy_changes VALUES (1, 0)
    """,
    """
    CREATE TABLE fleet_devices (device TEXT PRIMARY KEY, epoch TEXT NOT NULL, number INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE fleet_counts (
        time_ms INTEGER NOT NULL, task TEXT NOT NULL, version TEXT NOT NULL, cohort TEXT NOT NULL, what TEXT NOT NULL,
        number INTEGER NOT NULL, PRIMARY KEY (time_ms, task, version, cohort, what)
    ) WITHOUT ROWID;
    CREATE TABLE fleet_versions (
        device TEXT NOT NULL, task TEXT NOT NULL, version TEXT NOT NULL, seen_ms INTEGER NOT NULL,
        breaker TEXT NOT NULL, PRIMARY KEY (device, task)
    ) WITHOUT ROWID;
    CREATE TABLE fleet_crashes (
        device TEXT NOT NULL, id TEXT NOT NULL, time_ms INTEGER NOT NULL, task TEXT NOT NULL, version TEXT NOT NULL,
        fingerprint TEXT NOT NULL, title TEXT NOT NULL, report TEXT NOT NULL, PRIMARY KEY (device, id)
    ) WITHOUT ROWID;
    CREATE INDEX fleet_crashes_times ON fleet_crashes (time_ms);
    CREATE TABLE fleet_rules (one INTEGER PRIMARY KEY, text TEXT NOT NULL, who TEXT NOT NULL, time_ms INTEGER NOT NULL);
    CREATE TABLE fleet_alerts (
        id INTEGER PRIMARY KEY AUTOINCREMENT, rule TEXT NOT NULL, task TEXT NOT NULL, version TEXT NOT NULL,
        cohort TEXT NOT NULL, since_ms INTEGER NOT NULL, until_ms INTEGER, why TEXT NOT NULL
    );
    CREATE TABLE fleet_notices (
        id INTEGER PRIMARY KEY AUTOINCREMENT, alert INTEGER NOT NULL, body TEXT NOT NULL, tries INTEGER NOT NULL,
        next_ms INTEGER NOT NULL, state TEXT NOT NULL
    )
    """,
    """
    ALTER TABLE deploy_devices ADD COLUMN problem TEXT;
    CREATE INDEX deploy_devices_problems ON deploy_devices (seen_ms) WHERE problem IS NOT NULL
    """,
    """
    CREATE TABLE deploy_blocked (
        device TEXT PRIMARY KEY, why TEXT NOT NULL, who TEXT NOT NULL, time_ms INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE deploy_joins (
        device TEXT NOT NULL, code TEXT NOT NULL, secret BLOB NOT NULL, state TEXT NOT NULL, who TEXT NOT NULL,
        token TEXT NOT NULL, network TEXT NOT NULL, time_ms INTEGER NOT NULL, PRIMARY KEY (device, code)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE fleet_epochs (
        device TEXT NOT NULL, epoch TEXT NOT NULL, number INTEGER NOT NULL, time_ms INTEGER NOT NULL,
        PRIMARY KEY (device, epoch)
    ) WITHOUT ROWID;
    INSERT INTO fleet_epochs SELECT device, epoch, number, 0 FROM fleet_devices;
    DROP TABLE fleet_devices
    """,
)
