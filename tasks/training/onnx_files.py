"""Reads and writes trained networks as ONNX files. Needs the package `onnx`."""

import numpy


class Graph:
    """An ONNX graph, built node by node; `add` returns the name of the node's output."""

    def __init__(self, name, weights):
        """`weights`: names to arrays, which nodes refer to by name."""
        from onnx import numpy_helper

        self._name, self._nodes, self._inputs, self._outputs = name, [], [], []
        self._constants = [
            numpy_helper.from_array(numpy.ascontiguousarray(values), key) for key, values in weights.items()
        ]

    def input(self, name, shape, dtype="float32"):
        self._inputs.append(self._port(name, shape, dtype))
        return name

    def output(self, name, shape):
        self._outputs.append(self._port(name, shape, "float32"))

    def constant(self, name, values, dtype):
        from onnx import numpy_helper

        self._constants.append(numpy_helper.from_array(numpy.asarray(values, dtype), name))
        return name

    def add(self, operator, output, *inputs, **attributes):
        from onnx import helper

        self._nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def to_bytes(self, remark):
        """The file's bytes; `remark` is stored in it."""
        from onnx import checker, helper

        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="vmhost", doc_string=remark
        )
        checker.check_model(model, full_check=True)
        return model.SerializeToString(deterministic=True)

    @staticmethod
    def _port(name, shape, dtype):
        from onnx import helper

        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype)), shape)


def read_weights(data):
    """The constants of an ONNX file (bytes), names to arrays, and its remark."""
    from onnx import load_model_from_string, numpy_helper

    model = load_model_from_string(data)
    return {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}, model.doc_string
