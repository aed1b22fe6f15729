"""Models with subgraphs: a decoder that loops over its own words (Loop), as exported by torch.jit.script; a recurrence
as Scan, as written by converters of other frameworks; normalization that depends on the row length (If); a chain of
tensors in a sequence."""

import numpy


def _model(text, weights):
    """The ModelProto of ONNX's text and arrays by name."""
    from onnx import numpy_helper, parser

    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 17]>\n' + text)
    model.graph.initializer.extend(
        numpy_helper.from_array(numpy.asarray(values), name) for name, values in weights.items()
    )
    return model


def _weights(random, *shape):
    return (random.standard_normal(shape) * shape[0] ** -0.5).astype("float32")


def decoder_loop(random, words=24, vocabulary=2000, width=256, batch=4):
    """A GRU cell with attention over an encoder's output, taking the likeliest word each time, `words` times."""
    w = {
        "table": _weights(random, vocabulary, width),
        "wi": _weights(random, 2 * width, 3 * width),
        "wh": _weights(random, width, 3 * width),
        "bias": _weights(random, 3 * width),
        "wo": _weights(random, width, vocabulary),
        "passes": numpy.int64(words),
        "goes_on": numpy.array(True),
        "first": numpy.ones(batch, "int64"),
        "one": numpy.float32(1),
        "scale": numpy.float32(width**-0.5),
        "axis": numpy.int64([1]),
    }
    text = f"""
        decoder (float[{batch}, 20, {width}] memory, float[{batch}, {width}] state)
            => (float[{batch}, {width}] last, float[{words}, {batch}, {vocabulary}] scores,
                int64[{words}, {batch}] said)
        {{
            keys = Transpose <perm = [0, 2, 1]> (memory)
            last, word, scores, said = Loop <body = step (int64 pass, bool goes,
                float[{batch}, {width}] h, int64[{batch}] before) =>
                (bool goes_out, float[{batch}, {width}] h_new, int64[{batch}] next,
                 float[{batch}, {vocabulary}] score, int64[{batch}] told) {{
                goes_out = Identity(goes)
                query = Unsqueeze(h, axis)
                fits = MatMul(query, keys)
                scaled = Mul(fits, scale)
                weights = Softmax <axis = -1> (scaled)
                seen = MatMul(weights, memory)
                context = Squeeze(seen, axis)
                x = Gather(table, before)
                both = Concat <axis = -1> (x, context)
                i = MatMul(both, wi)
                ib = Add(i, bias)
                g = MatMul(h, wh)
                ir, iz, ic = Split <axis = -1> (ib)
                gr, gz, gc = Split <axis = -1> (g)
                rs = Add(ir, gr)
                r = Sigmoid(rs)
                zs = Add(iz, gz)
                z = Sigmoid(zs)
                rg = Mul(r, gc)
                cs = Add(ic, rg)
                c = Tanh(cs)
                zi = Sub(one, z)
                new = Mul(zi, c)
                old = Mul(z, h)
                h_new = Add(new, old)
                score = MatMul(h_new, wo)
                next = ArgMax <axis = -1, keepdims = 0> (score)
                told = Identity(next)
            }}> (passes, goes_on, state, first)
        }}"""
    given = {
        "memory": random.standard_normal((batch, 20, width)).astype("float32"),
        "state": random.standard_normal((batch, width)).astype("float32"),
    }
    return _model(text, w), given


def scan_lstm(random, times=32, batch=8, inputs=64, hidden=128):
    """An LSTM in both directions, the second with scan_input_directions."""
    w, lines = {}, []
    for name, way in (("a", 0), ("b", 1)):
        w |= {
            f"w{name}": _weights(random, inputs, 4 * hidden),
            f"r{name}": _weights(random, hidden, 4 * hidden),
            f"bias{name}": _weights(random, 4 * hidden),
        }
        lines.append(f"""
            h{name}, c{name}, y{name} = Scan <num_scan_inputs = 1, scan_input_directions = [{way}],
                scan_output_directions = [{way}],
                body = cell{name} (float[{batch}, {hidden}] h, float[{batch}, {hidden}] c, float[{batch}, {inputs}] x)
                => (float[{batch}, {hidden}] h_new, float[{batch}, {hidden}] c_new, float[{batch}, {hidden}] y) {{
                xi = MatMul(x, w{name})
                hi = MatMul(h, r{name})
                both = Add(xi, hi)
                gates = Add(both, bias{name})
                i, o, f, g = Split <axis = -1> (gates)
                si = Sigmoid(i)
                so = Sigmoid(o)
                sf = Sigmoid(f)
                tg = Tanh(g)
                kept = Mul(sf, c)
                put = Mul(si, tg)
                c_new = Add(kept, put)
                tc = Tanh(c_new)
                h_new = Mul(so, tc)
                y = Identity(h_new)
            }}> (zeros, zeros, x)""")
    w["zeros"] = numpy.zeros((batch, hidden), "float32")
    text = f"""
        recurrence (float[{times}, {batch}, {inputs}] x) => (float[{times}, {batch}, {2 * hidden}] y)
        {{ {"".join(lines)}
            y = Concat <axis = -1> (ya, yb)
        }}"""
    return _model(text, w), {"x": random.standard_normal((times, batch, inputs)).astype("float32")}


