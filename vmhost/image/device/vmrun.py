"""The first module in a device host: makes the VMs' standard library work in the main interpreter too.

That library asks `_vmhost` and `vmhost.guest.texts` for code that CPython would compile at run time; both are installed
here, before anything else is imported. The native `_vmhost` of a VM has more members, for guests only."""

import _imp
import gc
import sys


def main():
    """Runs the command line of the process and returns its exit code."""
    _start()
    import vmrun_commands

    gc.freeze()  # imported modules stay; native/vmrun.c has disabled the collector until here
    gc.enable()
    return vmrun_commands.main(sys.argv[1:])


class _Writer:
    """Makes code objects for `vmhost.guest.texts`. The core can do it too, but its packages may not be imported yet."""

    @staticmethod
    def coroutine_code(code):
        return code.replace(co_flags=code.co_flags | 0x100)

    def __getattr__(self, name):  # members that no source of the host needs
        from vmhost.isolation.vm import core

        return getattr(core(), name)


class _Beside:
    """Finds the host's native modules in files next to the executable; VMs have an importer of their own."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        import _vmrun

        if not any(line.endswith(f" {name}.so") for line in _vmrun.manifest.splitlines()):
            return None
        from _frozen_importlib import ModuleSpec
        from _frozen_importlib_external import ExtensionFileLoader

        origin = f"{_vmrun.folder}/{name}.so"
        return ModuleSpec(name, ExtensionFileLoader(name, origin), origin=origin)


def _start():
    sys.meta_path.append(_Beside)
    module = type(sys)
    native, guest = module("_vmhost"), module("vmhost.guest")

    def text(digest):
        name = "#" + digest.hex()  # the name given by native/archive.c
        return _imp.get_frozen_object(name) if _imp.is_frozen(name) else None

    native.code, native.text = _imp.get_frozen_object, text
    guest.__path__ = []
    sys.modules["_vmhost"], sys.modules["vmhost.guest"] = native, guest
    for name in (
        "texts",
        "deferred",
        "signatures",
    ):  # not by import: that would load the host's package `vmhost`, which needs them
        full_name = f"vmhost.guest.{name}"
        part = sys.modules[full_name] = module(full_name)
        exec(_imp.get_frozen_object(full_name), part.__dict__)
        setattr(guest, name, part)
        if name == "texts":
            part.install(text, _Writer())
    sys.modules["traceback"] = (
        guest.deferred.traceback
    )  # logging imports it for errors; on use it replaces itself by the real one
    guest.signatures.of_class = lambda cls: ""  # saves 10 ms: nobody reads the documentation of the host's dataclasses
