"""Rules for pushes to a repository of tasks, and their effects.

A branch is a task, named as in its task.yaml; a tag is a version of it: `1.2.0`, `v1.2.0`, `rank/1.2.0` or `rank-1.2.0`
on a commit of the branch `rank`. Branches only move forward, tags never move, and neither can be deleted once it is a
version, so the history stays true. A tag is written only after its build and simulation passed.
"""

import os
import re
import stat
import tempfile
from pathlib import Path

from dulwich.objects import Blob, Commit, Tag, Tree

from vmhost.deployment import identifiers
from vmhost.deployment.errors import RefusedError

BRANCHES, TAGS = b"refs/heads/", b"refs/tags/"
SPEC_NAME = b"task.yaml"
MAX_FILES = 20_000
MAX_TREE_BYTES = 1 << 30
MAX_DEPTH = 32
ZERO = b"0" * 40
_NAME = re.compile(rb"[^\x00-\x1f\x7f\\/:]{1,200}")
_RESERVED = re.compile(rb"(?i)(\.git|git~[0-9]+|\.|\.\.)[ .]*")


class TreeChecker:
    """Checks trees of the dulwich object store `store`: no links, no submodules, no names that leave the folder, and
    bounds on what `write_tree` would write. Remembers what passed, for later trees of the same push."""

    def __init__(self, store):
        self._store = store
        self._passed = {}  # tree -> (files and folders in it, levels of folders below it)
        self._files = set()  # files that are there

    def check(self, tree, path=b"", depth=0):
        """(files and folders, levels of folders) of the tree. RefusedError."""
        if (found := self._passed.get(tree)) is not None:
            if depth + found[1] > MAX_DEPTH:
                raise RefusedError(f"{_shown(path)}: folders lie more than {MAX_DEPTH} deep")
            return found
        if depth > MAX_DEPTH:
            raise RefusedError(f"{_shown(path)}: folders lie more than {MAX_DEPTH} deep")
        names, count, levels = set(), 0, 0
        for entry in _entries(self._store, tree, path):
            where = path + entry.path
            folded = _checked_name(entry, where).casefold()
            if folded in names:
                raise RefusedError(f"{_shown(where)}: another file differs only in upper and lower case; rename one")
            names.add(folded)
            count += 1
            if stat.S_ISDIR(entry.mode):
                inner, below = self.check(entry.sha, where + b"/", depth + 1)
                count, levels = count + inner, max(levels, below + 1)
            elif entry.sha not in self._files:
                if entry.sha not in self._store:
                    raise RefusedError(f"{_shown(where)}: the push lacks it; push again with an up-to-date git")
                self._files.add(entry.sha)
            if max(count, len(self._files) + len(self._passed)) > MAX_FILES:
                raise RefusedError(f"more than {MAX_FILES:,} files and folders")
        self._passed[tree] = count, levels
        return count, levels


def write_tree(store, tree, folder):
    """Writes the tree's files into `folder`, an empty one. It relies on no check made before: RefusedError for a name
    that leaves the folder, for anything but files and folders, and beyond the bounds."""
    left = [MAX_FILES, MAX_TREE_BYTES]

    def write(tree, folder, path):
        if path.count(b"/") > MAX_DEPTH:
            raise RefusedError(f"{_shown(path)}: folders lie more than {MAX_DEPTH} deep")
        for entry in _entries(store, tree, path):
            where = path + entry.path
            target = folder / _checked_name(entry, where)
            left[0] -= 1
            if left[0] < 0:
                raise RefusedError(f"more than {MAX_FILES:,} files and folders")
            try:
                if stat.S_ISDIR(entry.mode):
                    target.mkdir()
                    target.chmod(0o755)
                    write(entry.sha, target, where + b"/")
                    continue
                file = store[entry.sha]
                if not isinstance(file, Blob):
                    raise RefusedError(f"{_shown(where)}: expected a file, got a {file.type_name.decode()}")
                left[1] -= file.raw_length()
                if left[1] < 0:
                    raise RefusedError(f"the files have more than {MAX_TREE_BYTES:,} bytes in all")
                with open(target, "xb") as written:
                    written.writelines(file.as_raw_chunks())
                target.chmod(0o644)
            except FileExistsError:
                raise RefusedError(f"{_shown(where)}: is there twice; remove one") from None

    write(tree, Path(folder), b"")


def _entries(store, sha, path):
    try:
        tree = store[sha]
    except KeyError:
        raise RefusedError(f"{_shown(path) or 'the tree'}: the push lacks it; push again") from None
    if not isinstance(tree, Tree):
        raise RefusedError(f"{_shown(path) or 'the tree'}: expected a folder, got a {tree.type_name.decode()}")
    return tree.iteritems()


def _checked_name(entry, where):
    """The name of a tree's entry, which is a file or a folder. RefusedError."""
    if not _NAME.fullmatch(entry.path) or _RESERVED.fullmatch(entry.path):
        raise RefusedError(f"{_shown(where)}: this file name is not allowed; rename it")
    try:
        name = entry.path.decode()
    except UnicodeDecodeError:
        raise RefusedError(f"{_shown(where)}: expected a name in UTF-8") from None
    kind = stat.S_IFMT(entry.mode)
    if kind == 0o160000:
        raise RefusedError(f"{_shown(where)}: submodules are not accepted; put the files into the branch")
    if kind == stat.S_IFLNK:
        raise RefusedError(f"{_shown(where)}: symbolic links are not accepted; put the file there itself")
    if kind not in (stat.S_IFDIR, stat.S_IFREG):
        raise RefusedError(f"{_shown(where)}: expected a file, got mode {entry.mode:o}")
    return name


def _shown(path):
    return path.decode(errors="backslashreplace")[:200]


