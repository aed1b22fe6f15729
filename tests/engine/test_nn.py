"""vmhost.engine.nn: layers against plain NumPy and finite differences, modules as trees, weights in files, ONNX."""

import json
import re

import numpy
import onnx
import onnxruntime
import pytest

import vmhost.engine.numpy as np
from vmhost.engine import nn, optim, runs
from vmhost.engine.grad import RowGradient, grad, value_and_grad
from vmhost.engine.grad.trees import named
from vmhost.engine.nn.images import convolution

RANDOM = np.random.default_rng(5)
nn.seed(0)  # here, since the generator stays


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test draws the same numbers, whichever tests ran before it."""
    global RANDOM
    RANDOM = np.random.default_rng(5)


def some(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


class Clicks(nn.Module):
    """A small network with the layers of click models."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.hidden = nn.Sequential(nn.Linear(15, 8), nn.ReLU(), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.scales = [np.ones(3, "float32")]

    def __call__(self, ids, numbers):
        vectors = self.table(ids)
        total = np.sum(vectors, axis=1)
        second = np.sum(np.square(total) - np.sum(np.square(vectors), axis=1), axis=-1) * 0.5
        joined = np.concatenate([vectors.reshape(len(ids), -1), numbers * self.scales[0]], axis=1)
        return nn.sigmoid(self.hidden(joined)[:, 0] + second)


def made(number=3):
    nn.seed(number)
    return Clicks()


BATCH = {"ids": RANDOM.integers(0, 50, (16, 3)), "numbers": some(16, 3)}
LABELS = (BATCH["ids"][:, 0] % 2).astype("float32")


def convolved(x, weight, bias, stride, padding, dilation, groups):
    """A convolution by its definition."""
    x = numpy.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    n, _, height, width = x.shape
    out, inner, rows, columns = weight.shape
    high = (height - dilation * (rows - 1) - 1) // stride + 1
    wide = (width - dilation * (columns - 1) - 1) // stride + 1
    result = numpy.zeros((n, out, high, wide))
    for o in range(out):
        first = o // (out // groups) * inner
        for i in range(high):
            for j in range(wide):
                top, left = i * stride, j * stride
                patch = x[
                    :,
                    first : first + inner,
                    top : top + dilation * (rows - 1) + 1 : dilation,
                    left : left + dilation * (columns - 1) + 1 : dilation,
                ]
                result[:, o, i, j] = (patch * weight[o]).sum((1, 2, 3)) + bias[o]
    return result


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2), (1, 1, 1, 4)]
)
def test_convolution_by_its_definition(stride, padding, dilation, groups):
    layer, x = nn.Conv2d(4, 8, 3, stride, padding, dilation, groups), some(2, 4, 7, 6)
    wanted = convolved(*map(numpy.asarray, (x, layer.weight, layer.bias)), stride, padding, dilation, groups)
    assert numpy.allclose(layer(x), wanted, atol=1e-5)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [((3, 3), 1, 1, 1), ((3, 3), 2, 1, 1), ((2, 5), 1, 2, 1), ((3, 2), 1, 0, 2), ((1, 1), 3, 0, 1), ((5, 5), 1, 9, 1)],
)
def test_depthwise_convolution_and_its_gradients_are_those_of_a_whole_one(kernel, stride, padding, dilation, dtype):
    """Beside a convolution whose weights of other channels are zeros, on every backend; planes of many sizes."""
    for height, width in ((7, 7), (9, 33), (20, 6)):
        layer = nn.Conv2d(3, 3, kernel, stride, padding, dilation, groups=3, bias=False)
        weight, x = layer.weight.astype(dtype), np.asarray(some(5, 3, height, width).astype(dtype))
        whole = np.zeros((3, 3, *kernel), dtype)
        for channel in range(3):
            whole[channel, channel] = weight[channel, 0]
        options = {"stride": (stride, stride), "padding": (padding, padding), "dilation": (dilation, dilation)}
        g = np.asarray(some(*convolution(x, whole, **options).shape).astype(dtype))

        def loss(x, weight, groups):
            return (convolution(x, weight, groups=groups, **options) * g).sum()

        found, (of_x, of_weight) = value_and_grad(loss, (0, 1))(x, weight, 3)
        wanted, (whole_x, whole_weight) = value_and_grad(loss, (0, 1))(x, whole, 1)
        close = {"rtol": 1e-4, "atol": 1e-3} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-9}
        assert numpy.allclose(found, wanted, **close) and of_x.dtype == of_weight.dtype == dtype
        assert numpy.allclose(of_x, whole_x, **close)
        assert numpy.allclose(of_weight[:, 0], numpy.asarray(whole_weight)[range(3), range(3)], **close)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("shape", [(5, 3, 7, 7), (4, 2), (1, 3, 1, 2), (40, 2, 333), (2, 3, 4, 5, 6)])
