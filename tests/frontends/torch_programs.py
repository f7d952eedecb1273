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


class Attention(torch.nn.Module):
    """Products of activations alone: no parameter tells whose they are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(-1, -2) / 8, dim=-1) @ v)


class Block(torch.nn.Module):
    """A layer of a transformer, with an activation that other layers use as well."""

    def __init__(self, width: int, activation: torch.nn.Module) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attn = Attention(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.down(self.activation(self.up(x)))


class Network(torch.nn.Module):
    """Two layers, and a head on the weights of which nothing else stands."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        shared = torch.nn.GELU()
        self.layers = torch.nn.ModuleList([Block(width, shared), Block(width, shared)])
        self.head = torch.nn.Parameter(torch.randn(width, 10) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(x @ self.head)


class Tied(torch.nn.Module):
    """Words in and out by the same weights, between them a picture, and a buffer that is not saved."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.words = torch.nn.Embedding(10, 8)
        self.out = torch.nn.Linear(8, 10, bias=False)
        self.out.weight = self.words.weight
        self.register_buffer("mask", torch.arange(8) % 2 == 0, persistent=False)

    def forward(self, picture: torch.Tensor, *, word: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.norm(self.convolution(picture))).mean((2, 3))
        return self.out(seen * self.mask + self.words(word))
