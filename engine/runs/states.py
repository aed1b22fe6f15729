"""States of a run in a folder: training resumes exactly where it was, even after kill -9.

A state is a tree (dicts with string keys, lists) of arrays, numbers, strings, booleans and None. A folder holds the
last ones, `run-000012` and so on, each with `state.json`, `arrays.safetensors` and, in `tables/` beside them, the saves
of its embedding tables. A state is written beside its place and renamed when complete."""

import json
import os
import zlib

from vmhost.engine.embedding import CheckpointError, restore, save_folders
from vmhost.engine.embedding import save as save_tables
from vmhost.engine.grad.trees import mapped, named
from vmhost.engine.nn.layers import generator
from vmhost.engine.nn.weights import load_arrays, save_arrays

_FORMAT = 1
_INCREMENTS = 50  # maximum increments of tables after a full save


class RunError(ValueError):
    """A state that cannot be saved or read: what is wrong, and where."""


# ---- the contents of a state
def state_of(*, model=None, optimizer=None, generators=None, **more):
    """The state of a module's parameters, an optimizer, random generators by name (numpy.random.Generator), nn's own
    generator (of dropout and initial weights), and further trees by name: the step, a reader's position, losses."""
    state = {"nn": _plain_state(generator().bit_generator.state), **more}
    if model is not None:
        state["model"] = named(model.parameters())
    if optimizer is not None:
        state["optimizer"] = {"learning_rate": optimizer.learning_rate, **optimizer.state}
    if generators:
        state["generators"] = {name: _plain_state(one.bit_generator.state) for name, one in generators.items()}
    return state


def put_state(state, *, model=None, optimizer=None, generators=None):
    """Restores the result of `state_of` in the same objects. RunError if they are different ones."""
    generator().bit_generator.state = state["nn"]
    if model is not None:
        wanted, given, copies = named(model.parameters()), state.get("model", {}), {}
        for name, array in wanted.items():
            if name not in given or given[name].shape != array.shape or given[name].dtype != array.dtype:
                raise RunError(f"model: the state has no {name} of {array.dtype} {array.shape}")
            if id(array) not in copies:  # an array with several names keeps them
                copies[id(array)] = given[name].copy()
        if unknown := given.keys() - wanted.keys():
            raise RunError(f"model: it has no {', '.join(sorted(unknown))}")
        model.update(mapped(lambda array: copies[id(array)], model.parameters()))
    if optimizer is not None:
        if "optimizer" not in state:
            raise RunError("optimizer: the state has none")
        saved = dict(state["optimizer"])
        optimizer.learning_rate = saved.pop("learning_rate")
        slots = {name: {slot: array.copy() for slot, array in own.items()} for name, own in saved["slots"].items()}
        optimizer.state = saved | {"slots": slots}
    for name, one in (generators or {}).items():
        if name not in state.get("generators", {}):
            raise RunError(f"generators: the state has no {name!r}")
        one.bit_generator.state = state["generators"][name]
    return state


def _plain_state(state):
    """A generator's state as a tree."""
    if isinstance(state, dict):
        return {key: _plain_state(one) for key, one in state.items()}
    return state.copy() if hasattr(state, "dtype") else state


# ---- in a folder
def save(folder, state, *, tables=(), keep=2, full=None):
    """Saves a state, and the tables as they are at this moment, and returns the path. The previous state stays intact
    until this one is complete.

    folder: of the run's states. state: plain values and arrays (`state_of`).
    tables: EmbeddingVariables, or a dict of them. keep: number of states that are kept.
    full: whether to save whole tables instead of changed rows only; by default the first time and whenever the
        increments have as many rows as the tables.

    OSError, MemoryError, RunError: the state was not saved, earlier ones are intact."""
    folder = save_folders.absolute(folder)
    os.makedirs(folder, exist_ok=True)
    tables = list(tables.values() if isinstance(tables, dict) else tables)
    number = max((number for number, _ in _states(folder)), default=0) + 1
    temporary, target = save_folders.unfinished(folder, f"{number:06}"), os.path.join(folder, f"run-{number:06}")
    save_folders.remove_unfinished(folder)
    arrays = {}
    description = {"format": _FORMAT, "state": _split(state, arrays, ""), "tables": None}
    if tables:
        in_tables = os.path.join(folder, "tables")
        whole = _needs_full(tables, in_tables) if full is None else full
        description["tables"] = os.path.basename(save_tables(tables, in_tables, incremental=not whole))
    os.mkdir(temporary)
    try:
        path = os.path.join(temporary, "arrays.safetensors")
        save_arrays(path, arrays)
        description["crc32"] = _checksum(path)
        save_folders.write(os.path.join(temporary, "state.json"), json.dumps(description).encode())
        save_folders.flush(temporary)
        os.rename(temporary, target)
    except BaseException:
        save_folders.remove(temporary)
        raise
    save_folders.flush(folder)
    for _, name in _states(folder)[:-keep]:
        save_folders.remove(os.path.join(folder, name))
    _remove_old_tables(folder)
    return target


