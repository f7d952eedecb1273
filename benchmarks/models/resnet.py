"""ResNet-50, with the norms of a network that was trained: mean, variance, weight and bias of each channel."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.models.layers import linear
from benchmarks.models.program import Function, Module, Value

_EPSILON = 1e-5
_WIDENING = 4


@dataclass(frozen=True)
class Resnet:
    """How large it is: the image's sides, blocks of each stage, channels of the first, and classes."""

    side: int = 224
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    channels: int = 64
    classes: int = 1000

    def module(self) -> Module:
        """`main`: an image [1, side, side, 3] to logits [1, classes]."""
        module = Module("resnet")
        main = module.function("main")
        value = main.argument((1, self.side, self.side, 3))
        with main.scope("stem"):
            value = _rectified(main, _convolved(main, value, self.channels, 7, stride=2))
            value = main.most_of_windows(value, 3, 2, 1)
        for stage, blocks in enumerate(self.blocks):
            for block in range(blocks):
                with main.scope(f"stage{stage + 1}/block{block}"):
                    value = _block(main, value, self.channels << stage, 2 if stage and not block else 1)
        with main.scope("head"):
            total = main.reduced("add", value, (1, 2))
            value = main.scaled(total, 1 / (value.shape[1] * value.shape[2]))
            main.results = (linear(main, value, self.classes),)
        return module


def _block(main: Function, value: Value, channels: int, stride: int) -> Value:
    """Narrow, look around, widen; beside it the value itself, brought to the same shape where it has another."""
    beside = value
    if stride > 1 or value.shape[3] != _WIDENING * channels:
        with main.scope("shortcut"):
            beside = _convolved(main, value, _WIDENING * channels, 1, stride=stride)
    with main.scope("conv1"):
        value = _rectified(main, _convolved(main, value, channels, 1))
    with main.scope("conv2"):
        value = _rectified(main, _convolved(main, value, channels, 3, stride=stride))
    with main.scope("conv3"):
        value = _convolved(main, value, _WIDENING * channels, 1)
    return _rectified(main, main.binary("add", value, beside))


def _convolved(main: Function, value: Value, filters: int, size: int, stride: int = 1) -> Value:
    """Convolution and norm."""
    shape = (size, size, value.shape[3], filters)
    kernel = main.parameter("kernel", shape, deviation=(2 / (size * size * value.shape[3])) ** 0.5)
    value = main.convolved(value, kernel, stride, size // 2)
    with main.scope("norm"):
        mean = main.parameter("mean", (filters,), deviation=0.1)
        variance = main.parameter("variance", (filters,), mean=1.0, deviation=0.1)
        scale = main.unary("rsqrt", main.binary("add", variance, main.constant(f"{_EPSILON:e}", (filters,))))
        weight = main.binary("multiply", scale, main.parameter("weight", (filters,), mean=0.7, deviation=0.1))
        centred = main.binary("subtract", value, mean)
        return main.binary("add", main.binary("multiply", centred, weight), main.parameter("bias", (filters,)))


def _rectified(main: Function, value: Value) -> Value:
    return main.binary("maximum", value, main.constant("0.0", value.shape))