def test_batch_norm_of_numbers_far_from_0_and_its_gradients_are_numpys_of_float64(shape):
    x = RANDOM.normal(300, 2, shape).astype("float32")
    weight, bias, g = some(shape[1]), some(shape[1]), some(*shape)
    axes, apart = (0, *range(2, len(shape))), (1, -1, *[1] * (len(shape) - 2))

    def loss(x, weight, bias):
        layer = nn.BatchNorm(shape[1])
        layer.weight, layer.bias = weight, bias
        return (layer(x) * g).sum()

    _, found = value_and_grad(loss, (0, 1, 2))(np.asarray(x), np.asarray(weight), np.asarray(bias))
    wide_x, wide_g = numpy.asarray(x, "float64"), numpy.asarray(g, "float64")
    centred = wide_x - wide_x.mean(axes, keepdims=True)
    normal = centred / numpy.sqrt((centred * centred).mean(axes, keepdims=True) + 1e-5)
    root = normal.std(axes, keepdims=True) / numpy.maximum(wide_x.std(axes, keepdims=True), 1e-30)
    along = (wide_g * normal).mean(axes, keepdims=True)
    of_x = (wide_g - normal * along - wide_g.mean(axes, keepdims=True)) * root * numpy.reshape(weight, apart)
    wanted = of_x, (wide_g * normal).sum(axes), wide_g.sum(axes)
    for one, other in zip(found, wanted):
        assert one.dtype == "float32" and numpy.allclose(one, other, rtol=1e-3, atol=2e-3)
    layer = nn.BatchNorm(shape[1])
    assert numpy.allclose(layer(np.asarray(x)), normal, atol=1e-3)
    assert numpy.allclose(layer.running_mean, 0.1 * wide_x.mean(axes), rtol=1e-5)


