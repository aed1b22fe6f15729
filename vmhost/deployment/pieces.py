"""Bundles in pieces: files of a bundle that are large, models above all, are kept and pulled apart, by their own
SHA-256, so that bundles of several tasks and versions share them. The rest of a bundle is its *shell*.

A recipe says how pieces make a bundle: {"size": bytes, "shell": [digest, size], "members": [[at, digest, size], ...]},
`at` being the number of bytes of the shell before the member. A bundle is stored without compression, so its bytes are
those of its pieces one after the other; its own SHA-256 is checked in the end.
"""

import hashlib
import re

LEAST_BYTES = 64 << 10  # of a file that is worth a piece of its own
MAX_MEMBERS = 1000
_DIGEST = re.compile("[0-9a-f]{64}")


def split(data):
    """(recipe, {digest: bytes of a piece}) of a bundle; None where no file of it is large, or it is none."""
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
        begin = data.index(member, at)  # the first place: where an earlier one has the same bytes, the pieces are equal
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
    """ValueError unless it has the shape of a recipe, whose pieces are as long together as it says."""
    try:
        (shell, rest), members = recipe["shell"], recipe["members"]
        numbers = [recipe["size"], rest, *(number for at, _, size in members for number in (at, size))]
        digests = [shell, *(digest for _, digest, _ in members)]
        places = [at for at, _, _ in members]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a recipe of pieces: {type(error).__name__}: {error}") from None
    if not all(type(number) is int and number >= 0 for number in numbers) or len(members) > MAX_MEMBERS:
        raise ValueError("not a recipe of pieces: a number that cannot be")
    if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests):
        raise ValueError("not a recipe of pieces: a digest that is none")
    if places != sorted(places) or any(at > rest for at in places):
        raise ValueError("not a recipe of pieces: members beyond the shell")
    if rest + sum(size for _, _, size in members) != recipe["size"]:
        raise ValueError("not a recipe of pieces: they are not as long as the bundle")


def needed(recipe):
    """{digest: size} of the pieces."""
    shell, size = recipe["shell"]
    return {shell: size} | {digest: size for _, digest, size in recipe["members"]}


def join(recipe, read):
    """The bundle's bytes; `read(digest)` gives those of a piece."""
    shell, parts, done = read(recipe["shell"][0]), [], 0
    for at, digest, _ in recipe["members"]:
        parts += (shell[done:at], read(digest))
        done = at
    return b"".join([*parts, shell[done:]])


def cut(recipe, data):
    """{digest: bytes} of the pieces of these bytes, by the recipe; whether they have these digests is not looked at."""
    shell, pieces, begin, done = [], {}, 0, 0
    for at, digest, size in recipe["members"]:
        shell.append(data[begin : begin + at - done])
        begin += at - done
        pieces[digest] = data[begin : begin + size]
        begin, done = begin + size, at
    pieces[recipe["shell"][0]] = b"".join([*shell, data[begin:]])
    return pieces
