"""`vmhost image`: makes a device image, a folder with a host that has no compiler and needs nothing installed."""

from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.inspect import size_text


@click.command(short_help="Make a device image.")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option("--bundle", "bundles", multiple=True, type=click.Path(path_type=Path), help="A bundle that the image must be able to run.")
@click.option("--module", "modules", multiple=True, metavar="NAME", help="A further module of the standard library to take in.")
@failures.command
def command(output, out, bundles, modules):
    """Make the device image OUT: `OUT/vmrun run BUNDLE` then runs bundles on a bare Linux.

    Its standard library is cut to what the bundles given import; without any, to a default set.
    """
    from vmhost.image import ImageError, folder

    try:
        with output.progress() as progress:
            progress.add_task(f"making {out}", total=None)
            image = folder.make(out, bundles, modules)
    except ImageError as error:
        raise failures.Failure(str(error), failures.REFUSED, "ImageError") from error
    total = sum(image.sizes.values())
    output.document({"image": str(image.folder), "bytes": image.sizes, "total_bytes": total, "glibc": image.glibc,
                     "modules": list(image.modules), "native": list(image.native)})
    output.table(str(out), ["file", "size>"], [[name, size_text(size)] for name, size in sorted(image.sizes.items())] +
                 [["all", size_text(total)]])
    output.line(f"needs glibc {image.glibc}; native modules: {' '.join(image.native)}")
    return failures.DONE
