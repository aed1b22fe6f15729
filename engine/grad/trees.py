"""Trees of arrays: nested dicts, lists and tuples."""

from vmhost.engine import _array as _a


def mapped(function, tree, *others):
    """The tree with `function(leaf, *leaves at the same path)` for each leaf. None stays None."""
    if isinstance(tree, dict):
        return {key: mapped(function, one, *(other[key] for other in others)) for key, one in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [mapped(function, one, *(other[i] for other in others)) for i, one in enumerate(tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else function(tree, *others)


def leaves(tree, path=()):
    """Pairs of a path (a tuple of keys and indices) and a leaf, in order."""
    if isinstance(tree, dict):
        for key, one in tree.items():
            yield from leaves(one, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for i, one in enumerate(tree):
            yield from leaves(one, (*path, i))
    elif tree is not None:
        yield path, tree


def named(tree):
    """The leaves by name: the parts of their path, joined by dots. ValueError if two have the same name."""
    found = {}
    for path, leaf in leaves(tree):
        name = ".".join(map(str, path))
        if name in found:
            raise ValueError(f"{name}: two arrays have this name; rename one of them")
        found[name] = leaf
    return found


def is_array(leaf):
    return isinstance(leaf, _a.ndarray)
