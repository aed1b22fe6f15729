"""The Python owner of one native VM, and the code stores that VMs run from. Thin: C does all that blocks or races.

`core()` returns the native module, loaded on first use, so that code that only reads bundles works without it.
"""

import importlib


def core():
    """The native module `vmhost.isolation._core`. Raises ImportError with instructions if it was not built."""
    try:
        return importlib.import_module("vmhost.isolation._core")
    except ModuleNotFoundError as error:
        raise ImportError(
            "vmhost.isolation._core is not built; run `make build` in the checkout, or install the "
            "package with `pip install .`"
        ) from error


def code_store_of(bundle, native=None):
    """A native CodeStore with the contents of `bundle` (any object with `modules`, `texts` and `files`)."""
    store = (native or core()).CodeStore()
    for name, module in bundle.modules.items():
        store.add_module(name, module.is_package, module.code)
    for digest, code in bundle.texts.items():
        store.add_text(digest, code)
    for path, data in bundle.files.items():
        store.add_file(path, data)
    return store


DEFAULT_STACK_BYTES = 1 << 20
MIN_STACK_BYTES = 128 << 10  # the native core refuses less


BOOTING, WARM, SERVING, LEAVING, ENDING = "booting", "warm", "serving", "leaving", "ending"


class OwnedVM:
    """One native VM and what its owner decided about it. Not thread-safe: its pool's lock guards it.

    `phase` is the owner's view; `native.state` is the actual state. LEAVING: it may still be in its last call. ENDING:
    it has no call any more. `owner` is the task version that it serves, None while warm. `since` is when the phase
    began, on the pool's clock.
    """

    __slots__ = ("native", "stack_bytes", "phase", "owner", "since")

    def __init__(self, native, stack_bytes, now):
        self.native = native
        self.stack_bytes = stack_bytes
        self.phase = BOOTING
        self.owner = None
        self.since = now

    def move(self, phase, now):
        self.phase = phase
        self.since = now

    def serve(self, owner, lane, now, *, soft_bytes, hard_bytes, descriptors, output_bytes, permissions):
        """Lend the warm VM to `lane` of `owner`, for good. `permissions` maps kinds to lists of names."""
        self.native.set_limits(soft_bytes, hard_bytes, descriptors, output_bytes)
        self.native.set_permissions(permissions)
        self.native.attach(lane)
        self.owner = owner
        self.move(SERVING, now)

    def retire(self, now, *, idle=False):
        """End it after its current call; `idle`: it has none. Can be repeated."""
        if self.phase not in (LEAVING, ENDING):
            idle = idle or self.owner is None
            self.move(ENDING if idle else LEAVING, now)
            self.native.retire()
