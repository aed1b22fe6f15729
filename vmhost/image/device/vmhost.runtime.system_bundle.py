"""The code store that VMs boot from, which the executable has mapped and checked against the manifest, and the models
of tasks.

Replaces vmhost/runtime/system_bundle.py in a device image.
"""

import _vmrun

IN_CHECKOUT = None


def boot_code_store(native, _in_checkout=None):
    """The native code store of the standard library; the engine is attached to `native` if it is linked in."""
    store = native.CodeStore()
    _vmrun.fill_code_store(store)
    table = _vmrun.engine_table()
    if table is not None:
        native.engine_attach(table, "")
    return store


def abandoned_threads():
    """Threads of the process that still work in a foreign library (LAPACK) for calls that a stop has ended."""
    return _vmrun.abandoned_threads()


def add_model(store, name, data, _search, kept=None, spend=False):
    """Prepares the bytes of a model file for VMs of the native code store `store`, as `name`. Algorithms are always
    chosen by built-in figures, and nothing is cached. `spend`: the bytes are writable, and not read afterwards.
    ValueError says what is wrong with them."""
    _vmrun.add_model(store, name, data, spend)


def kept_models(_folder, _search):
    """None: a device image maps its models, and caches nothing."""
    return None