class Push:
    """One push to `repository` (its name; `repo`: dulwich's) by `identity`. `shallow`: commits whose parents the client
    lacks. `progress(text)` prints to the user.

    `decide` is called for each ref before it is written, branches first, and `written` after.
    """

    def __init__(self, platform, name, repo, identity, shallow, progress):
        self._platform, self._name, self._repo = platform, name, repo
        self._identity, self._shallow, self._progress = identity, shallow, progress
        self._checker = TreeChecker(repo.object_store)
        self._planned = {}  # ref -> its value, in a push that is written as a whole or not at all
        self._built = {}

    def decide(self, ref, old, new):
        """RefusedError if the ref must not become `new`. Builds a tag."""
        self._identity.must("push", self._name)
        if not ref.startswith((BRANCHES, TAGS)):
            raise RefusedError("only branches and tags are accepted")
        if self._value(ref) != old:  # the client's knowledge is not relied on
            raise RefusedError("failed to update ref: it has changed meanwhile; fetch first")
        if ref.startswith(BRANCHES):
            self._decide_branch(ref, old, new)
        else:
            self._decide_tag(ref, old, new)

    def will_be_written(self, ref, new):
        """Tells that `new` is written once the whole push is decided."""
        self._planned[ref] = new

    def _value(self, ref):
        """What the ref is or, in a push as a whole, will be."""
        if ref not in self._planned:
            try:
                return self._repo.refs.read_loose_ref(ref) or self._repo.refs.get_packed_refs().get(ref, ZERO)
            except ValueError:
                raise RefusedError("expected a name of letters, digits and ._- for a branch or a tag") from None
        return self._planned[ref]

    def _decide_branch(self, ref, old, new):
        branch = identifiers.check("branch", ref.removeprefix(BRANCHES).decode(errors="replace"))
        if new == ZERO:
            if old == ZERO:
                raise RefusedError("there is no such branch")
            if self._platform.has_versions(f"{self._name}/{branch}"):
                raise RefusedError("the branch has versions and cannot be deleted")
            return
        if self._peeled(new).id != new:
            raise RefusedError("a branch must point to a commit")
        self._check_commits(new)
        if old != ZERO and not self._is_ancestor(old, new):
            raise RefusedError("branches only grow: merge or rebase on the branch as it is there (git pull)")

    def _check_commits(self, new):
        """Checks all commits from `new` down to those that a branch or tag has: they are there, parents included."""
        refs = self._repo.get_refs()
        known = {self._peeled(sha).id for ref, sha in refs.items() if ref.startswith((BRANCHES, TAGS))}
        for commit in self._shallow - known:
            if commit in self._repo.object_store and any(
                parent not in self._repo.object_store for parent in self._repo.object_store[commit].parents
            ):
                raise RefusedError("shallow update not allowed: fetch the history first (git fetch --unshallow)")
        try:
            for entry in self._repo.get_walker(include=[new], exclude=list(known)):
                self._checker.check(entry.commit.tree)
        except KeyError as error:
            raise RefusedError(f"the push lacks the object {error.args[0]!r:.80}; push again") from None

    def _is_ancestor(self, old, new):
        from dulwich.graph import can_fast_forward

        return old == new or can_fast_forward(self._repo, old, new)

    def _decide_tag(self, ref, old, new):
        tag = ref.removeprefix(TAGS).decode(errors="replace")
        if old != ZERO:
            raise RefusedError("a version never changes: give the new one another number")
        if new == ZERO:
            raise RefusedError("there is no such tag")
        commit = self._peeled(new)
        self._check_commits(commit.id)
        tree = self._repo.object_store[commit.tree]
        if SPEC_NAME not in tree or not isinstance(self._repo.object_store[tree[SPEC_NAME][1]], Blob):
            raise RefusedError("the commit has no task.yaml at its top; a branch holds one task's folder")
        with tempfile.TemporaryDirectory(prefix="vmhost-push-") as folder:
            os.chmod(folder, 0o711)  # a build runs as another user
            task = Path(folder) / "task"
            task.mkdir()
            task.chmod(0o755)
            write_tree(self._repo.object_store, commit.tree, task)
            described = self._platform.builder.describe(task)
            self._check_names(tag, commit, described)
            self._built[ref] = self._platform.build(
                task,
                described,
                repository=self._name,
                commit=commit.id.decode(),
                tag=tag,
                who=self._identity,
                progress=self._progress,
            )

    def _peeled(self, sha):
        for _ in range(10):
            try:
                found = self._repo.object_store[sha]
            except KeyError:
                raise RefusedError(f"the push lacks the object {sha!r:.80}; push again") from None
            if isinstance(found, Commit):
                return found
            if not isinstance(found, Tag):
                break
            sha = found.object[1]
        raise RefusedError("expected a commit, or a tag of one")

    def _check_names(self, tag, commit, described):
        """RefusedError unless the tag, the branches and what the commit's task.yaml says agree."""
        branch = identifiers.check("branch", described["name"])
        version = identifiers.check("version", described["version"])
        if tag not in (version, f"v{version}", f"{branch}/{version}", f"{branch}-{version}"):
            raise RefusedError(
                f"the tag's task.yaml says {branch} {version}; call the tag {version} or {branch}/{version}, or change "
                "the version in task.yaml"
            )
        name = BRANCHES + branch.encode()
        head = self._value(name)
        if head == ZERO or not self._is_ancestor(commit.id, head):
            raise RefusedError(
                f"task.yaml says that the task is {branch}, and the commit is not on a branch {branch}; push that "
                f"too: git push origin HEAD:refs/heads/{branch} {tag}"
            )

    def written(self, ref):
        """Called when the ref is written durably."""
        if ref in self._built:
            self._platform.publish(self._built.pop(ref), self._progress)