def branch_on_size(random, rows=16, length=48, width=256):
    """Any number of rows: long inputs are normalized by their mean, short ones are not."""
    w = {
        "w": _weights(random, width, width),
        "limit": numpy.int64(32),
        "place": numpy.int64(1),
        "low": numpy.float32(0.5),
    }
    text = f"""
        branch (float[batch, length, {width}] x) => (float[batch, length, {width}] y)
        {{
            shape = Shape(x)
            size = Gather(shape, place)
            long = Greater(size, limit)
            h = MatMul(x, w)
            y = If (long) <
                then_branch = long_ones () => (float[batch, length, {width}] a) {{
                    mean = ReduceMean <axes = [1]> (h)
                    off = Sub(h, mean)
                    a = Tanh(off)
                }},
                else_branch = short_ones () => (float[batch, length, {width}] b) {{
                    half = Mul(h, low)
                    b = Relu(half)
                }}>
        }}"""
    return _model(text, w), {"x": random.standard_normal((rows, length, width)).astype("float32")}


def early_exit(random, rows=32, width=256, layers=6):
    """Layers until the answer changes little, up to a maximum: a Loop whose end is known only at run time."""
    w = {
        "w": _weights(random, width, width),
        "passes": numpy.int64(layers),
        "goes": numpy.array(True),
        "least": numpy.float32(0.12),
    }
    text = f"""
        exit (float[{rows}, {width}] x) => (float[{rows}, {width}] y, int64 n)
        {{
            none = Constant <value = int64 {{0}}> ()
            y, n = Loop (passes, goes, x, none) <body = layer (int64 pass, bool on, float[{rows}, {width}] h, int64 m)
                => (bool goes_on, float[{rows}, {width}] h_new, int64 m_new) {{
                one = Constant <value = int64 {{1}}> ()
                p = MatMul(h, w)
                h_new = Tanh(p)
                apart = Sub(h_new, h)
                far = Abs(apart)
                most = ReduceMean <keepdims = 0> (far)
                goes_on = Greater(most, least)
                m_new = Add(m, one)
            }}>
        }}"""
    return _model(text, w), {"x": random.standard_normal((rows, width)).astype("float32")}


def sequence_of_views(random, rows=16, width=256, views=4):
    """A tensor split into parts, each through a layer with the same weights, and concatenated again."""
    w = {"w": _weights(random, width // views, width // views), "each": numpy.int64(width // views)}
    text = f"""
        views (float[{rows}, {width}] x) => (float[{rows}, {width}] y)
        {{
            parts = SplitToSequence <axis = 1> (x, each)
            made = SequenceMap (parts) <body = layer (float[{rows}, {width // views}] p)
                => (float[{rows}, {width // views}] q) {{
                m = MatMul(p, w)
                q = Tanh(m)
            }}>
            y = ConcatFromSequence <axis = 1> (made)
        }}"""
    return _model(text, w), {"x": random.standard_normal((rows, width)).astype("float32")}


MODELS = {
    function.__name__: function for function in (decoder_loop, scan_lstm, branch_on_size, early_exit, sequence_of_views)
}
SMALL = {
    "decoder_loop": {"words": 5, "vocabulary": 50, "width": 16, "batch": 2},
    "scan_lstm": {"times": 5, "batch": 2, "inputs": 8, "hidden": 16},
    "branch_on_size": {"rows": 2, "width": 16},
    "early_exit": {"rows": 4, "width": 16},
    "sequence_of_views": {"rows": 3, "width": 32},
}
