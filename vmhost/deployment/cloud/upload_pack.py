"""Clone and fetch, as git-upload-pack: dulwich's handler, with what git's server can do beside it.

A shallow clone fetches without deepening, `--depth` and `--filter` go together, and a clone with a filter fetches
objects later by their names: whoever may read a repository may read any object in it.
"""

from dulwich.object_filters import (
    CombineFilter,
    SparseOidFilter,
    TreeDepthFilter,
    filter_pack_objects,
    filter_pack_objects_with_paths,
    parse_filter_spec,
)
from dulwich.object_store import find_shallow
from dulwich.pack import write_pack_from_container
from dulwich.protocol import (
    CAPABILITY_NO_DONE,
    COMMAND_DEEPEN,
    COMMAND_FILTER,
    COMMAND_SHALLOW,
    COMMAND_WANT,
    SIDE_BAND_CHANNEL_FATAL,
    ack_type,
    extract_want_line_capabilities,
)
from dulwich.server import UploadPackHandler, _ProtocolGraphWalker, _split_proto_line

from vmhost.deployment.errors import RefusedError

_MAX_ERROR = 900
_COMMANDS = (COMMAND_WANT, COMMAND_SHALLOW, COMMAND_DEEPEN, COMMAND_FILTER)


class UploadPack(UploadPackHandler):
    """Handles one request. An exception that it raises was not told to the client if `is_sending` is False."""

    is_sending = False

    def capabilities(self):
        return [*super().capabilities(), b"allow-tip-sha1-in-want", b"allow-reachable-sha1-in-want"]

    def _start_pack_send_phase(self):
        super()._start_pack_send_phase()
        self.is_sending = True

    def handle(self):
        if self.advertise_refs:
            super().handle()
            return
        try:
            self._answer()
        except Exception as error:
            if self.is_sending:  # the client reads side bands
                self.proto.write_sideband(SIDE_BAND_CHANNEL_FATAL, f"{error}\n".encode()[:_MAX_ERROR])
            raise

    def _answer(self):
        store = self.repo.object_store
        walker = _Walker(self, store, self.repo.get_peeled, self.repo.refs.get_symrefs)
        wants = []

        def determine_wants(refs, depth=None):
            wants.extend(walker.determine_wants(refs, depth))
            return wants

        missing = self.repo.find_missing_objects(determine_wants, walker, self.progress, get_tagged=self.get_tagged)
        if not wants or missing is None:
            return
        objects = list(missing)
        if not walker.handle_done(not self.has_capability(CAPABILITY_NO_DONE), self._done_received):
            return
        self._start_pack_send_phase()
        if self.filter_spec is not None:
            objects = self._filtered(objects, set(wants))
        write_pack_from_container(self.write_pack_data, store, objects, object_format=self.repo.object_format)
        self.proto.write_pkt_line(None)

    def _filtered(self, objects, wants):
        """Those that pass the filter, and what is wanted by name."""
        if _needs_paths(self.filter_spec):
            kept = filter_pack_objects_with_paths(self.repo.object_store, list(wants), self.filter_spec)
        else:
            kept = filter_pack_objects(self.repo.object_store, [name for name, _ in objects], self.filter_spec)
        kept = wants.union(kept)
        return [(name, hint) for name, hint in objects if name in kept]


def _needs_paths(spec):
    if isinstance(spec, CombineFilter):
        return any(map(_needs_paths, spec.filters))
    return isinstance(spec, (TreeDepthFilter, SparseOidFilter))


class _Walker(_ProtocolGraphWalker):
    def determine_wants(self, heads, depth=None):
        """Reads the request up to its first flush: wants, what the client lacks, depth and filter, in any order."""
        line = self.proto.read_pkt_line()
        if not line:
            return []
        line, capabilities = extract_want_line_capabilities(line)
        self.handler.set_client_capabilities(capabilities)
        self.set_ack_type(ack_type(capabilities))
        wants, depth = [], None
        while line:
            command, value = _split_proto_line(line, _COMMANDS)
            if command == COMMAND_WANT:
                if value not in self.store:
                    raise RefusedError(f"there is no object {value.decode()}")
                wants.append(value)
            elif command == COMMAND_SHALLOW:
                self.client_shallow.add(value)
            elif command == COMMAND_DEEPEN:
                depth = value
            else:
                self.handler.filter_spec = parse_filter_spec(value, object_store=self.store)
            line = self.proto.read_pkt_line()
        self.set_wants(wants)
        if depth is None:
            self.shallow.update(self.client_shallow)  # the client's history ends there as before
        else:
            shallow, not_shallow = find_shallow(self.store, wants, depth)
            self.shallow.update(shallow - not_shallow)
            self.unshallow = not_shallow & self.client_shallow
            self.update_shallow(self.shallow - self.client_shallow, self.unshallow)
        return [] if self.proto.eof() else wants
