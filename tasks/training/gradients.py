"""Reverse-mode gradients for the small shipped networks: operators on NumPy arrays that record their backward pass, and
Adam.

A network is a function of a dict of Values to a Value; `gradients(loss)` runs the backward pass. It is plain NumPy in
float32, written for reading and checking rather than speed: it trains networks of some ten thousand weights in a
minute, and tests compare the engine with its forward pass."""

import numpy

EPSILON = 1e-5  # added to variances


class Value:
    """An array (`data`) that is an operator's result or a weight; after `gradients`, `grad` is the loss's gradient by
    it."""

    __slots__ = ("data", "grad", "_sources", "_back")

    def __init__(self, data, sources=(), back=None):
        """`back` maps the gradient by this value to those by `sources`, in order."""
        self.data, self.grad, self._sources, self._back = data, None, sources, back

    @property
    def shape(self):
        return self.data.shape

    def __add__(self, other):
        other = _value(other)
        return Value(self.data + other.data, (self, other), lambda g: (g, g))

    def __sub__(self, other):
        other = _value(other)
        return Value(self.data - other.data, (self, other), lambda g: (g, -g))

    def __mul__(self, other):
        other = _value(other)
        return Value(self.data * other.data, (self, other), lambda g: (g * other.data, g * self.data))

    def __matmul__(self, other):
        return Value(
            self.data @ other.data,
            (self, other),
            lambda g: (g @ other.data.swapaxes(-1, -2), self.data.swapaxes(-1, -2) @ g),
        )

    def reshape(self, *shape):
        return Value(self.data.reshape(shape), (self,), lambda g: (g.reshape(self.shape),))


def _value(given):
    return given if isinstance(given, Value) else Value(numpy.float32(given) if numpy.isscalar(given) else given)


def gradients(loss):
    """Sets `grad` of every Value that the scalar `loss` depends on."""
    order, known = [], set()

    def visit(value):
        if id(value) not in known:
            known.add(id(value))
            for source in value._sources:
                visit(source)
            order.append(value)

    visit(loss)
    for value in order:
        value.grad = None
    loss.grad = numpy.ones_like(loss.data)
    for value in reversed(order):
        if value._back is None:
            continue
        for source, gradient in zip(value._sources, value._back(value.grad)):
            gradient = _summed(gradient, source.shape)
            source.grad = gradient if source.grad is None else source.grad + gradient


def _summed(gradient, shape):
    """The gradient by an operand of `shape` that was broadcast to the gradient's shape: sums over the broadcast
    axes."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    return gradient.sum(axis=tuple(d for d, size in enumerate(shape) if size == 1), keepdims=True).reshape(shape)


def relu(x):
    return clipped(x, numpy.inf)


def clipped(x, limit):
    """`x` clipped to [0, limit]; ReLU6 with 6."""
    return Value(x.data.clip(0, limit), (x,), lambda g: (g * ((x.data > 0) & (x.data < limit)),))


def sigmoid(x):
    result = 0.5 + 0.5 * numpy.tanh(0.5 * x.data)
    return Value(result, (x,), lambda g: (g * result * (1 - result),))


def softmax(x):
    """Softmax over the last axis."""
    result = numpy.exp(x.data - x.data.max(axis=-1, keepdims=True))
    result /= result.sum(axis=-1, keepdims=True)
    return Value(result, (x,), lambda g: (result * (g - (g * result).sum(axis=-1, keepdims=True)),))


def rows(table, indices):
    """The rows of `table` (n, width) at `indices`, an array of any shape."""

    def back(g):
        result = numpy.zeros_like(table.data)
        numpy.add.at(result, indices, g)
        return (result,)

    return Value(table.data[indices], (table,), back)


def joined(*values):
    """Concatenates along the last axis; other axes of size 1 are broadcast."""
    widths = numpy.cumsum([value.shape[-1] for value in values])[:-1]
    shape = numpy.broadcast_shapes(*(value.shape[:-1] for value in values))
    wide = [numpy.broadcast_to(value.data, (*shape, value.shape[-1])) for value in values]
    return Value(numpy.concatenate(wide, axis=-1), values, lambda g: tuple(numpy.split(g, widths, axis=-1)))


def mean(x, axes):
    """The mean over `axes`, which are removed."""
    share = x.data.size // x.data.mean(axis=axes).size
    return Value(
        x.data.mean(axis=axes), (x,), lambda g: (numpy.broadcast_to(numpy.expand_dims(g / share, axes), x.shape),)
    )


def turned(x, order):
    """Permutes the axes."""
    return Value(x.data.transpose(order), (x,), lambda g: (g.transpose(numpy.argsort(order)),))


def convolution(x, weights, stride=1):
    """Convolves images (n, height, width, channels) with kernels (out, channels, k, k), k odd, with zero padding of k
    // 2 pixels."""
    outputs, channels, size, _ = weights.shape
    framed, offsets, high, wide = _walk(x.data, size, stride)
    columns = numpy.concatenate([_at(framed, offset, high, wide, stride) for offset in offsets], axis=3).reshape(
        -1, size * size * channels
    )
    flat = weights.data.transpose(2, 3, 1, 0).reshape(-1, outputs)

    def back(g):
        g = g.reshape(-1, outputs)
        by_offset = (g @ flat.T).reshape(-1, high, wide, size * size, channels)
        by_image = numpy.zeros_like(framed)
        for number, offset in enumerate(offsets):
            _at(by_image, offset, high, wide, stride)[...] += by_offset[:, :, :, number]
        by_weights = (columns.T @ g).reshape(size, size, channels, outputs).transpose(3, 2, 0, 1)
        return _unframed(by_image, size), by_weights

    return Value((columns @ flat).reshape(-1, high, wide, outputs), (x, weights), back)


