"""`vmhost image`: makes a device image, a folder with a host that has no compiler and needs no installation."""

import platform
import sysconfig
import tempfile
from compression import zstd
from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.inspect import size_text


@click.command(short_help="Make a device image.")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option(
    "--bundle",
    "bundles",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A bundle that the image must run.",
)
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="A further module of the standard library to include; all: the whole library.",
)
@click.option(
    "--with-engine", is_flag=True, help="Include the tensor engine, as for bundles that import vmhost.engine.numpy."
)
@click.option(
    "--with-lapack",
    is_flag=True,
    help="Include the engine and the OpenBLAS of scipy-openblas32 (25 MB), for linear algebra.",
)
@click.option("--with-agent", is_flag=True, help="Include the deployment platform's agent: `vmrun agent AGENT.YAML`.")
@click.option("--with-tls", is_flag=True, help="Include OpenSSL, for an agent whose platform has an https address.")
@click.option("--with-zstd", is_flag=True, help="Include zstd, for an agent that pulls deltas and compressed bundles.")
@click.option("--with-yaml", is_flag=True, help="Include a YAML reader, for an agent.yaml that is not JSON.")
@click.option(
    "--sizes",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a page with the image's sizes, and print its size with zstd -19.",
)
@failures.command
def command(output, out, bundles, modules, with_engine, with_lapack, with_agent, with_tls, with_zstd, with_yaml, sizes):
    """Make the device image OUT; then `OUT/vmrun run BUNDLE` runs bundles on a bare Linux.

    Its standard library is cut down to what the given bundles import; without any, to a default set.
    """
    from vmhost.image import ImageError, folder

    asked = [name for name, is_asked in (("tls", with_tls), ("zstd", with_zstd), ("yaml", with_yaml)) if is_asked]
    if asked and not with_agent:
        raise click.UsageError(f"--with-{asked[0]} is for the agent; say --with-agent as well")
    parts = folder.HostParts(with_agent, with_tls, with_zstd, with_yaml)
    try:
        with output.progress() as progress:
            progress.add_task(f"making {out}", total=None)
            image = folder.make(out, bundles, modules, with_engine=with_engine, with_lapack=with_lapack, parts=parts)
    except ImageError as error:
        raise failures.Failure(str(error), failures.REFUSED, "ImageError") from error
    for path, name in image.lacking:
        output.remark(
            f"warning: {path}: imports a module that needs {name}, which the static library does not hold: no image has"
            " it, and the import raises ModuleNotFoundError there",
            style="yellow",
        )
    packed = None if sizes is None else _packed(image)
    output.document(
        {
            "image": str(image.folder),
            "bytes": image.sizes,
            "total_bytes": sum(image.sizes.values()),
            "glibc": image.glibc,
            "engine": image.engine,
            "modules": list(image.modules),
            "native": list(image.native),
            "lacking": [[str(path), name] for path, name in image.lacking],
            "packed_bytes": packed,
        }
    )
    shown = [_with_total(image.sizes)] if packed is None else [_with_total(image.sizes), _with_total(packed)]
    output.table(
        str(out),
        ["file", "size>", "zstd -19>"][: 1 + len(shown)],
        [[name, *(size_text(column[name]) for column in shown)] for name in shown[0]],
    )
    output.line(f"needs glibc {image.glibc}; native modules: {' '.join(image.native)}")
    if sizes is not None:
        try:
            sizes.write_text(_size_page(image, packed, bundles, modules), encoding="utf-8")
        except OSError as error:
            raise failures.Failure(f"{sizes}: cannot be written: {error.strerror}") from error
    return failures.DONE


def _packed(image):
    return {name: len(zstd.compress((image.folder / name).read_bytes(), level=19)) for name in image.sizes}


def _with_total(sizes):
    return dict(sorted(sizes.items())) | {"all": sum(sizes.values())}


def _table(image, packed):
    sizes, packed = _with_total(image.sizes), _with_total(packed)
    return [
        "| file | size | zstd -19 |",
        "| --- | ---: | ---: |",
        *(f"| `{name}` | {sizes[name] / 1e6:.2f} | {packed[name] / 1e6:.2f} |" for name in sizes),
    ]


def _size_page(image, packed, bundles, modules):
    """docs/size.md: the image's sizes, compared with the Python that it was made with."""
    from vmhost.image import folder

    library = Path(sysconfig.get_path("stdlib"))
    full = sum(
        path.stat().st_size
        for path in library.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.endswith(".a")
        and "test" not in path.parts
    )
    options = "".join([*(f" --bundle {path.name}" for path in bundles), *(f" --module {name}" for name in modules)])
    lines = [*_table(image, packed), "", f"Native modules: {' '.join(image.native)}."]
    more = {"--with-engine": (modules, True)} if not image.engine else {}
    if "_sqlite3" not in image.native:
        more["--module sqlite3"] = ((*modules, "sqlite3"), image.engine)
    for option, (more_modules, with_engine) in more.items():
        with tempfile.TemporaryDirectory() as scratch:
            other = folder.make(Path(scratch, "image"), bundles, more_modules, with_engine=with_engine)
            lines += [
                "",
                f"The same with `{option}`:",
                "",
                *_table(other, _packed(other)),
                "",
                f"Native modules: the same and {' '.join(sorted(set(other.native) - set(image.native)))}.",
            ]
    return "\n".join(
        [
            "# What a device image weighs",
            "",
            (
                f"Made by `vmhost image OUT{options} --sizes docs/size.md`, Python {platform.python_version()}, "
                f"{platform.machine()}, {'with' if image.engine else 'without'} the tensor engine. "
                "Megabytes (10⁶ bytes)."
            ),
            "",
            *lines,
            "",
            (
                "For comparison: the standard library of the Python that it was made with, its native modules included"
                f" and its tests left out, is {full / 1e6:.0f} MB. Walle brought its Python from over 10 MB to 1.3 MB."
            ),
            "",
        ]
    )
