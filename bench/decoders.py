"""A decoder of 100 million parameters like Llama (RMSNorm, rotary positions, grouped queries, a gated network), as ONNX
with its key-value cache as inputs and outputs, and the contenders that generate tokens with it.

As a program it is one process that generates tokens and prints a JSON object: python -m bench.decoders PEER FOLDER
TOKENS CALLERS."""

import json
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy

LAYERS, WIDTH, HEADS, GROUPS, HIDDEN, VOCABULARY, LONGEST = 12, 768, 12, 4, 2048, 16000, 512
PROMPT = 32
TASK = Path(__file__).parent / "tasks" / "decoder"


def network(seed=0):
    """The ModelProto in float32: 101 million parameters."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = numpy.random.default_rng(seed)
    nodes, constants = [], []
    size = WIDTH // HEADS

    def constant(name, values):
        constants.append(numpy_helper.from_array(values, name))
        return name

    def weights(name, rows, columns):
        return constant(name, (random.standard_normal((rows, columns)) / numpy.sqrt(rows)).astype("float32"))

    def add(op, inputs, outputs, domain="", **attributes):
        nodes.append(helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", domain=domain, **attributes))
        return outputs[0]

    def normalized(x, name):
        gain = constant(f"{name}_gain", numpy.ones(WIDTH, "float32"))
        return add("SimplifiedLayerNormalization", [x, gain], [name], epsilon=1e-5)

    angles = numpy.outer(numpy.arange(LONGEST), 10000.0 ** (-numpy.arange(0, size, 2) / size))
    cosines, sines = (constant(n, f(angles).astype("float32")) for n, f in (("cos", numpy.cos), ("sin", numpy.sin)))
    one = constant("one", numpy.array([1], "int64"))
    add("ReduceSum", ["attention_mask", one], ["seen"], keepdims=0)
    add("Sub", ["seen", one], ["last"])
    add("Cast", ["last"], ["lengths"], to=TensorProto.INT32)
    add("Shape", ["attention_mask"], ["mask_shape"])
    add("Gather", ["mask_shape", constant("place", numpy.array(1, "int64"))], ["whole"], axis=0)
    add("Cast", ["whole"], ["total"], to=TensorProto.INT32)
    x = add("Gather", [weights("embedding", VOCABULARY, WIDTH), "input_ids"], ["x"])
    inputs, outputs = [], []
    for i in range(LAYERS):
        h = normalized(x, f"h{i}")
        q, k, v = (
            add("MatMul", [h, weights(f"{n}{i}_w", WIDTH, width)], [f"{n}{i}"])
            for n, width in (("q", WIDTH), ("k", GROUPS * size), ("v", GROUPS * size))
        )
        past = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
        present = [f"present.{i}.{kind}" for kind in ("key", "value")]
        add(
            "GroupQueryAttention", [q, k, v, *past, "lengths", "total", cosines, sines], [f"a{i}", *present],
            "com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
        )  # fmt: skip
        inputs += [helper.make_tensor_value_info(n, 1, ["batch", GROUPS, "past", size]) for n in past]
        outputs += [helper.make_tensor_value_info(n, 1, ["batch", GROUPS, "total", size]) for n in present]
        x = add("Add", [x, add("MatMul", [f"a{i}", weights(f"o{i}_w", WIDTH, WIDTH)], [f"o{i}"])], [f"y{i}"])
        h = normalized(x, f"g{i}")
        gate, up = (add("MatMul", [h, weights(f"{n}{i}_w", WIDTH, HIDDEN)], [f"{n}{i}"]) for n in ("gate", "up"))
        gate = add("Mul", [gate, add("Sigmoid", [gate], [f"s{i}"])], [f"silu{i}"])
        h = add("Mul", [gate, up], [f"wide{i}"])
        x = add("Add", [x, add("MatMul", [h, weights(f"down{i}_w", HIDDEN, WIDTH)], [f"down{i}"])], [f"z{i}"])
    add("MatMul", [normalized(x, "end"), weights("head_w", WIDTH, VOCABULARY)], ["logits"])
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "rows"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        *inputs,
    ]
    outputs = [helper.make_tensor_value_info("logits", 1, ["batch", "rows", VOCABULARY]), *outputs]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, constants)
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


def write(folder, bits):
    """Writes model.onnx with weights of `bits` bits, decoder.vmb and genai_config.json to `folder`; returns the number
    of parameters."""
    import onnx

    from vmhost.compiler import compile_folder
    from vmhost.engine import quantize
    from vmhost.engine.onnx import caches

    model = network()
    count = sum(int(numpy.prod(each.dims)) for each in model.graph.initializer)
    onnx.save(model, folder / "float32.onnx")
    graph = quantize.ready(folder / "float32.onnx")
    narrow = quantize.with_narrow_weights(graph, bits)
    for node in narrow.graph.node:
        if node.op_type == "MatMulNBits":  # as GenAI's own builder: 8-bit accumulation
            node.attribute.append(onnx.helper.make_attribute("accuracy_level", 4))
    data = narrow.SerializeToString()
    (folder / "float32.onnx").unlink()
    (folder / "model.onnx").write_bytes(data)
    task = folder / "task"
    shutil.copytree(TASK, task, dirs_exist_ok=True)
    (task / "decoder.onnx").write_bytes(caches.with_capacity(data, ("past", "total")))
    (folder / "decoder.vmb").write_bytes(compile_folder(task).to_bytes())
    names = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    made = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    decoder = {
        "session_options": {"log_id": "bench", "provider_options": [], "intra_op_num_threads": 1},
        "filename": "model.onnx", "head_size": WIDTH // HEADS, "hidden_size": WIDTH, "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS, "num_key_value_heads": GROUPS,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **names},
        "outputs": {"logits": "logits", **made},
    }  # fmt: skip
    config = {
        "model": {"bos_token_id": 1, "context_length": LONGEST, "decoder": decoder, "eos_token_id": VOCABULARY - 1,
                  "pad_token_id": 0, "type": "llama", "vocab_size": VOCABULARY},
        "search": {"do_sample": False, "max_length": LONGEST, "past_present_share_buffer": True},
    }  # fmt: skip
    (folder / "genai_config.json").write_text(json.dumps(config))
    return count


def ours(folder, tokens, callers):
    """For as many VMs as callers, one call each: the time from the end of the first prompt to the end of the last call,
    and the tokens."""
    import vmhost

    policy = vmhost.Policy(max_vms=callers, cores=callers)
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        task = host.load(folder / "decoder.vmb")
        warm = {"prompt": [1], "tokens": 1}
        for future in [task.submit(warm) for _ in range(callers)]:
            future.result()
        request = {"prompt": list(range(1, PROMPT + 1)), "tokens": tokens}
        results = [future.result() for future in [task.submit(request) for _ in range(callers)]]
    return min(one["began"] for one in results), max(one["done"] for one in results), results[0]["made"]


def genai(folder, tokens, callers):
    """The same for threads with GenAI."""
    results, all_there = [], threading.Barrier(callers)
    threads = [
        threading.Thread(target=lambda: results.append(_by_genai(folder, tokens, all_there.wait)))
        for _ in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(began for began, _, _ in results), max(done for _, done, _ in results), results[0][2]


def _by_genai(folder, tokens, ready):
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=PROMPT + tokens + 2, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(numpy.arange(1, PROMPT + 1, dtype="int32"))
    generator.generate_next_token()
    made = [int(generator.get_next_tokens()[0])]
    ready()
    began = time.perf_counter()
    for _ in range(tokens):
        generator.generate_next_token()
        made.append(int(generator.get_next_tokens()[0]))
    return began, time.perf_counter(), made


def main(peer, folder, tokens, callers):
    tokens, callers = int(tokens), int(callers)
    began, done, made = {"ours": ours, "genai": genai}[peer](Path(folder), tokens, callers)
    print(json.dumps({"tokens_per_s": callers * tokens / (done - began), "made": made}))


if __name__ == "__main__":
    main(*sys.argv[1:])
