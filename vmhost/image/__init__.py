"""Device images: a folder with a host that has no compiler and needs no installation (docs/device-image.md).

toolchain.py    what an image is made with: CPython's static library, gcc, static libraries
modules.py      which modules of the standard library bundles need, and the bundle cut down to them
host_code.py    the host's own Python code as a bundle
line_tables.py  code with line numbers, but without columns
link.py         the executable `vmrun`
shared_object.py  `_sqlite3` as a file next to the executable, without its dependency on libsqlite3
folder.py       the folder with its manifest, made atomically
native/         C sources of vmrun; device/: Python that runs only in it
"""

from vmhost.errors import VMHostError


class ImageError(VMHostError):
    """An image that cannot be made; the message says why, and what to do."""
