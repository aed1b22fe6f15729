"""Passes over a network: fusion, placement of results, and conversion between images and plain tensors."""

import copy

import numpy

from .branches import merge_branches
from .depthwise import part_multiples
from .equal import merge_equal
from .factoring import factor_products
from .guards import find_guards
from .halves import widen_halves
from .network import Layer, contiguous, dtype_number, has_rows, is_binary
from .operations import BINARY
from .patterns import find_attention, find_patterns
from .placement import activate_products, add_in_products, make_in_place, write_branches_in_place

# Operators on images, each with the indices of the inputs that are images or rows (as the output is).
IMAGES = {
    "Conv": (0, 3),
    "MaxPool": (0,),
    "AveragePool": (0,),
    "GlobalAveragePool": (0,),
    "Gemm": (0, 3),
    "Add": (0, 1),
    "Relu": (0,),
    "Clip": (0,),
    "Flatten": (0,),
    "Concat": range(256),
    "Slice": (0,),
    "Shuffle": (0, 1),
    "Interleave": range(256),
}

ROWS = ("Softmax", "Normalize", "Attention", "Recurrence")  # read and make rows of plain tensors
_MIN_CHANNELS = 16  # for activations at the end of convolutions
# Operators that read or make plain tensors of float32.
PLAIN = (
    "IntegerProduct",
    "Quantize",
    "Dequantize",
    "NarrowProduct",
    "Blend",
    "Sample",
    "Regions",
    "Fourier",
    "Chance",
    "Bits",
    "Suppress",
)
# operators that need adjacent elements in each row; Attention takes any order
READS_ROWS = ("Softmax", "Normalize", "Recurrence", "Trees", "Couple")
READS_DENSE = ("Sample", "Regions", "Fourier", "Suppress", "Blend", "IntegerMean")  # need dense tensors


def improve(network):
    """Runs all passes; network.savings records the effect of each kind."""
    savings, views = network.savings, network.views
    with savings.counting("unused", network):
        drop_dead(network)
        widen_halves(network)
    savings.begin(network, views)
    with savings.counting("run once", network):
        if merge_equal(network):
            drop_dead(network)
    with savings.counting("fused", network):
        if find_patterns(network):
            drop_dead(network)
        if find_attention(network):
            drop_dead(network)
        before = network.layers
        push_into_phases(network)
        fold_channels(network)
        while merge_branches(network, _read_once, _channels):
            drop_dead(network)
            fold_channels(network)
        part_multiples(network)
        add_in_products(network)
        factor_products(network)
        if network.layers != before:
            drop_dead(network)
        activate_products(network)
        fuse(network)
    with savings.counting("layouts", network):
        lower_plain_tensors(network)
        copy_rows(network)
        drop_dead(network)
    with savings.counting("made in place", network):
        make_in_place(network)
    with savings.counting("layouts", network):
        read_bases(network)
        separate_layouts(network)
        drop_dead(network)
    find_guards(network)
    with savings.counting("made in place", network):
        write_branches_in_place(network, without_views=_tensors_of(network, (*IMAGES, *ROWS, *PLAIN)))


def drop_dead(network):
    """Removes layers, constants and views that no output needs."""
    views, needed, kept, names = network.views, set(network.outputs), [], set(network.outputs)
    needed.update(views[name].base for name in network.outputs if name in views)
    for layer in reversed(network.layers):
        view = views.get(layer.output)
        if layer.output not in needed and (view is None or view.base not in needed):
            continue
        for name in layer.inputs:
            if name and name not in names:
                names.add(name)
                needed.add(name)
                if name in views:
                    needed.add(views[name].base)
        kept.append(layer)
        names.add(layer.output)
    network.layers = kept[::-1]
    network.constants = {name: values for name, values in network.constants.items() if name in needed}
    network.views = {name: view for name, view in views.items() if name in names}


def _read_once(network):
    """Tensors that exactly one layer reads and that are neither outputs nor bases of views."""
    first, others = {}, set(network.outputs)
    others.update(view.base for view in network.views.values())
    for layer in network.layers:
        for name in layer.inputs:
            if name and first.setdefault(name, layer) is not layer:
                others.add(name)
    return first.keys() - others


def _channels(network, constant, image):
    """The constant's value for each channel of the image, or None if it varies otherwise."""
    values, shape = network.constants[constant], network.shape(image)
    values = values.reshape((1,) * max(0, len(shape) - values.ndim) + values.shape)
    if (
        values.ndim != len(shape)
        or any(size != 1 for d, size in enumerate(values.shape) if d != 1)
        or values.shape[1] not in (1, shape[1])
    ):
        return None
    return numpy.broadcast_to(values.reshape(-1), (shape[1],)).astype("float64")


