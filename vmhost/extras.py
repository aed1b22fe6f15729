"""The extras of the package, as its metadata lists them: which there are, and which one brings a module."""

import re
from importlib import metadata


def packages_of_extras():
    """{extra: names of its packages}."""
    extras = {}
    for requirement in metadata.requires("vmhost") or ():
        package, of = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if of is not None:
            extras.setdefault(of[1], []).append(package[0])
    return extras


def extra_with(module, preferred=()):
    """The extra that installs the top-level `module`, or None. Of several: one in `preferred`, else the first by
    name."""
    found = {
        extra
        for extra, packages in packages_of_extras().items()
        if module.lower() in (package.replace("-", "_").lower() for package in packages)
    }
    return min(found & {*preferred} or found, default=None)


def not_installed():
    """The extras of which a package is not installed, in the order of the metadata."""
    return [extra for extra, packages in packages_of_extras().items() if not all(map(_is_installed, packages))]


def _is_installed(package):
    try:
        return metadata.version(package) is not None
    except metadata.PackageNotFoundError:
        return False
