"""Programs as users of torch write them."""

from __future__ import annotations

import torch


class Perceptron(torch.nn.Module):
    """Layers one after the other; what they cost is looked for on these lines."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(96, 128), torch.nn.Linear(128, 64), torch.nn.Linear(64, 10)])

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.softmax(x * scale, dim=-1)