def fold_channels(network):
    """Folds a factor or offset for each channel, as from batch normalization, into the preceding convolution."""
    if not any(layer.op == "Conv" for layer in network.layers):
        return
    single, producers, kept, folded = _read_once(network), {}, [], {}

    def constant(name, key, make):
        """A constant, made once for constants that iterations of a loop share."""
        if key not in folded:
            folded[key] = network.constant(name, make(), "float32")
        return folded[key]

    for layer in network.layers:
        op = next((op for op in ("multiply", "add") if is_binary(layer, op)), None)
        constants = [name for name in layer.inputs if name in network.constants]
        if op and len(constants) == 1:
            [image] = [name for name in layer.inputs if name != constants[0]]
            producer, values = producers.get(image), None
            if (
                producer
                and producer.op == "Conv"
                and image in single
                and not producer.inputs[3]
                and network.shape(layer.output) == network.shape(image)
            ):
                values = _channels(network, constants[0], image)
            if values is not None:
                (_, weights, bias, _), operand = producer.inputs, constants[0]
                old = network.constants.get(bias, numpy.zeros(len(values)))
                if op == "multiply":
                    factors = values[:, None, None, None]
                    producer.inputs[1] = constant(
                        f"{layer.output}/weights", (weights, operand), lambda: network.constants[weights] * factors
                    )
                producer.inputs[2] = constant(
                    f"{layer.output}/bias",
                    (op, bias, operand, len(values)),
                    lambda: old * values if op == "multiply" else old + values,
                )
                producer.output = layer.output
                producers[layer.output] = producer
                continue
        producers[layer.output] = layer
        kept.append(layer)
    network.layers = kept


def push_into_phases(network):
    """Moves channelwise operations from interleaved images to the images before, where the convolutions that make them
    absorb them."""
    if not any(layer.op == "Interleave" for layer in network.layers):
        return
    single, kept, interleaved = _read_once(network), [], {}
    for layer in network.layers:
        if layer.op == "Interleave":
            interleaved[layer.output] = layer
        constants = [name for name in layer.inputs if name in network.constants]
        images = [name for name in layer.inputs if name in interleaved and name in single]
        channelwise = layer.op in ("Relu", "Clip", "Activate") and len(layer.inputs) == 1
        if layer.op == "Activate" and images:  # convolutions apply it pixel by pixel
            channelwise = network.shape(layer.output)[1] >= _MIN_CHANNELS
        if is_binary(layer, "multiply") or is_binary(layer, "add"):
            channelwise = len(constants) == len(images) == 1 and _channels(network, constants[0], images[0]) is not None
        if not channelwise or not images or network.shape(layer.output) != network.shape(images[0]):
            kept.append(layer)
            continue
        interleave = interleaved.pop(images[0])
        kept.remove(interleave)
        for index, name in enumerate(interleave.inputs):
            part = copy.copy(layer)
            part.inputs = [name if other == images[0] else other for other in layer.inputs]
            part.output = network.fresh(f"{layer.output}/phase")
            network.declare(part.output, network.shape(name), network.dtype(name))
            kept.append(part)
            interleave.inputs[index] = part.output
        interleave.output = layer.output
        interleaved[layer.output] = interleave
        kept.append(interleave)
    network.layers = kept


def fuse(network):
    """Fuses additions into the convolution of one operand, and activations into the producer of their operand, if
    nothing else reads that."""
    single, position, kept = _read_once(network), {}, []
    for layer in network.layers:
        shapes = [network.shape(name) for name in layer.inputs if name]
        if (
            is_binary(layer, "add")
            and len(shapes[0]) in (2, 4)
            and shapes[0] == shapes[1]
            and layer.inputs[0] != layer.inputs[1]
        ):
            candidates = [position[name] for name in layer.inputs if name in position and name in single]
            candidates = [
                number
                for number in candidates
                if kept[number].op == "Conv" and not kept[number].inputs[3] and not kept[number].activated
            ]
            if candidates and not any(name in network.constants for name in layer.inputs):
                number = max(candidates)
                producer, kept[number] = kept[number], None
                producer.inputs[3] = next(name for name in layer.inputs if name != producer.output)
                producer.output = layer.output
                layer = producer  # moves here, after its addend
        elif layer.op in ("Relu", "Clip", "Activate"):
            number = position.get(layer.inputs[0])
            producer = None if number is None else kept[number]
            if (
                producer is not None
                and layer.inputs[0] in single
                and not producer.activated
                and (
                    producer.op in ("Conv", "Gemm")
                    or (layer.op != "Activate" and _adds_images(network, producer, kept))
                )
            ):
                if producer.op == "Binary":
                    producer.op, producer.parameters = "Add", ()
                producer.absorb(layer)
                producer.output = layer.output
                position[layer.output] = number
                continue
        position[layer.output] = len(kept)
        kept.append(layer)
    network.layers = [layer for layer in kept if layer is not None]


