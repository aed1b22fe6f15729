"""One push, as git-receive-pack: reads the request, checks its pack, decides ref by ref (pushes.py), reports.

Whatever goes wrong is one refusal in git's own protocol. Branches are decided and written before tags, so a tag is
decided by what was written. The objects of a push of which nothing was accepted are deleted again.
"""

import logging
from pathlib import Path

from dulwich.protocol import SIDE_BAND_CHANNEL_DATA, SIDE_BAND_CHANNEL_PROGRESS, Protocol, pkt_line

from vmhost.access import AccessDeniedError
from vmhost.deployment.cloud import pack_bounds
from vmhost.deployment.cloud.pushes import BRANCHES, ZERO, Push
from vmhost.deployment.errors import DeploymentError, RefusedError
from vmhost.stores import StoreError

MAX_OBJECTS = 100_000
MAX_OBJECT_BYTES = 64 << 20
MAX_UNFOLDED_BYTES = 1 << 30
_MAX_LINE = 900  # characters of a line that a user gets
_REPORT_PIECE = 60_000  # bytes of a side-band line
_log = logging.getLogger("vmhost.deployment")


def receive(body, write, platform, repo, name, identity):
    """Handles the request in the file `body` for the repository `name` (`repo`: dulwich's); `write(bytes)` sends to the
    client. RefusedError if the request is not git's. Called while `platform.pushing(name)`."""
    request = pack_bounds.read_request(body)
    if request.commands:
        _Receiver(body, write, platform, repo, name, identity, request).run()


class _Receiver:
    def __init__(self, body, write, platform, repo, name, identity, request):
        self._body, self._platform, self._repo, self._name, self._request = body, platform, repo, name, request
        self._protocol = Protocol(body.read, write)
        self._side_band = b"side-band-64k" in request.capabilities
        self._push = Push(platform, name, repo, identity, request.shallow, self._progress)
        self._statuses = {}  # ref -> None where it was written, or why not

    def run(self):
        packs = Path(self._repo.object_store.pack_dir)
        before = set(packs.glob("*"))
        unpacked = None
        try:
            unpacked = self._attempt(self._unpack)
            if unpacked is None:
                self._decide_all()
        finally:
            if None not in self._statuses.values():
                for path in set(packs.glob("*")) - before:  # nothing refers to these objects
                    path.unlink(missing_ok=True)
                self._platform.repositories.clean(self._name)
        if unpacked is not None:
            self._progress(f"refused: {unpacked}")
        self._report(unpacked)

    def _unpack(self):
        if all(new == ZERO for _, new, _ in self._request.commands):
            return
        pack_bounds.check_pack(self._body, MAX_OBJECTS, MAX_OBJECT_BYTES, MAX_UNFOLDED_BYTES)
        self._repo.object_store.add_thin_pack(self._body.read, None)

    def _decide_all(self):
        commands = sorted(self._request.commands, key=lambda each: not each[2].startswith(BRANCHES))
        if b"atomic" not in self._request.capabilities:
            for command in commands:
                if self._decide(*command):
                    self._write(*command)
            return
        decided = []
        for old, new, ref in commands:
            if not self._decide(old, new, ref):
                break
            self._push.will_be_written(ref, new)
            decided.append((old, new, ref))
        if len(decided) == len(commands):
            for command in commands:
                if not self._write(*command):
                    break
        for _, _, ref in commands:
            self._statuses.setdefault(ref, "atomic push failed")

    def _decide(self, old, new, ref):
        reason = self._attempt(lambda: self._push.decide(ref, old, new))
        if reason is not None:
            self._statuses[ref] = reason
            self._progress(f"refused: {reason}")
        return reason is None

    def _write(self, old, new, ref):
        """Writes a decided ref, and publishes what was built for it; whether it is written."""
        refs = self._repo.refs

        def write():
            done = refs.remove_if_equals(ref, old) if new == ZERO else refs.set_if_equals(ref, old, new)
            if not done:
                raise RefusedError("failed to update ref: it has changed meanwhile")

        self._statuses[ref] = self._attempt(write)
        if self._statuses[ref] is not None:
            self._progress(f"refused: {self._statuses[ref]}")
            return False
        try:
            self._push.written(ref)
        except DeploymentError as error:  # the ref is written; only the release did not begin
            self._progress(f"{_text(ref)}: {error}")
        except (StoreError, OSError) as error:
            self._platform.publish_later()
            self._progress(f"{_text(ref)}: accepted; it becomes a version once the platform can write again: {error}")
        return True

    def _attempt(self, work):
        """None if `work()` succeeds, else the reason for the user."""
        try:
            work()
            return None
        except (DeploymentError, AccessDeniedError) as error:
            return str(error) or "refused"
        except (StoreError, OSError) as error:
            _log.warning("%s: %s", self._name, error)
            return unavailable_message(error)
        except Exception as error:  # git code may raise anything on hostile bytes
            _log.warning("%s: a push failed: %s", self._name, error, exc_info=True)
            return f"{type(error).__name__}: {error}"

    def _progress(self, text):
        if self._side_band:
            for line in text.splitlines() or [""]:
                self._protocol.write_sideband(SIDE_BAND_CHANNEL_PROGRESS, f"{_shown(line)}\n".encode())

    def _report(self, unpacked):
        if b"report-status" not in self._request.capabilities:
            return
        lines = [b"unpack " + (b"ok" if unpacked is None else _status(unpacked)) + b"\n"]
        for _, _, ref in self._request.commands:
            reason = self._statuses.get(ref, "unpacker error")
            lines.append(b"ok " + ref + b"\n" if reason is None else b"ng " + ref + b" " + _status(reason) + b"\n")
        data = b"".join(pkt_line(line) for line in lines) + pkt_line(None)
        if not self._side_band:
            self._protocol.write(data)
            return
        for at in range(0, len(data), _REPORT_PIECE):
            self._protocol.write_sideband(SIDE_BAND_CHANNEL_DATA, data[at : at + _REPORT_PIECE])
        self._protocol.write_pkt_line(None)


def unavailable_message(error):
    """The message for the user where the platform is at fault."""
    return f"the platform cannot take it now: {getattr(error, 'strerror', None) or error}; push again when it can"


def _text(ref):
    return ref.decode(errors="backslashreplace")


def _shown(line):
    """A line for the user's terminal, without control characters."""
    return "".join(each if each.isprintable() else " " for each in line[:_MAX_LINE])


def _status(text):
    return _shown((text.splitlines() or [""])[0])[:300].encode() or b"refused"
