"""The networks in the sizes that people have, and in sizes that take seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.models.bert import Bert
from benchmarks.models.gpt2 import Gpt2
from benchmarks.models.llama import Llama
from benchmarks.models.resnet import Resnet

Network = Gpt2 | Bert | Resnet | Llama

REAL: Final[Mapping[str, Network]] = {
    "GPT-2 124M": Gpt2(),
    "BERT-base": Bert(),
    "ResNet-50": Resnet(),
    "Llama 1.1B, i8": Llama("i8"),
    "Llama 1.1B, f16": Llama("f16"),
}

TINY: Final[Mapping[str, Network]] = {
    "gpt2": Gpt2(layers=2, width=16, heads=2, vocabulary=32, tokens=8, positions=16),
    "bert": Bert(layers=2, width=16, heads=2, vocabulary=32, tokens=8, positions=16),
    "resnet": Resnet(side=32, blocks=(1, 2), channels=8, classes=10),
    "llama": Llama("i8", layers=2, width=32, heads=4, cached_heads=2, hidden=48, vocabulary=64, tokens=4, places=8),
}