def _adds_images(network, layer, layers):
    """Whether it adds two images, at least one made by an image operator."""
    outputs = {other.output for other in layers if other is not None and other.op in IMAGES}
    shapes = [network.shape(name) for name in layer.inputs if name]
    return (
        is_binary(layer, "add")
        and len(shapes[0]) == 4
        and shapes[0] == shapes[1]
        and network.dtype(layer.output) == numpy.float32
        and any(name in outputs for name in layer.inputs)
        and not any(name in network.constants for name in layer.inputs)
    )


def lower_plain_tensors(network):
    """Replaces ReLU, bounds and flattening of plain tensors by the engine's tensor operators."""
    images, layers = set(), network.layers
    network.layers = []
    for layer in layers:
        source = layer.inputs[0]
        if layer.op == "Relu" and source not in images:
            layer.op, layer.parameters = "Binary", (BINARY.index("maximum"), dtype_number("float32"))
            layer.inputs.append(network.constant(f"{layer.output}/zero", 0, "float32"))
        elif layer.op == "Clip" and source not in images:
            limits = [network.constant(f"{layer.output}/bound", value, "float32") for value in layer.bounds]
            source = network.binary("maximum", layer.name, source, limits[0], network.fresh(f"{layer.output}/maximum"))
            network.binary("minimum", layer.name, source, limits[1], layer.output)
            continue
        elif layer.op == "Flatten" and source not in images:
            if network.is_dense(source):
                network.become_view(layer.output, network.as_view(source))
                continue
            layer.op, shape = "Copy", network.shape(source)
            layer.output = network.view(network.fresh(f"{layer.output}/part"), layer.output, shape, contiguous(shape))
        if len(network.shape(layer.output)) == 4 and (
            layer.op in IMAGES
            or (layer.op in ("Unary", "Binary", "Activate") and any(name in images for name in layer.inputs))
        ):
            images.add(layer.output)
        network.layers.append(layer)


def read_bases(network):
    """Reads the base in place of a view that equals it (as after a reshape back): a tensor without views is free in its
    layout."""
    for layer in network.layers:
        for index, name in enumerate(layer.inputs):
            view = network.views.get(name)
            if (
                view
                and view.base not in network.constants
                and view == network.as_view(view.base)
                and network.shape(view.base) == network.shape(name)
            ):
                layer.inputs[index] = view.base


def copy_rows(network):
    """Inserts copies before operators on rows or dense tensors whose operand has another layout, as after a transpose
    or a strided slice. The producer may still write the copy directly (make_in_place)."""
    copies, layers = {}, network.layers
    network.layers = []
    for layer in layers:
        for index, name in enumerate(layer.inputs):
            if not name:
                continue
            needs_rows = layer.op in READS_ROWS and not has_rows(network.shape(name), network.as_view(name).strides)
            if needs_rows or (layer.op in READS_DENSE and not network.is_dense(name)):
                if name not in copies:
                    copies[name] = network.copied(network.fresh(f"{name}/rows"), name)
                layer.inputs[index] = copies[name]
        network.layers.append(layer)


def _tensors_of(network, operators):
    """All tensors that layers of these operators read or write."""
    return {name for layer in network.layers if layer.op in operators for name in (*layer.inputs, layer.output) if name}


def separate_layouts(network):
    """Gives images that have views, and views that are read as images, a second tensor with a copy between the two, so
    that each is either image or plain tensor."""
    bases = {view.base for view in network.views.values()} | _tensors_of(network, ROWS + PLAIN)
    copies, layers = {}, network.layers
    network.layers = []

    def fits(name):
        if network.base(name) in network.constants:  # part of a constant, at an offset that depends on sizes
            return False
        return (
            network.is_dense(name) if len(network.shape(name)) == 2 else name not in network.views and name not in bases
        )

    for layer in layers:
        indices = IMAGES.get(layer.op, ())
        for index in indices:
            name = layer.inputs[index] if index < len(layer.inputs) else None
            if name and not fits(name):
                if name not in copies:
                    copies[name] = network.copied(network.fresh(f"{name}/image"), name)
                layer.inputs[index] = copies[name]
        network.layers.append(layer)
        if indices and not fits(layer.output):
            plain, layer.output = (
                layer.output,
                network.declare(network.fresh(f"{layer.output}/image"), network.shape(layer.output), "float32"),
            )
            copies[plain] = layer.output
            network.layers.append(Layer("Copy", layer.name, [layer.output], plain))