def depthwise(x, weights, stride=1):
    """The same with one kernel per channel: (channels, 1, k, k)."""
    size = weights.shape[-1]
    framed, offsets, high, wide = _walk(x.data, size, stride)

    def back(g):
        by_image, by_weights = numpy.zeros_like(framed), numpy.zeros_like(weights.data)
        for offset in offsets:
            _at(by_image, offset, high, wide, stride)[...] += g * weights.data[:, 0, *offset]
            by_weights[:, 0, *offset] = (g * _at(framed, offset, high, wide, stride)).sum(axis=(0, 1, 2))
        return _unframed(by_image, size), by_weights

    return Value(
        sum(_at(framed, offset, high, wide, stride) * weights.data[:, 0, *offset] for offset in offsets),
        (x, weights),
        back,
    )


def _walk(images, size, stride):
    """Zero-padded images, the offsets of a kernel's weights, and the result's height and width."""
    frame = size // 2
    framed = numpy.pad(images, ((0, 0), (frame, frame), (frame, frame), (0, 0)))
    high, wide = ((length - size) // stride + 1 for length in framed.shape[1:3])
    return framed, [(down, right) for down in range(size) for right in range(size)], high, wide


def _at(framed, offset, high, wide, stride):
    """The pixels that meet the kernel's weight at `offset`."""
    down, right = offset
    return framed[:, down : down + (high - 1) * stride + 1 : stride, right : right + (wide - 1) * stride + 1 : stride]


def _unframed(images, size):
    frame = size // 2
    return images[:, frame : images.shape[1] - frame, frame : images.shape[2] - frame]


def pooled(x):
    """2 x 2 max pooling of images (n, height, width, channels) of even sizes."""
    count, high, wide, channels = x.shape
    squares = x.data.reshape(count, high // 2, 2, wide // 2, 2, channels)
    result = squares.max(axis=(2, 4))

    def back(g):
        largest = squares == result[:, :, None, :, None]
        return ((largest * (g / largest.sum(axis=(2, 4)))[:, :, None, :, None]).reshape(x.shape).astype(x.data.dtype),)

    return Value(result, (x,), back)


def normalized(x, scale, bias, running, learning):
    """Batch normalization of images by channel, the last axis. `running`: a pair of arrays (channels,), mean and
    variance.

    `learning`: uses the batch's own statistics, and updates `running` with them; otherwise uses `running`.
    """
    average, variance = (x.data.mean(axis=(0, 1, 2)), x.data.var(axis=(0, 1, 2))) if learning else running
    if learning:
        for kept, now in zip(running, (average, variance)):
            kept += numpy.float32(0.05) * (now - kept)
    root = numpy.sqrt(variance + numpy.float32(EPSILON))
    unit = (x.data - average) / root

    def back(g):
        by_scale, by_bias = (g * unit).sum(axis=(0, 1, 2)), g.sum(axis=(0, 1, 2))
        count = x.data.size // len(average)
        return (g - (by_bias + unit * by_scale) / count) * (scale.data / root), by_scale, by_bias

    return Value(unit * scale.data + bias.data, (x, scale, bias), back)


def cross_entropy(scores, classes, smoothing=0.0):
    """The mean loss of `scores` (n, classes) for the true `classes` (n,); `smoothing` is the total target probability
    of all other classes."""
    shares = numpy.exp(scores.data - scores.data.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    count, width = shares.shape
    wanted = numpy.full_like(shares, smoothing / width)
    wanted[numpy.arange(count), classes] += 1 - smoothing
    loss = -(wanted * numpy.log(shares + 1e-12)).sum() / count
    return Value(loss.astype(shares.dtype), (scores,), lambda g: (g * (shares - wanted) / shares.dtype.type(count),))


def initial(random, *shape, inputs):
    """Initial weights that preserve the scale of `inputs` values through a ReLU."""
    return Value((random.standard_normal(shape) * (2 / inputs) ** 0.5).astype("float32"))


class Adam:
    """Adam (Kingma and Ba, ICLR '15) with decoupled weight decay (Loshchilov and Hutter, ICLR '19) on weights with two
    or more dimensions."""

    def __init__(self, weights, decay=0.0):
        """`weights`: a dict of Values, changed in place by `step`."""
        self._weights, self._decay, self._count = list(weights.values()), decay, 0
        self._first = [numpy.zeros_like(one.data) for one in self._weights]
        self._second = [numpy.zeros_like(one.data) for one in self._weights]

    def step(self, loss, rate):
        """One step against the gradients of `loss`."""
        gradients(loss)
        self._count += 1
        rate_now = numpy.float32(rate * (1 - 0.999**self._count) ** 0.5 / (1 - 0.9**self._count))
        for one, first, second in zip(self._weights, self._first, self._second):
            first += numpy.float32(0.1) * (one.grad - first)
            second += numpy.float32(0.001) * (one.grad * one.grad - second)
            if one.data.ndim > 1:
                one.data -= numpy.float32(rate * self._decay) * one.data
            one.data -= rate_now * first / (numpy.sqrt(second) + numpy.float32(1e-8))
