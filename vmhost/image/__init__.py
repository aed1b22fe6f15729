"""Device images: a folder with a host that has no compiler and needs nothing installed (docs/device-image.md).

toolchain.py    what of this machine the image is made with: CPython's static library, gcc, the libraries linked in
modules.py      which modules of the standard library bundles need, and the bundle that is cut to them
host_code.py    the host's own Python as a bundle
line_tables.py  code that knows its lines, and not its columns
link.py         the executable `vmrun`
shared_object.py  `_sqlite3` as it lies beside the executable: without its need of libsqlite3
folder.py       the folder with its manifest, whole or not at all
native/         C sources of vmrun; device/: Python that runs in it only
"""

from vmhost.errors import VMHostError


class ImageError(VMHostError):
    """An image that cannot be made; the message says why and what to do."""
