"""Known networks, built exactly as their published definitions.

>>> from ipusim.workload import zoo
>>> zoo.load("ResNet 50").graph(micro_batch=1).macs
4089184256
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ipusim.errors import resolve_name
from ipusim.workload.model import Model
from ipusim.workload.zoo.graphs.cluster_gcn import (
    cluster_gcn_arxiv,
    cluster_gcn_mag,
    cluster_gcn_ppi,
    cluster_gcn_products,
    cluster_gcn_reddit,
)
from ipusim.workload.zoo.graphs.gin import gin_molhiv
from ipusim.workload.zoo.graphs.schnet import schnet
from ipusim.workload.zoo.graphs.tgn import tgn_pytorch, tgn_tensorflow
from ipusim.workload.zoo.graphs.transe import transe_256
from ipusim.workload.zoo.language import bert, gpt2, group_bert
from ipusim.workload.zoo.language.bert import bert_base_squad, bert_large_squad
from ipusim.workload.zoo.language.gpt2 import gpt2_large, gpt2_medium, gpt2_small
from ipusim.workload.zoo.science.braggnn import braggnn, braggnn_prepared, braggnn_scaled
from ipusim.workload.zoo.science.cookienetae import cookienetae
from ipusim.workload.zoo.science.mcmc import mcmc_bnn
from ipusim.workload.zoo.science.uno import uno
from ipusim.workload.zoo.science.weather_mlp import weather_mlp
from ipusim.workload.zoo.speech.conformer import conformer_medium, conformer_small
from ipusim.workload.zoo.speech.deepvoice import deepvoice3
from ipusim.workload.zoo.speech.fastspeech import fastpitch, fastspeech2, fastspeech2_training
from ipusim.workload.zoo.speech.lstm import lstm_2_layers
from ipusim.workload.zoo.speech.transducer import (
    transformer_transducer,
    transformer_transducer_large,
)
from ipusim.workload.zoo.vision import efficientdet, yolo
from ipusim.workload.zoo.vision.autoencoder import tamu_autoencoder
from ipusim.workload.zoo.vision.clip import clip_vit_base_32
from ipusim.workload.zoo.vision.dino import dino_vit_base_16
from ipusim.workload.zoo.vision.efficientnet import (
    efficientnet_b0,
    efficientnet_b0_g16_gn,
    efficientnet_b4,
    efficientnet_b4_g16_gn,
    efficientnet_b7,
)
from ipusim.workload.zoo.vision.frozen_in_time import frozen_in_time_1_frame
from ipusim.workload.zoo.vision.mae import mae_vit_base_16
from ipusim.workload.zoo.vision.mini_dalle import mini_dalle_l16
from ipusim.workload.zoo.vision.mobilenet import mobilenet_v3_large, mobilenet_v3_small
from ipusim.workload.zoo.vision.resnet import (
    resnet18,
    resnet34,
    resnet50,
    resnet50_gn,
    resnet101,
    resnet152,
)
from ipusim.workload.zoo.vision.resnext import (
    resnext50_32x4d,
    resnext101_32x4d,
    resnext101_32x4d_gn,
    resnext101_32x8d,
)
from ipusim.workload.zoo.vision.swin import (
    swin_base,
    swin_base_padded,
    swin_large,
    swin_large_padded,
    swin_tiny,
    swin_tiny_padded,
)
from ipusim.workload.zoo.vision.unet import unet_medical
from ipusim.workload.zoo.vision.vit import (
    vit_base_16,
    vit_base_16_finetuning,
    vit_base_16_pretraining,
    vit_large_16,
)

__all__ = [
    "bert_base_squad",
    "bert_large_squad",
    "braggnn",
    "braggnn_prepared",
    "braggnn_scaled",
    "clip_vit_base_32",
    "cluster_gcn_arxiv",
    "cluster_gcn_mag",
    "cluster_gcn_ppi",
    "cluster_gcn_products",
    "cluster_gcn_reddit",
    "conformer_medium",
    "conformer_small",
    "cookienetae",
    "deepvoice3",
    "dino_vit_base_16",
    "efficientnet_b0",
    "efficientnet_b0_g16_gn",
    "efficientnet_b4",
    "efficientnet_b4_g16_gn",
    "efficientnet_b7",
    "fastpitch",
    "fastspeech2",
    "fastspeech2_training",
    "frozen_in_time_1_frame",
    "gin_molhiv",
    "gpt2_large",
    "gpt2_medium",
    "gpt2_small",
    "load",
    "lstm_2_layers",
    "mae_vit_base_16",
    "mcmc_bnn",
    "mini_dalle_l16",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "names",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet50_gn",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x4d",
    "resnext101_32x4d_gn",
    "resnext101_32x8d",
    "schnet",
    "swin_base",
    "swin_base_padded",
    "swin_large",
    "swin_large_padded",
    "swin_tiny",
    "swin_tiny_padded",
    "tamu_autoencoder",
    "tgn_pytorch",
    "tgn_tensorflow",
    "transe_256",
    "transformer_transducer",
    "transformer_transducer_large",
    "unet_medical",
    "uno",
    "vit_base_16",
    "vit_base_16_finetuning",
    "vit_base_16_pretraining",
    "vit_large_16",
    "weather_mlp",
]

_REGISTRY: dict[str, Callable[[], Model]] = {
    make.__name__: make
    for make in (
        resnet18,
        resnet34,
        resnet50,
        resnet50_gn,
        resnet101,
        resnet152,
        resnext50_32x4d,
        resnext101_32x4d,
        resnext101_32x4d_gn,
        resnext101_32x8d,
        efficientnet_b0,
        efficientnet_b0_g16_gn,
        efficientnet_b4,
        efficientnet_b4_g16_gn,
        efficientnet_b7,
        mobilenet_v3_small,
        mobilenet_v3_large,
        vit_base_16,
        vit_large_16,
        vit_base_16_pretraining,
        vit_base_16_finetuning,
        swin_tiny,
        swin_base,
        swin_large,
        swin_tiny_padded,
        swin_base_padded,
        swin_large_padded,
        dino_vit_base_16,
        mae_vit_base_16,
        clip_vit_base_32,
        frozen_in_time_1_frame,
        mini_dalle_l16,
        unet_medical,
        bert_base_squad,
        bert_large_squad,
        gpt2_small,
        gpt2_medium,
        gpt2_large,
        tamu_autoencoder,
        lstm_2_layers,
        deepvoice3,
        conformer_small,
        conformer_medium,
        transformer_transducer,
        transformer_transducer_large,
        fastspeech2,
        fastspeech2_training,
        fastpitch,
        braggnn,
        braggnn_scaled,
        braggnn_prepared,
        weather_mlp,
        cookienetae,
        uno,
        schnet,
        tgn_tensorflow,
        tgn_pytorch,
        gin_molhiv,
        mcmc_bnn,
        transe_256,
        cluster_gcn_arxiv,
        cluster_gcn_mag,
        cluster_gcn_ppi,
        cluster_gcn_products,
        cluster_gcn_reddit,
    )
}
_REGISTRY |= bert.MODELS | group_bert.MODELS | gpt2.MODELS | yolo.MODELS | efficientdet.MODELS


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts, family by family."""
    return tuple(_REGISTRY)


def load(name: str) -> Model:
    """Return a network by name, whatever its case, spaces, hyphens and underscores.

    Raises
    ------
    UnknownNameError
        If no network has this name; the message gives the nearest one.
    """
    return _make(resolve_name("model", name, _REGISTRY))


@cache
def _make(name: str) -> Model:
    return _REGISTRY[name]()
