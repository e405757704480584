"""Export eight networks by both exporters of torch, with their weights left out.

``python tests/export_networks.py`` writes tests/workload/onnx/exports.zip, which the tests compare
with the zoo; it needs the extra "exports".
"""

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import onnx
import torch
import torchvision
import transformers
from transformers import masking_utils

ARCHIVE = Path(__file__).parent / "workload" / "onnx" / "exports.zip"
KEPT_ELEMENTS = 4096
VISION = ("resnet50", "efficientnet_b0", "mobilenet_v3_large", "vit_b_16", "swin_t")
FREE = {0: "batch", 1: "sequence"}


class Text(torch.nn.Module):
    """A transformer that takes its inputs by place and hands back tensors."""

    def __init__(self, model: torch.nn.Module, names: list[str], results: int) -> None:
        super().__init__()
        self.model, self.names, self.results = model.eval(), names, results

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(self.names, inputs, strict=True))
        return self.model(**given, return_dict=True).to_tuple()[: self.results]


def networks() -> dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor]]]:
    """Return modules with one example of each input, by the names of the files."""
    image = {"x": torch.zeros(2, 3, 224, 224)}
    made = {n: (torchvision.models.get_model(n), image) for n in (*VISION, "convnext_tiny")}
    ones = torch.ones(2, 16, dtype=torch.int64)
    words = {"input_ids": ones, "attention_mask": ones, "token_type_ids": ones}
    bert = transformers.BertForQuestionAnswering(transformers.BertConfig())
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    made["bert_base_squad"] = Text(bert, list(words), 2), words
    made["gpt2"] = Text(gpt2, list(words)[:2], 1), dict(list(words.items())[:2])
    return made


def _broadcast_mask(
    batch_size: int,
    cache_position: torch.Tensor,
    kv_length: int,
    mask_function: Any,
    attention_mask: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Make the mask of transformers without vmap, which tracing cannot follow; optimum does too."""
    keys, items = torch.arange(kv_length), torch.arange(batch_size)
    heads = torch.zeros(1, dtype=torch.int64)
    mask = mask_function(
        items[:, None, None, None], heads[:, None, None], cache_position[:, None], keys
    )
    if attention_mask is not None:
        mask = mask & attention_mask[:, None, None, :].bool()
    return mask.expand(batch_size, -1, -1, -1)


def export(module: torch.nn.Module, inputs: dict[str, torch.Tensor], *, dynamo: bool) -> bytes:
    """Return the file of one exporter."""
    axes = {name: {0: "batch"} if value.ndim > 2 else FREE for name, value in inputs.items()}
    free = {name: dict.fromkeys(one, torch.export.Dim.DYNAMIC) for name, one in axes.items()}
    file = io.BytesIO()
    if dynamo:
        shapes = tuple(free.values())
        shapes = (shapes,) if isinstance(module, Text) else shapes
        torch.onnx.export(
            module, tuple(inputs.values()), input_names=list(inputs), dynamic_shapes=shapes
        ).save(file)
    else:
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            file,
            input_names=list(inputs),
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    return stripped(onnx.load_from_string(file.getvalue()))


def stripped(model: onnx.ModelProto) -> bytes:
    """Return a file without large weights and without what exporters note about their source."""
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > 4 * KEPT_ELEMENTS:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="absent.bin")
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    return model.SerializeToString()


def main(wanted: list[str]) -> None:
    """Write the archive, or only the named networks into it."""
    torch.backends.mha.set_fastpath_enabled(False)
    masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping["sdpa"] = _broadcast_mask
    torch.set_grad_enabled(False)
    with zipfile.ZipFile(ARCHIVE, "a", zipfile.ZIP_LZMA) as archive:
        for name, (module, inputs) in networks().items():
            # Every one another number: exporters merge weights that are equal and drop zeros.
            for number, value in enumerate((*module.parameters(), *module.buffers())):
                if value.is_floating_point():
                    value.fill_(0.5 + number / 1000)
            for dynamo in (False, True):
                if not wanted or name in wanted:
                    file = f"{name}.{'dynamo' if dynamo else 'torchscript'}.onnx"
                    archive.writestr(file, export(module.eval(), inputs, dynamo=dynamo))


if __name__ == "__main__":
    main(sys.argv[1:])
