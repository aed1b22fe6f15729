"""Makes the models of this folder, as transformers and PyTorch export them, with random weights: run by hand where
torch, transformers and onnxscript are installed (made with torch 2.13.0, transformers 5.24.0, onnx 1.23.2).

    python tests/engine/exported/export.py

NAME.onnx comes from the exporter that follows the code (dynamo), NAME-traced.onnx from the older one that traces it."""

import logging
import warnings
from pathlib import Path

import onnx
import torch
import transformers

HERE = Path(__file__).resolve().parent
SIZES = {"vocab_size": 40, "max_position_embeddings": 32}
BERT = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
MODELS = {
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(dim=16, hidden_dim=24, n_layers=1, n_heads=2, **SIZES)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=1, **BERT, **SIZES)),
}


class _First(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        options = {"use_cache": False} if hasattr(self.model.config, "use_cache") else {}
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **options)[0]


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["y"]}
    for name, make in MODELS.items():
        torch.manual_seed(1)
        model, given = _First(make()).eval(), (torch.ones(2, 7, dtype=torch.int64),) * 2
        axes = {0: "batch", 1: "sequence"}
        traced = HERE / f"{name}-traced.onnx"
        torch.onnx.export(
            model,
            given,
            traced,
            dynamo=False,
            opset_version=17,
            **names,
            dynamic_axes={key: axes for keys in names.values() for key in keys},
        )
        dynamic = dict.fromkeys(range(2), torch.export.Dim.DYNAMIC)
        followed = HERE / f"{name}.onnx"
        torch.onnx.export(
            model,
            given,
            followed,
            dynamo=True,
            external_data=False,
            verbose=False,
            dynamic_shapes=(dynamic,) * 2,
            **names,
        )
        for path in (traced, followed):
            made = onnx.load(path)
            for item in (*made.graph.node, *made.graph.value_info, *made.graph.input, *made.graph.output, made.graph):
                item.ClearField("metadata_props")  # stack traces, with paths of the machine
                item.ClearField("doc_string")
            made.ClearField("metadata_props")
            del made.functions[:]
            del made.graph.value_info[:]
            onnx.checker.check_model(made)
            path.write_bytes(made.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