def numbers(folder):
    """The numbers of the states in a folder, in order: each save has the next one."""
    try:
        return [number for number, _ in _states(os.fspath(folder))]
    except FileNotFoundError:
        return []


def forget_after(folder, number):
    """Removes the states after this number, so that the next save follows it."""
    for later, name in _states(os.fspath(folder)) if os.path.isdir(folder) else ():
        if later > number:
            save_folders.remove(os.path.join(folder, name))


def load(folder, *, tables=()):
    """The last state of a folder, with the tables (which must have no keys) restored as they were then; None if there
    is none. RunError says what is damaged."""
    folder = save_folders.absolute(folder)
    try:
        states = _states(folder)
    except FileNotFoundError:
        return None
    if not states:
        return None
    path = os.path.join(folder, states[-1][1])
    try:
        with open(os.path.join(path, "state.json"), "rb") as file:
            description = json.loads(file.read())
        if description["format"] != _FORMAT:
            raise RunError(f"{path}: format {description['format']}: this vmhost reads {_FORMAT}")
        arrays = os.path.join(path, "arrays.safetensors")
        if _checksum(arrays) != description["crc32"]:
            raise RunError(f"{arrays}: is damaged: its checksum is another one")
        state = _joined(description["state"], load_arrays(arrays))
        saved = description["tables"]
    except RunError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    tables = list(tables.values() if isinstance(tables, dict) else tables)
    if tables:
        if saved is None:
            raise RunError(f"{path}: was saved without tables")
        try:
            restore(tables, os.path.join(folder, "tables"), upto=saved)
        except CheckpointError as error:
            raise RunError(f"{path}: {error}") from error
    return state


def _states(folder):
    found = []
    for name in os.listdir(folder):
        kind, _, number = name.partition("-")
        if kind == "run" and number.isdecimal():
            found.append((int(number), name))
    return sorted(found)


def _needs_full(tables, folder):
    names = sorted(one for one in os.listdir(folder) if not one.startswith(".")) if os.path.isdir(folder) else []
    if not names or {one.saved for one in tables} != {(folder, names[-1])}:
        return True
    increments = next(i for i, name in enumerate(reversed(names)) if name.endswith("-full") or i + 1 == len(names))
    changed, rows = (sum(getattr(one.statistics(), what) for one in tables) for what in ("changed", "rows"))
    return increments >= _INCREMENTS or changed * 2 > rows


def _remove_old_tables(folder):
    """Removes saves of tables that no state needs: all before the full save that the oldest state starts from."""
    tables, needed = os.path.join(folder, "tables"), []
    if not os.path.isdir(tables):
        return
    for _, name in _states(folder):
        with open(os.path.join(folder, name, "state.json"), "rb") as file:
            saved = json.loads(file.read())["tables"]
        if saved is not None:
            needed.append(saved)
    names = sorted(one for one in os.listdir(tables) if not one.startswith("."))
    first = max((one for one in names if one.endswith("-full") and one <= min(needed, default="")), default=None)
    for name in names:
        if first is not None and name < first:
            save_folders.remove(os.path.join(tables, name))


def _split(tree, arrays, path):
    """The tree as JSON; its arrays go to `arrays` by name."""
    if hasattr(tree, "dtype"):
        name = path or "array"
        if name in arrays:
            raise RunError(f"{name}: two arrays of the state have this name; rename a key with a slash")
        arrays[name] = tree
        return {"array": name}
    if isinstance(tree, dict):
        if any(not isinstance(key, str) for key in tree):
            raise RunError(f"{path or 'state'}: expected text keys, got {list(tree)!r:.80}")
        return {"dict": {key: _split(one, arrays, f"{path}/{key}") for key, one in tree.items()}}
    if isinstance(tree, (list, tuple)):
        return {"list": [_split(one, arrays, f"{path}/{i}") for i, one in enumerate(tree)]}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return {"value": tree}
    raise RunError(f"{path or 'state'}: expected arrays, numbers and texts, got {type(tree).__name__}")


def _joined(encoded, arrays):
    [(kind, one)] = encoded.items()
    if kind == "array":
        return arrays[one]
    if kind == "dict":
        return {key: _joined(part, arrays) for key, part in one.items()}
    return [_joined(part, arrays) for part in one] if kind == "list" else one


def _checksum(path):
    total = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            total = zlib.crc32(part, total)
    return total
