"""Rules for pushes to a repository of tasks, and their effects.

A branch is a task, named as in its task.yaml; a tag is a version of it: `1.2.0`, `v1.2.0`, `rank/1.2.0` or `rank-1.2.0`
on a commit of the branch `rank`. Branches only move forward, tags never move, and neither can be deleted once it is a
version, so the history stays true. A tag is written only after its build and simulation passed.
"""

import re
import stat
import tempfile
from pathlib import Path

import yaml

from vmhost.deployment import identifiers
from vmhost.deployment.errors import RefusedError

BRANCHES, TAGS = b"refs/heads/", b"refs/tags/"
MAX_FILES = 20_000
MAX_DEPTH = 32
_ZERO = b"0" * 40
_NAME = re.compile(rb"[^\x00-\x1f\x7f\\/:]{1,200}")
_RESERVED = re.compile(rb"(?i)(\.git|git~[0-9]+|\.|\.\.)[ .]*")


def check_tree(store, tree, seen, path=b""):
    """RefusedError if the tree has what no task may have: links, submodules, names that leave the folder, too much.

    `seen`: trees and blobs that were checked, at any depth."""
    todo = [(tree, path)]
    while todo:
        tree, path = todo.pop()
        if tree in seen:
            continue
        seen.add(tree)
        if len(seen) > MAX_FILES:
            raise RefusedError(f"more than {MAX_FILES:,} files and folders")
        if path.count(b"/") > MAX_DEPTH:
            raise RefusedError(f"{_shown(path)}: folders lie more than {MAX_DEPTH} deep")
        names = set()
        for entry in store[tree].iteritems():
            where = path + entry.path
            if not _NAME.fullmatch(entry.path) or _RESERVED.fullmatch(entry.path):
                raise RefusedError(f"{_shown(where)}: this file name is not allowed; rename it")
            try:
                folded = entry.path.decode().casefold()
            except UnicodeDecodeError:
                raise RefusedError(f"{_shown(where)}: expected a name in UTF-8") from None
            if folded in names:
                raise RefusedError(f"{_shown(where)}: another file differs only in upper and lower case; rename one")
            names.add(folded)
            kind = stat.S_IFMT(entry.mode)
            if kind == 0o160000:
                raise RefusedError(f"{_shown(where)}: submodules are not accepted; put the files into the branch")
            if kind == stat.S_IFLNK:
                raise RefusedError(f"{_shown(where)}: symbolic links are not accepted; put the file there itself")
            if kind == stat.S_IFDIR:
                todo.append((entry.sha, where + b"/"))
            elif kind != stat.S_IFREG:
                raise RefusedError(f"{_shown(where)}: expected a file, got mode {entry.mode:o}")
            elif entry.sha not in store:
                raise RefusedError(f"{_shown(where)}: the push lacks it; push again with an up-to-date git")
            else:
                seen.add(entry.sha)


def write_tree(store, tree, folder):
    """Writes the files of a checked tree into `folder`."""
    for entry in store[tree].iteritems():
        path = Path(folder) / entry.path.decode()
        if stat.S_ISDIR(entry.mode):
            path.mkdir()
            write_tree(store, entry.sha, path)
        else:
            path.write_bytes(store[entry.sha].data)


def _shown(path):
    return path.decode(errors="backslashreplace")[:200]


