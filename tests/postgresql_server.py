"""A real PostgreSQL server for tests: the machine's, or Debian's, which tools/postgresql.sh unpacks."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

ROOT = Path(__file__).resolve().parent.parent
END_S = 60


def programs():
    """The folder of initdb and postgres. 60 MB are downloaded if the machine has none."""
    done = subprocess.run(["sh", ROOT / "tools" / "postgresql.sh"], capture_output=True, text=True, check=True)
    return Path(done.stdout.split()[0])


class PostgreSQLServer:
    """PostgreSQL in a folder, with its socket there. Started by root it runs as another user, as it refuses root."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._programs, self._numbers = programs(), itertools.count()
        self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "nobody", "nogroup")
        is_private, root = not self._programs.is_relative_to("/usr"), self._programs.parents[3]
        self._environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        if is_private:
            self._environment["LD_LIBRARY_PATH"] = ":".join(map(str, root.glob("lib/*-linux-gnu")))
        share = ["-L", str(next(root.glob("share/postgresql/*")))] if is_private else []
        command = [self._programs / "initdb", "-D", "data", "-U", "tests", "-A", "trust", "-N", "-E", "UTF8", *share]
        done = subprocess.run(command, **self._user, env=self._environment, cwd=self.folder, capture_output=True)
        assert done.returncode == 0, done.stderr
        self.start()

    def dsn(self, name="postgres"):
        """The connection string of a database."""
        return f"host={self.folder} dbname={name} user=tests"

    def new(self):
        """The connection string of a database of its own."""
        name = f"tests{next(self._numbers)}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def rows(self, query):
        with psycopg.connect(self.dsn()) as connection:
            return connection.execute(query).fetchall()

    def run(self, program, *arguments):
        """Runs one of PostgreSQL's client programs."""
        command = [self._programs / program, *map(str, arguments)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def start(self):
        self._launch()
        while True:
            if self._process.poll() is not None:
                self._launch()  # it does not start while processes of a killed server are still there
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn()).close()
                return
            time.sleep(0.05)

    def _launch(self):
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", "data", "-k", self.folder, "-c", "listen_addresses=", "-c", "jit=off"],
            **self._user,
            env=self._environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self, how=signal.SIGINT):
        self._process.send_signal(how)
        self._process.wait(END_S)

    def crash(self):
        """Ends it without a checkpoint; commits have to be in its log."""
        self.end(signal.SIGQUIT)

    def close(self):
        self.end()
        shutil.rmtree(self.folder)