def wide(layer):
    """The layer with weights of float64, for finite differences."""
    layer.update({name: array.astype("float64") for name, array in layer.parameters().items()})
    return layer


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Conv2d(2, 4, 3, 2, 1), (2, 2, 5, 5)),
        (lambda: nn.Conv2d(4, 4, 3, 1, 1, groups=4), (1, 4, 4, 3)),
        (lambda: nn.MaxPool2d(2), (1, 2, 4, 4)),
        (lambda: nn.AvgPool2d(2, 1), (1, 2, 4, 4)),
        (lambda: nn.BatchNorm(3), (6, 3)),
        (lambda: nn.BatchNorm(2), (3, 2, 2, 3)),
        (lambda: nn.BatchNorm(3).eval(), (6, 3)),
        (lambda: nn.LayerNorm(5), (3, 5)),
        (lambda: nn.RMSNorm(5), (3, 5)),
        (lambda: nn.Linear(5, 2), (3, 5)),
    ],
)
def test_layers_against_finite_differences(layer, shape):
    layer = wide(layer())
    x = RANDOM.standard_normal(shape)
    weights = RANDOM.uniform(0.5, 1.5, layer(x).shape)
    started = layer.parameters()

    def loss(x):
        return (layer(x) * weights).sum()

    value, of_weights = nn.value_and_grad(layer, loss)(x)
    gradients = [(grad(loss)(x), x, lambda moved: loss(moved))]
    for name, gradient in of_weights.items():

        def changed(moved, name=name):
            layer.update({**started, name: moved})
            result = loss(x)
            layer.update(started)
            return result

        gradients.append((gradient, started[name], changed))
    for gradient, array, function in gradients:
        for place in range(0, array.size, max(1, array.size // 12)):
            sides = []
            for step in (1e-6, -1e-6):
                moved = array.ravel().copy()
                moved[place] += step
                sides.append(float(function(moved.reshape(array.shape))))
            assert float(gradient.ravel()[place]) == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-6)


def test_batch_norm_follows_the_batches_and_uses_them_after_training():
    layer, x = nn.BatchNorm(2), some(500, 2) * 3 + 1
    for _ in range(200):
        layer(x)
    kept = numpy.asarray(x)
    assert numpy.allclose(layer.running_mean, kept.mean(0), atol=1e-4)
    assert numpy.allclose(layer.running_var, kept.var(0, ddof=1), rtol=1e-4)
    layer.eval()
    assert numpy.allclose(layer(x), (kept - kept.mean(0)) / kept.std(0), atol=1e-2)
    assert set(layer.unfreeze().trainable_parameters()) == {"weight", "bias"}


def test_losses():
    logits, labels = some(6), np.array([0, 1, 1, 0, 1, 0], "float32")
    probabilities = 1 / (1 + numpy.exp(-numpy.asarray(logits, "float64")))
    y = numpy.asarray(labels)
    wanted = -(y * numpy.log(probabilities) + (1 - y) * numpy.log(1 - probabilities))
    assert numpy.allclose(nn.binary_cross_entropy(logits, labels, reduction="none"), wanted, atol=1e-6)
    shown = nn.binary_cross_entropy(nn.sigmoid(logits), labels, with_logits=False)
    assert float(shown) == pytest.approx(wanted.mean(), abs=1e-6)
    huge = np.array([300.0, -300.0], "float32")
    assert grad(lambda x: nn.binary_cross_entropy(x, np.array([0, 1], "float32")))(huge).tolist() == [0.5, -0.5]
    scores = some(4, 3)
    e = numpy.exp(numpy.asarray(scores, "float64"))
    shares = e / e.sum(1, keepdims=True)
    loss = nn.cross_entropy(scores, np.array([2, 0, 1, 1]))
    assert float(loss) == pytest.approx(-numpy.log(shares[range(4), [2, 0, 1, 1]]).mean(), abs=1e-6)
    with pytest.raises(ValueError, match="reduction: 'mean', 'sum' or 'none', got 'avg'"):
        nn.mse_loss(scores, scores, "avg")


def test_losses_refuse_targets_that_do_not_fit():
    column, row = some(4, 1), np.zeros(4, "float32")
    for loss in (nn.mse_loss, nn.l1_loss, nn.binary_cross_entropy):
        for inputs, targets in ((column, row), (row, column), (row, [0, 1]), (row, np.zeros((1, 4)))):
            with pytest.raises(ValueError, match=f"{loss.__name__}: expected targets of the shape of the inputs"):
                loss(inputs, targets)
        assert float(loss(row, [0, 0, 0, 0])) == float(loss(row, 0.0)) == float(loss(row, row))
    scores = some(3, 4)
    for targets, text in (
        ([0, -1, 2], "expected classes from 0 to 3, got -1 at (1,)"),
        ([0, 4, 2], "got 4 at (1,)"),
        ([[0, 1, 2]], "of shape (3,), one for each row of classes, got int64 of shape (1, 3)"),
        ([0.0, 1, 2], "got float64 of shape (3,)"),
        (np.ones((3, 4)), "expected targets as whole numbers"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            nn.cross_entropy(scores, targets)
    assert nn.cross_entropy(np.zeros((2, 4, 5)), np.zeros((2, 5), "uint8"), axis=1, reduction="none").shape == (2, 5)


def test_layers_say_which_inputs_they_expect():
    for layer, x, text in (
        (
            nn.Conv2d(3, 4, 2),
            some(2, 4, 5, 5),
            "expected images of shape (examples, 3, rows, columns), got (2, 4, 5, 5)",
        ),
        (nn.Conv2d(4, 4, 1, groups=2), some(2, 2, 5, 5), "expected images of shape (examples, 4, rows, columns)"),
        (nn.Conv2d(3, 4, 2), some(3, 5, 5), "got (3, 5, 5)"),
        (nn.MaxPool2d(2), some(3, 5, 5), "expected images of shape (examples, channels, rows, columns)"),
        (nn.Linear(3, 2), some(2, 4), "Linear: expected an array whose last dimension is 3, got (2, 4)"),
        (nn.Linear(3, 2), [1.0, 2, 3], "Linear: expected an array whose last dimension is 3, got list"),
        (nn.LayerNorm(3), some(2, 1), "LayerNorm: expected an array whose last dimension is 3"),
        (nn.RMSNorm(3), some(2, 1), "RMSNorm: expected an array whose last dimension is 3"),
        (nn.BatchNorm(3), some(4, 1), "BatchNorm: expected an array of shape (examples, 3, ...), got (4, 1)"),
        (nn.Embedding(3, 2), some(2), "Embedding: expected whole numbers, got float32"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            layer(x)


def test_sigmoid_far_out_has_no_nan():
    far = np.array([-1000.0, 1000.0], "float32")
    assert nn.sigmoid(far).tolist() == [0, 1]
    assert grad(lambda x: nn.sigmoid(x).sum())(far).tolist() == [0, 0]


def test_a_module_is_a_tree_of_arrays():
    clicks = made()
    tree = clicks.parameters()
    assert tree["table"]["weight"].shape == (50, 4) and tree["scales"][0].shape == (3,)
    assert set(tree["hidden"]["layers"][0]) == {"weight", "bias"}
    clicks.freeze().hidden.unfreeze()
    value, gradients = nn.value_and_grad(clicks, lambda: nn.mse_loss(clicks(**BATCH), LABELS))()
    assert (
        set(gradients) == {"table", "hidden", "scales"} and gradients["table"] == {} and gradients["scales"][0] is None
    )
    clicks.unfreeze()
    _, gradients = nn.value_and_grad(clicks, lambda: nn.mse_loss(clicks(**BATCH), LABELS))()
    assert isinstance(gradients["table"]["weight"], RowGradient)
    assert isinstance(clicks.table.weight, np.ndarray)  # nothing traced stays in the model
    with pytest.raises(ValueError, match="Clicks has no parameter 'tabel'"):
        clicks.update({"tabel": {}})


class Nested(nn.Module):
    """Modules and arrays in lists, tuples and dicts of each other."""

    def __init__(self):
        super().__init__()
        self.blocks = [[nn.Linear(2, 2)], [nn.Linear(2, 2), {"deep": (nn.Linear(2, 2), 3)}]]
        self.scales = [[np.ones(2, "float32")], [np.ones(2, "float32")]]
        self.steps, self.used, self.name = np.zeros(1, "int64"), [np.array([True, False])], ["none"]

    def __call__(self, x):
        for layer in (self.blocks[0][0], self.blocks[1][0], self.blocks[1][1]["deep"][0]):
            x = layer(x)
        return x * self.scales[0][0] * self.scales[1][0]


def test_lists_in_lists_are_part_of_a_module(tmp_path):
    nn.seed(0)
    net, x, seen = Nested(), np.ones((3, 2), "float32"), []
    names = [
        *(f"blocks.{at}.{one}" for at in ("0.0", "1.0", "1.1.deep.0") for one in ("weight", "bias")),
        *("scales.0.0", "scales.1.0", "steps", "used.0"),
    ]

    def loss():
        seen.extend(named(net.parameters()))
        return net(x).sum()

    _, gradients = nn.value_and_grad(net, loss)()
    assert seen == names and set(names) == set(named(net.parameters()))
    assert set(named(gradients)) == set(names) - {"steps", "used.0"}
    before = {name: array.tolist() for name, array in named(net.parameters()).items()}
    optim.SGD(0.1).update(net, gradients)
    after = {name: array.tolist() for name, array in named(net.parameters()).items()}
    assert {name for name in names if before[name] != after[name]} == set(names) - {"steps", "used.0"}
    assert type(net.blocks[1][1]["deep"]) is tuple and net.blocks[1][1]["deep"][1] == 3
    assert {name for name, _ in net.named_modules()} == {"", "blocks.0.0", "blocks.1.0", "blocks.1.1.deep.0"}
    net.save_weights(tmp_path / "w")
    other = Nested().load_weights(tmp_path / "w")
    assert (other(x) == net(x)).all()
    net.freeze()
    assert not named(net.trainable_parameters())


def test_a_modules_own_freeze_unfreeze_and_train_are_asked():
    class Still(nn.BatchNorm):
        def train(self, mode=True):
            return super().train(False)

        def freeze(self, *, recurse=True, keys=None):
            return self if keys is None else super().freeze(recurse=recurse, keys=keys)

    norm, still = nn.BatchNorm(2), Still(2)
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(norm), still)
    net.freeze().unfreeze()
    assert set(norm.trainable_parameters()) == {"weight", "bias"}
    assert set(net.freeze().trainable_parameters()["layers"][2]) == {"weight", "bias"}
    assert not norm.trainable_parameters()
    net.train()
    assert norm.training and not still.training
    norm.eval()
    nn.export(net, {"x": some(2, 2)})
    assert net.training and not norm.training


def test_an_array_with_several_names_stays_one_in_files(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(2, 2)
            self.two, self.weight = self.one, self.one.weight

    net, path = Tied(), tmp_path / "w"
    net.save_weights(path)
    wanted = net.weight.tolist()
    runs.put_state(runs.state_of(model=net), model=net)
    assert net.weight is net.one.weight is net.two.weight
    other = Tied().load_weights(path)
    assert other.weight is other.one.weight is other.two.weight and other.weight.tolist() == wanted
    arrays = nn.load_arrays(path)
    nn.save_arrays(path, {"one.weight": arrays["one.weight"], "one.bias": arrays["one.bias"]})
    assert Tied().load_weights(path).weight.tolist() == wanted
    nn.save_arrays(path, arrays | {"weight": np.zeros((2, 2), "float32")})
    before = other.parameters()
    with pytest.raises(ValueError, match=r"(one|two).weight and weight differ; they are one array of the network"):
        other.load_weights(path)
    assert other.weight is before["weight"]


def test_names_that_meet_are_refused_where_they_are_made(tmp_path):
    net = nn.Module()
    net.a, net.b = {"x.y": np.ones(1), "x": {"y": np.zeros(1)}}, np.ones(1)
    for call in (
        lambda: net.save_weights(tmp_path / "w"),
        lambda: runs.state_of(model=net),
        lambda: nn.export(net, {"x": some(2, 2)}),
    ):
        with pytest.raises(ValueError, match="a.x.y: two arrays have this name"):
            call()
    with pytest.raises(ValueError, match="'__metadata__': an array in a safetensors file"):
        nn.save_arrays(tmp_path / "w", {"__metadata__": np.ones(1)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3)])
def test_arrays_of_any_shape_come_back(tmp_path, shape):
    path, array = tmp_path / "w", np.asarray(some(*shape))
    nn.save_arrays(path, {"a": array, "strided": np.transpose(array)})
    again = nn.load_arrays(path)
    assert again["a"].shape == shape and again["a"].tolist() == array.tolist()
    assert again["strided"].tolist() == np.transpose(array).tolist()
    net = nn.Module()
    net.scale = array
    net.save_weights(path)
    assert net.load_weights(path).scale.tolist() == array.tolist()


def test_an_error_in_the_loss_leaves_the_model_as_it_was():
    clicks = made()
    with pytest.raises(ZeroDivisionError):
        nn.value_and_grad(clicks, lambda: clicks(**BATCH).sum() / (1 // 0))()
    assert isinstance(clicks.table.weight, np.ndarray)


def test_dropout_only_while_training():
    clicks = made()
    layer, x = nn.Dropout(0.25), np.ones(10_000)
    kept = layer(x)
    assert set(kept.tolist()) == {0, 1 / 0.75} and 0.72 < float((kept > 0).mean()) < 0.78
    assert layer.eval()(x) is x
    assert (clicks.eval()(**BATCH) == clicks(**BATCH)).all()


def test_weights_in_a_file(tmp_path):
    clicks = made()
    path = tmp_path / "weights.safetensors"
    clicks.eval().save_weights(path)
    other = made(99).eval()
    assert not (other(**BATCH) == clicks(**BATCH)).all()
    other.load_weights(path)
    assert (other(**BATCH) == clicks(**BATCH)).all()
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["table.weight"] == {
        "dtype": "F32",
        "shape": [50, 4],
        "data_offsets": header["table.weight"]["data_offsets"],
    }
    assert [one.name for one in tmp_path.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_cut_file_is_refused_and_nothing_is_changed(tmp_path, cut):
    clicks = made()
    path = tmp_path / "weights.safetensors"
    clicks.save_weights(path)
    path.write_bytes(path.read_bytes()[:cut])
    before = clicks.table.weight.tolist()
    with pytest.raises(ValueError, match=r"weights\.safetensors: no (valid )?safetensors file"):
        clicks.load_weights(path)
    assert clicks.table.weight.tolist() == before


def test_weights_of_another_network_are_refused(tmp_path):
    clicks = made()
    path = tmp_path / "w.safetensors"
    nn.Linear(2, 2).save_weights(path)
    with pytest.raises(ValueError, match=re.escape("missing ['hidden.layers.0.bias'")):
        clicks.load_weights(path)
    nn.Linear(2, 3).save_weights(path)
    with pytest.raises(ValueError, match=re.escape("bias has shape (3,), the network's has (2,)")):
        nn.Linear(2, 2).load_weights(path)
    nn.save_arrays(path, {"weight": np.ones(2)})
    path.write_bytes(path.read_bytes().replace(b'"shape":[2]', b'"shape":[9]'))
    with pytest.raises(ValueError, match="do not hold"):
        nn.load_arrays(path)


def test_exported_networks_run_equally_in_onnx_runtime_at_any_batch():
    clicks = made()
    session = onnxruntime.InferenceSession(nn.export(clicks, BATCH))
    assert [one.name for one in session.get_inputs()] == ["ids", "numbers"]
    clicks.eval()
    for count in (1, 2, 16):
        part = {name: array[:count] for name, array in BATCH.items()}
        [answer] = session.run(None, {name: numpy.asarray(array) for name, array in part.items()})
        assert numpy.allclose(answer, clicks(**part), atol=1e-5)


def test_functions_of_arrays_export():
    nn.seed(2)
    padded = lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=0.5)
    model = nn.Sequential(
        nn.Linear(6, 5), nn.softmax, lambda x: np.log1p(x) * np.maximum(x, 0.1) - x[..., :1], nn.gelu, padded
    )
    x = some(3, 6)
    [answer] = onnxruntime.InferenceSession(nn.export(model, {"x": x})).run(None, {"x": numpy.asarray(x)})
    assert numpy.allclose(answer, model(x), atol=1e-6)


def test_an_image_network_exports_as_the_operators_of_its_layers():
    nn.seed(3)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        nn.BatchNorm(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, (3, 1), stride=(2, 1), padding=(1, 0), groups=8, bias=False),
        nn.Conv2d(8, 6, 3, dilation=2, padding=2, groups=2),
        nn.AvgPool2d(3, stride=2),
        lambda x: x.reshape(len(x), -1),
    )
    images = some(5, 4, 14, 15)
    model(images)  # in training: moves the running mean and variance
    data = nn.export(model, {"x": images})
    model.eval()
    session = onnxruntime.InferenceSession(data)
    for count in (1, 5):
        [answer] = session.run(None, {"x": numpy.asarray(images[:count])})
        assert numpy.allclose(answer, model(images[:count]), atol=1e-5)
    kinds = [node.op_type for node in onnx.load_from_string(data).graph.node]
    assert kinds == [
        *("Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "Conv", "AveragePool", "Reshape", "Identity"),
    ]


def test_what_cannot_be_exported_is_said():
    class Sorts(nn.Module):
        def __call__(self, x):
            return np.sort(x)

    with pytest.raises(nn.ExportError, match="sort: cannot be written as ONNX"):
        nn.export(Sorts(), {"x": some(2, 3)})
    with pytest.raises(nn.ExportError, match="at least two"):
        nn.export(nn.ReLU(), {"x": some(1, 3)})


def test_auc_counts_pairs():
    labels, scores = [0, 0, 1, 1, 1], [0.1, 0.4, 0.4, 0.8, 0.05]
    pairs = [(a > b) + 0.5 * (a == b) for a, la in zip(scores, labels) if la for b, lb in zip(scores, labels) if not lb]
    assert nn.auc(labels, scores) == pytest.approx(sum(pairs) / len(pairs))
    with pytest.raises(ValueError, match="both labels"):
        nn.auc([1, 1], [0.1, 0.2])
