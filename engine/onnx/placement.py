"""Decides where layers write: fuses sums and activations into the matrix product that they read, and removes copies
whose producer can write the copy's target itself."""

import math

import numpy

from .network import View, contiguous, is_binary

_WRITES_ANYWHERE = {
    "Unary",
    "Binary",
    "Where",
    "MatMul",
    "Gather",
    "Copy",
    "Attention",
}  # operators that can write a result with any strides


# Operators on bytes that can write contiguous runs at a constant distance.
_WRITES_RUNS = {"LookUp", "Quantize", "QuantizedAdd", "QuantizedMultiply", "IntegerProduct"}


def _can_write(network, layer, view):
    """Whether the layer can write its result to the `view`."""
    if layer.op in _WRITES_ANYWHERE:
        return True
    shape = network.shape(layer.output)
    if layer.op not in _WRITES_RUNS or (layer.op == "IntegerProduct" and layer.parameters[-1]):  # depthwise
        return False
    nontrivial = [(size, stride) for size, stride in zip(shape[:-1], view.strides) if size != 1]
    mergeable = all(
        stride == next_stride * next_size for (_, stride), (next_size, next_stride) in zip(nontrivial, nontrivial[1:])
    )
    return mergeable and (shape[-1] == 1 or view.strides[-1] == 1)


class _Products:
    """Finds the Gemm whose result only one layer reads, directly or through a view."""

    def __init__(self, network):
        self.network, self.readers, self.producers = network, network.readers(), network.producers()
        self.view_names = {}  # bases to their views, without those that `view` adds
        for name, view in network.views.items():
            self.view_names.setdefault(view.base, set()).add(name)
        self.views = {base: list(names) for base, names in self.view_names.items()}  # bases to all their views

    def product_read_as(self, name):
        """The Gemm whose result is read only as a whole, only as `name`, and by one layer; None if there is none."""
        network, readers = self.network, self.readers
        base = network.base(name)
        layer = self.producers.get(base)
        if layer is None or layer.op != "Gemm" or layer.activated:
            return None
        has_single_reader = (
            len(readers.get(name, ())) == 1 and readers[name][0] is not None and (name == base or base not in readers)
        )
        covers_base = math.prod(network.shape(name)) == math.prod(network.shape(base)) and network.is_dense(name)
        has_no_other_view = self.view_names.get(base, set()) <= {name} or all(
            other == name or other not in readers for other in self.view_names[base]
        )
        return layer if has_single_reader and covers_base and has_no_other_view else None

    def make_view_of_product(self, product, name, output):
        """Makes `output`, which a fused layer computed from `name`, a view of the product's result."""
        moved = [other for other in self.views.pop(output, ()) if self.network.views[other].base == output]
        self.readers.pop(name)
        self.network.become_view(output, View(product.output, 0, ()), moved)
        self.views.setdefault(product.output, []).extend((output, *moved))
        self.view_names.setdefault(product.output, set()).update(self.views[product.output])

    def view(self, name, base, shape, offset):
        """Adds a dense view of the base."""
        self.views.setdefault(base, []).append(name)
        return self.network.view(name, base, shape, contiguous(shape), offset)


def _has_products(network):
    return any(layer.op == "Gemm" for layer in network.layers)


def activate_products(network):
    """Fuses activations into the product whose result they read through a view, if nothing else reads it; passes.fuse
    does it for direct reads."""
    if not _has_products(network):
        return
    products, kept = _Products(network), []
    for layer in network.layers:
        product = products.product_read_as(layer.inputs[0]) if layer.op in ("Relu", "Clip", "Activate") else None
        if product is None or product.output == layer.inputs[0] or network.dtype(layer.output) != numpy.float32:
            kept.append(layer)
            continue
        product.absorb(layer)
        products.make_view_of_product(product, layer.inputs[0], layer.output)
    network.layers = kept


def add_in_products(network):
    """Fuses sums into the Gemm that makes one operand, if nothing else reads its result: a constant row becomes the
    Gemm's bias, another operand its addend."""
    if not _has_products(network):
        return
    products = _Products(network)
    position = {id(layer): number for number, layer in enumerate(network.layers)}
    # `biases`: constants to the biases made of them, one each: a loop's iterations share it, as they share weights
    layers, biases = list(network.layers), {}
    for number, layer in enumerate(layers):
        if layer is None or not is_binary(layer, "add") or layer.inputs[0] == layer.inputs[1]:
            continue
        for name, other in (layer.inputs, layer.inputs[::-1]):
            product, shape = products.product_read_as(name), network.shape(name)
            if product is None or network.shape(layer.output) != shape or network.dtype(layer.output) != numpy.float32:
                continue
            columns = network.shape(product.output)[1]
            values = network.constants.get(other)
            if (
                values is not None
                and values.size == columns
                and values.shape[-1:] == (columns,)
                and not product.inputs[2]
                and not product.inputs[3]
            ):
                if other not in biases:
                    biases[other] = network.constant(f"{layer.output}/bias", values.reshape(-1), "float32")
                product.inputs[2] = biases[other]
            elif (
                not product.inputs[3]
                and network.base(other) not in network.constants
                and network.shape(other) == shape
                and network.is_dense(other)
                and network.base(other) != network.base(name)
            ):
                view, size = network.as_view(other), network.shape(product.output)
                product.inputs[3] = (
                    other
                    if shape == size
                    else products.view(network.fresh(f"{layer.output}/addend"), view.base, size, view.offset)
                )
                products.readers.setdefault(product.inputs[3], []).append(product)
                layers[position[id(product)]], layers[number] = (
                    None,
                    product,
                )  # the product moves after its addend
                position[id(product)] = number
            else:
                continue
            products.make_view_of_product(product, name, layer.output)
            if layers[number] is layer:
                layers[number] = None
            break
    network.layers = [layer for layer in layers if layer is not None]


