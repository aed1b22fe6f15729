"""Bundles in pieces: large files of a bundle, above all models, are stored and pulled separately, by their own SHA-256,
so that bundles of several tasks and versions share them. The rest of a bundle is its *shell*.

A recipe describes how pieces make a bundle: {"size": bytes, "shell": [digest, size], "members": [[at, digest, size],
...]}; `at` is the number of shell bytes before the member. A bundle is stored uncompressed, so its bytes are those of
its pieces in order; its own SHA-256 is checked at the end.
"""

import hashlib
import re

LEAST_BYTES = 64 << 10  # smallest file that becomes a piece
MAX_MEMBERS = 1000
_DIGEST = re.compile("[0-9a-f]{64}")


def split(data):
    """(recipe, {digest: bytes of a piece}) of a bundle; None if it has no large file, or is not a bundle."""
    from vmhost.bytecode.archive import read_archive
    from vmhost.bytecode.errors import BundleError

    try:
        entries = read_archive(data, "bundle")
    except BundleError:
        return None
    shell, members, pieces, at = [], [], {}, 0
    for view in entries.values():
        if len(view) < LEAST_BYTES or len(members) == MAX_MEMBERS:
            continue
        member = bytes(view)
        begin = data.index(member, at)  # an earlier copy of the same bytes makes an equal piece
        shell.append(data[at:begin])
        digest = hashlib.sha256(member).hexdigest()
        pieces[digest] = member
        members.append([sum(map(len, shell)), digest, len(member)])
        at = begin + len(member)
    if not members:
        return None
    rest = b"".join([*shell, data[at:]])
    digest = hashlib.sha256(rest).hexdigest()
    pieces[digest] = rest
    return {"size": len(data), "shell": [digest, len(rest)], "members": members}, pieces


def check(recipe):
    """ValueError unless it is a valid recipe, whose pieces add up to its size."""
    try:
        (shell, rest), members = recipe["shell"], recipe["members"]
        numbers = [recipe["size"], rest, *(number for at, _, size in members for number in (at, size))]
        digests = [shell, *(digest for _, digest, _ in members)]
        offsets = [at for at, _, _ in members]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a recipe of pieces: {type(error).__name__}: {error}") from None
    if not all(type(number) is int and number >= 0 for number in numbers) or len(members) > MAX_MEMBERS:
        raise ValueError("not a recipe of pieces: an invalid number")
    if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests):
        raise ValueError("not a recipe of pieces: an invalid digest")
    if offsets != sorted(offsets) or any(at > rest for at in offsets):
        raise ValueError("not a recipe of pieces: members beyond the shell")
    if rest + sum(size for _, _, size in members) != recipe["size"]:
        raise ValueError("not a recipe of pieces: their sizes do not add up to the bundle's")


def needed(recipe):
    """{digest: size} of the pieces."""
    shell, size = recipe["shell"]
    return {shell: size} | {digest: size for _, digest, size in recipe["members"]}


def join(recipe, read):
    """The bundle's bytes; `read(digest)` returns those of a piece."""
    shell, parts, done = read(recipe["shell"][0]), [], 0
    for at, digest, _ in recipe["members"]:
        parts += (shell[done:at], read(digest))
        done = at
    return b"".join([*parts, shell[done:]])


def cut(recipe, data):
    """{digest: bytes} of the pieces of `data`, by the recipe. The digests are not checked."""
    shell, pieces, begin, done = [], {}, 0, 0
    for at, digest, size in recipe["members"]:
        shell.append(data[begin : begin + at - done])
        begin += at - done
        pieces[digest] = data[begin : begin + size]
        begin, done = begin + size, at
    pieces[recipe["shell"][0]] = b"".join([*shell, data[begin:]])
    return pieces