class Push:
    """One push to `repository` (its name; `repo`: dulwich's) by `identity`. `progress(text)` prints to the user.

    `updates`: [(old, new, ref)], all that the push asks for. `decide` is called for each before it is written,
    `written` after.
    """

    def __init__(self, platform, name, repo, identity, updates, progress):
        self._platform, self._name, self._repo = platform, name, repo
        self._identity, self._updates, self._progress = identity, updates, progress
        self._checked = set()
        self._built = {}

    def decide(self, ref, old, new):
        """RefusedError if the ref must not become `new`. Builds a tag."""
        self._identity.must("push", self._name)
        if ref.startswith(BRANCHES):
            self._decide_branch(ref, old, new)
        elif ref.startswith(TAGS):
            self._decide_tag(ref, old, new)
        else:
            raise RefusedError("only branches and tags are accepted")

    def _decide_branch(self, ref, old, new):
        branch = identifiers.check("branch", ref.removeprefix(BRANCHES).decode(errors="replace"))
        if new == _ZERO:
            if self._platform.has_versions(f"{self._name}/{branch}"):
                raise RefusedError("the branch has versions and cannot be deleted")
            return
        if self._peeled(new).id != new:
            raise RefusedError("a branch must point to a commit")
        self._check_commits(new)
        if old != _ZERO and not self._is_ancestor(old, new):
            raise RefusedError("branches only grow: merge or rebase on the branch as it is there (git pull)")

    def _check_commits(self, new):
        refs = self._repo.get_refs()
        known = [self._peeled(sha).id for ref, sha in refs.items() if ref.startswith((BRANCHES, TAGS))]
        try:
            for entry in self._repo.get_walker(include=[new], exclude=known):
                check_tree(self._repo.object_store, entry.commit.tree, self._checked)
        except KeyError as error:
            raise RefusedError(f"the push lacks the object {error.args[0]!r:.80}; push again") from None

    def _is_ancestor(self, old, new):
        from dulwich.graph import can_fast_forward

        return old == new or can_fast_forward(self._repo, old, new)

    def _decide_tag(self, ref, old, new):
        tag = ref.removeprefix(TAGS).decode(errors="replace")
        if old != _ZERO:
            raise RefusedError("a version never changes: give the new one another number")
        if new == _ZERO:
            raise RefusedError("there is no such tag")
        commit = self._peeled(new)
        self._check_commits(commit.id)
        branch, version = self._named(tag, commit)
        with tempfile.TemporaryDirectory(prefix="vmhost-push-") as folder:
            task = Path(folder) / branch
            task.mkdir()
            write_tree(self._repo.object_store, commit.tree, task)
            self._built[ref] = self._platform.build(
                task,
                repository=self._name,
                branch=branch,
                version=version,
                commit=commit.id.decode(),
                tag=tag,
                who=self._identity,
                progress=self._progress,
            )

    def _peeled(self, sha):
        from dulwich.objects import Commit, Tag

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

    def _named(self, tag, commit):
        """(branch, version) of a tag, from the commit's task.yaml, checked against the tag and the branches."""
        try:
            spec = self._repo.object_store[commit.tree].lookup_path(self._repo.object_store.__getitem__, b"task.yaml")[
                1
            ]
            plain = yaml.safe_load(self._repo.object_store[spec].data)
        except KeyError:
            raise RefusedError("the commit has no task.yaml at its top; a branch holds one task's folder") from None
        except (yaml.YAMLError, ValueError) as error:
            raise RefusedError(f"task.yaml: not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(plain, dict) or not {"name", "version"} <= plain.keys():
            raise RefusedError("task.yaml: expected a name and a version")
        branch = identifiers.check("branch", plain["name"])
        version = identifiers.check("version", str(plain["version"]))
        if tag not in (version, f"v{version}", f"{branch}/{version}", f"{branch}-{version}"):
            raise RefusedError(
                f"the tag's task.yaml says {branch} {version}; call the tag {version} or {branch}/{version}, or change "
                "the version in task.yaml"
            )
        name = BRANCHES + branch.encode()
        heads = [new for _, new, ref in self._updates if ref == name and new != _ZERO]
        heads += [sha for ref, sha in self._repo.get_refs().items() if ref == name]
        if not any(self._is_ancestor(commit.id, head) for head in heads):
            raise RefusedError(
                f"task.yaml says that the task is {branch}, and the commit is not on a branch {branch}; push that "
                f"too: git push origin HEAD:refs/heads/{branch} {tag}"
            )
        return branch, version

    def written(self, ref):
        """Called when the ref is written durably."""
        if ref in self._built:
            self._platform.publish(self._built.pop(ref), self._progress)