def _target_view(network, copy):
    """The view of the copy's target that its source must become for the copy to be redundant; None if there is none."""
    view, target = network.as_view(copy.inputs[0]), network.as_view(copy.output)
    source = view.base
    shape, source_strides = network.shape(source), contiguous(network.shape(source))
    axes_by_stride = {
        stride: (size, target_stride)
        for size, stride, target_stride in zip(network.shape(copy.inputs[0]), view.strides, target.strides)
        if size != 1
    }
    nontrivial = [(size, stride) for size, stride in zip(shape, source_strides) if size != 1]
    if (
        view.offset
        or len(axes_by_stride) != len(nontrivial)
        or any(axes_by_stride.get(stride, (0,))[0] != size for size, stride in nontrivial)
    ):
        return None
    return View(
        target.base,
        target.offset,
        tuple(1 if size == 1 else axes_by_stride[stride][1] for size, stride in zip(shape, source_strides)),
    )


def make_in_place(network):
    """Removes copies, to another layout or into part of a tensor, whose producer can write the target directly."""
    # `writers_of`, `readers_of`, `views`: bases to the layers that write and read them, and to their views
    writers_of, readers_of, views, removed = {}, {}, {}, set()
    for layer in network.layers:
        writers_of.setdefault(network.base(layer.output), []).append(layer)
        for base in dict.fromkeys(network.base(name) for name in layer.inputs if name):
            readers_of.setdefault(base, []).append(layer)
    for name, view in network.views.items():
        views.setdefault(view.base, set()).add(name)
    for copy in [layer for layer in network.layers if layer.op == "Copy"]:
        source = network.base(copy.inputs[0])
        writers, readers = writers_of.get(source, []), readers_of.get(source, [])
        source_views = views.get(source, set())
        target = network.base(copy.output)
        if (
            source in network.constants
            or source in network.inputs
            or any(name == source or name in source_views for name in network.outputs)
            or len(readers) != 1
            or readers[0] is not copy
            or len(writers) != 1
            or writers[0].output != source
            or writers[0].op not in _WRITES_ANYWHERE | _WRITES_RUNS
            or target == source
            or network.dtype(source) != network.dtype(target)
            or network.shape(copy.inputs[0]) != network.shape(copy.output)
        ):
            continue
        target_view = _target_view(network, copy)
        if (
            target_view is not None
            and _can_write(network, writers[0], target_view)
            and not any(network.base(name) == target for name in writers[0].inputs if name)
        ):
            for name in source_views:
                del network.views[name]
            network.views[source] = target_view
            writers_of[target] = [layer for layer in writers_of[target] if layer is not copy] + writers_of.pop(source)
            views.setdefault(target, set()).add(source)
            views.pop(source, None)
            readers_of.pop(source)
            removed.add(id(copy))
    network.layers = [layer for layer in network.layers if id(layer) not in removed]


def write_branches_in_place(network, without_views):
    """Removes choices (guards.py) whose branches can both write the result themselves: only one of them runs. Tensors
    in `without_views` must not have views."""
    written, last_read, removed = {}, {}, set()
    for number, layer in enumerate(network.layers):
        written.setdefault(network.base(layer.output), []).append(layer)
        last_read.update((network.base(name), number) for name in layer.inputs if name)
    used = {view.base for view in network.views.values()}
    used.update(without_views, network.views, network.inputs, network.outputs, network.constants)

    def is_written_by_branch(name, number, guard, like):
        writers = written.get(name, ())
        return (
            name not in used
            and last_read[name] == number
            and len(writers) == 1
            and writers[0].op in _WRITES_ANYWHERE
            and writers[0].guard is not None
            and network.guards[writers[0].guard][:2] == guard
            and network.dtype(name) == network.dtype(like)
            and network.shape(name) == network.shape(like)
        )

    for number, choice in enumerate(network.layers):
        target = choice.output
        if choice.op != "Where" or target in without_views or target in network.views or len(written[target]) != 1:
            continue
        condition, *branches = choice.inputs
        if all(
            is_written_by_branch(name, number, (condition, side), target) for name, side in zip(branches, (True, False))
        ):
            view = View(target, 0, contiguous(network.shape(target)))
            network.views.update(dict.fromkeys(branches, view))
            used.update((target, *branches))
            removed.add(id(choice))
    network.layers = [layer for layer in network.layers if id(layer) not in removed]
