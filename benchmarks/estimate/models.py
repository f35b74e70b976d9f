"""Models whose architecture is public, at the input sizes of the published block profiles.

The sizes follow from the published cut sizes: 2,230,272 bytes of half-precision numbers in 1,024
channels are 33 x 33, a sixteenth of 520 x 520.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks.estimate.layers import Layers, Pair


def wide_resnet101_2(path: Path) -> Path:
    """Zagoruyko and Komodakis, "Wide Residual Networks", 2016; bottlenecks twice as wide."""
    g = Layers((3, 520, 520))
    x = g.conv_relu("x", 64, 7, stride=2)
    x = g.pool(x, "MaxPool", 3, 2, 1)
    for width, count, stride in ((128, 3, 1), (256, 4, 2), (512, 23, 2), (1024, 3, 2)):
        x = _residual_layer(g, x, width, 2 * width, count, stride)
    return g.save(g.classifier(x), path)


def repvgg_b3(path: Path) -> Path:
    """Ding et al., "RepVGG", CVPR 2021; with its branches merged, as it is deployed."""
    g = Layers((3, 448, 448))
    x = g.conv_relu("x", 64, 3, stride=2)
    for channels, count in ((192, 4), (384, 6), (768, 16), (2560, 1)):
        for i in range(count):
            x = g.conv_relu(x, channels, 3, stride=2 if i == 0 else 1)
    return g.save(g.classifier(x), path)


def inception_v3(path: Path) -> Path:
    """Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016."""
    g = Layers((3, 598, 598))
    x = g.conv_relu("x", 32, 3, stride=2, pad=0)
    x = g.conv_relu(x, 32, 3, pad=0)
    x = g.conv_relu(x, 64, 3)
    x = g.pool(x, "MaxPool", 3, 2)
    x = g.conv_relu(x, 80, 1)
    x = g.conv_relu(x, 192, 3, pad=0)
    x = g.pool(x, "MaxPool", 3, 2)
    for pooled in (32, 64, 64):
        x = _inception_a(g, x, pooled)
    x = g.concat(
        [
            g.conv_relu(x, 384, 3, stride=2, pad=0),
            _convs(g, x, (64, 1, {}), (96, 3, {}), (96, 3, {"stride": 2, "pad": 0})),
            g.pool(x, "MaxPool", 3, 2),
        ]
    )
    for width in (128, 160, 160, 192):
        x = _inception_b(g, x, width)
    last = {"stride": 2, "pad": 0}
    x = g.concat(
        [
            _convs(g, x, (192, 1, {}), (320, 3, last)),
            _convs(g, x, (192, 1, {}), (192, (1, 7), {}), (192, (7, 1), {}), (192, 3, last)),
            g.pool(x, "MaxPool", 3, 2),
        ]
    )
    for _ in range(2):
        x = _inception_c(g, x)
    return g.save(g.classifier(x), path)


def convnext_large(path: Path) -> Path:
    """Liu et al., "A ConvNet for the 2020s", CVPR 2022; norms and GELU as exporters write them."""
    g = Layers((3, 224, 256))
    x = g.conv("x", 192, 4, stride=4, pad=0)
    x = _channels_first(g, _layer_norm(g, _channels_last(g, x)))
    for stage, (channels, count) in enumerate(((192, 3), (384, 3), (768, 27), (1536, 3))):
        if stage:
            x = _channels_first(g, _layer_norm(g, _channels_last(g, x)))
            x = g.conv(x, channels, 2, stride=2, pad=0)
        for _ in range(count):
            x = _convnext_block(g, x)
    x = g.op("GlobalAveragePool", [x])
    x = _channels_first(g, _layer_norm(g, _channels_last(g, x)))
    flat = g.op("Flatten", [x])
    return g.save(g.op("Gemm", [flat, g.weight(1536, 1000), g.weight(1000)], 1000), path)


def efficientnet_b8(path: Path) -> Path:
    """Tan and Le, "EfficientNet", ICML 2019; width x 2.2, depth x 3.6."""
    g = Layers((3, 448, 448))
    x = g.swish(g.conv("x", 72, 3, stride=2))
    stages = (  # expansion, channels, blocks, stride, kernel
        (1, 32, 4, 1, 3),
        (6, 56, 8, 2, 3),
        (6, 88, 8, 2, 5),
        (6, 176, 11, 2, 3),
        (6, 248, 11, 1, 5),
        (6, 424, 15, 2, 5),
        (6, 704, 4, 1, 3),
    )
    for expansion, channels, count, stride, kernel in stages:
        for i in range(count):
            x = _mobile_block(g, x, expansion, channels, stride if i == 0 else 1, kernel)
    return g.save(g.classifier(g.swish(g.conv(x, 2816, 1))), path)


def colorization(path: Path) -> Path:
    """Zhang et al., "Colorful Image Colorization", ECCV 2016."""
    g = Layers((1, 512, 512))
    x = g.op("Div", [g.op("Sub", ["x", g.weight(1)]), g.weight(1)])
    for channels, count, stride, dilation in (
        (64, 2, 2, 1),
        (128, 2, 2, 1),
        (256, 3, 2, 1),
        (512, 3, 1, 1),
        (512, 3, 1, 2),
        (512, 3, 1, 2),
        (512, 3, 1, 1),
    ):
        for i in range(count):
            last = stride if i == count - 1 else 1
            x = g.conv_relu(x, channels, 3, stride=last, dilation=dilation)
        x = g.op("BatchNormalization", [x, *(g.weight(channels) for _ in range(4))])
    weights = [g.weight(512, 256, 4, 4), g.weight(256)]
    x = g.op("ConvTranspose", [x, *weights], 256, kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4)
    x = _convs(g, g.relu(x), (256, 3, {}), (256, 3, {}))
    x = g.op("Softmax", [_channels_last(g, g.conv(x, 313, 1))])
    x = g.conv(_channels_first(g, x), 2, 1)
    return g.save(g.op("Mul", [_resized(g, x, 4), g.weight(1)]), path)


def fcn_d6(path: Path) -> Path:
    """Long et al., "Fully Convolutional Networks", CVPR 2015; ResNet-101, stride 16, dilation 6."""
    g = Layers((3, 256, 512))
    x = _dilated_resnet101(g, ((1, 1), (2, 1), (2, 1), (1, 2)))
    y = g.conv_relu(x, 512, 3, dilation=6)
    y = g.conv_relu(y, 512, 3, dilation=6)
    return g.save(_segments(g, x, y, 16), path)


def nonlocal_r101(path: Path) -> Path:
    """Wang et al., "Non-local Neural Networks", CVPR 2018; ResNet-101, stride 8."""
    g = Layers((3, 256, 512))
    x = _dilated_resnet101(g, _STRIDE_8)
    y = g.conv_relu(x, 512, 3)
    values, keys, queries = (_rows(g, g.conv(y, 256, 1)) for _ in range(3))
    transposed = g.op("Transpose", [keys], perm=[0, 2, 1])
    scores = g.op("Div", [g.op("MatMul", [queries, transposed]), g.weight(1)])
    mixed = g.op("MatMul", [g.op("Softmax", [scores]), values], 256)
    y = g.op("Add", [y, g.conv(_maps(g, mixed, 32, 64), 512, 1)])
    return g.save(_segments(g, x, g.conv_relu(y, 512, 3), 8), path)


def gcnet_r101(path: Path) -> Path:
    """Cao et al., "GCNet", ICCV workshops 2019; ResNet-101, stride 8."""
    g = Layers((3, 256, 512))
    x = _dilated_resnet101(g, _STRIDE_8)
    y = g.conv_relu(x, 512, 3)
    mask = g.op("Softmax", [g.op("Reshape", [g.conv(y, 1, 1), g.integers(0, 1, -1)])])
    rows = g.op("Reshape", [y, g.integers(0, 512, -1)])
    context = g.op("MatMul", [rows, g.op("Transpose", [mask], perm=[0, 2, 1])], 512)
    context = g.op("Reshape", [context, g.integers(0, 512, 1, 1)])
    context = g.conv(_layer_norm(g, g.conv(context, 128, 1), axis=1), 512, 1)
    y = g.conv_relu(g.op("Add", [y, context]), 512, 3)
    return g.save(_segments(g, x, y, 8), path)


MODELS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "wide_resnet101_2": ("WideResNet-101-2", wide_resnet101_2),
    "repvgg-b3": ("RepVGG-B3", repvgg_b3),
    "googlenet-v3-pytorch": ("Inception v3", inception_v3),
    "convnext_large": ("ConvNeXt-L", convnext_large),
    "efficientnet-b8_3rdparty_8xb32-aa-advprop_in1k": ("EfficientNet-B8", efficientnet_b8),
    "colorization-v2": ("Colorization", colorization),
    "fcn-d6_r101-d16_4xb2-40k_cityscapes-512x1024": ("FCN-R101 /16", fcn_d6),
    "nonlocal_r101-d8_4xb2-40k_cityscapes-512x1024": ("NonLocal-R101 /8", nonlocal_r101),
    "gcnet_r101-d8_4xb2-40k_cityscapes-512x1024": ("GCNet-R101 /8", gcnet_r101),
}
"""The published profiles' name -> (a shorter one, builder)."""

_STRIDE_8 = ((1, 1), (2, 1), (1, 2), (1, 4))


def _residual_layer(
    g: Layers, x: str, width: int, out: int, count: int, stride: int, dilation: int = 1
) -> str:
    """Bottlenecks: 1x1, 3x3, 1x1; the first one strides and projects its shortcut."""
    for i in range(count):
        step = stride if i == 0 else 1
        # A dilated layer's first block still has half the dilation of the others.
        spread = dilation // 2 if i == 0 and dilation > 1 else dilation
        y = g.conv_relu(x, width, 1)
        y = g.conv_relu(y, width, 3, stride=step, dilation=spread)
        y = g.conv(y, out, 1)
        shortcut = g.conv(x, out, 1, stride=step) if i == 0 else x
        x = g.relu(g.op("Add", [y, shortcut]))
    return x


def _dilated_resnet101(g: Layers, steps: tuple[Pair, ...]) -> str:
    """He et al., CVPR 2016, with a stem of three 3x3; per layer (stride, dilation)."""
    x = g.conv_relu("x", 32, 3, stride=2)
    x = g.conv_relu(g.conv_relu(x, 32, 3), 64, 3)
    x = g.pool(x, "MaxPool", 3, 2, 1)
    sizes = ((64, 3), (128, 4), (256, 23), (512, 3))
    for (width, count), (stride, dilation) in zip(sizes, steps, strict=True):
        x = _residual_layer(g, x, width, 4 * width, count, stride, dilation)
    return x


def _segments(g: Layers, x: str, y: str, scale: int) -> str:
    """The head of a segmenter: backbone and head features, classes, and their map, upsampled."""
    y = g.conv_relu(g.concat([x, y]), 512, 3)
    return g.op("ArgMax", [_resized(g, g.conv(y, 19, 1), scale)], axis=1)


def _resized(g: Layers, x: str, scale: int) -> str:
    name = f"scales{scale}"
    g.constant(name, (1.0, 1.0, scale, scale))
    return g.op("Resize", [x, "", name], mode="linear")


def _channels_last(g: Layers, x: str) -> str:
    return g.op("Transpose", [x], perm=[0, 2, 3, 1])


def _channels_first(g: Layers, x: str) -> str:
    return g.op("Transpose", [x], perm=[0, 3, 1, 2])


def _rows(g: Layers, x: str) -> str:
    flat = g.op("Reshape", [x, g.integers(0, g.channels[x], -1)])
    return g.op("Transpose", [flat], perm=[0, 2, 1])


def _maps(g: Layers, x: str, height: int, width: int) -> str:
    turned = g.op("Transpose", [x], perm=[0, 2, 1])
    return g.op("Reshape", [turned, g.integers(0, g.channels[x], height, width)])


def _layer_norm(g: Layers, x: str, axis: int = -1) -> str:
    centred = g.op("Sub", [x, g.op("ReduceMean", [x], axes=[axis])])
    variance = g.op("ReduceMean", [g.op("Pow", [centred, g.weight(1)])], axes=[axis])
    deviation = g.op("Sqrt", [g.op("Add", [variance, g.weight(1)])])
    shape = (g.channels[x],) if axis == -1 else (g.channels[x], 1, 1)
    scaled = g.op("Mul", [g.op("Div", [centred, deviation]), g.weight(*shape)])
    return g.op("Add", [scaled, g.weight(*shape)])


def _convnext_block(g: Layers, x: str) -> str:
    channels = g.channels[x]
    y = _layer_norm(g, _channels_last(g, g.conv(x, channels, 7, group=channels)))
    y = g.linear(y, 4 * channels)
    erf = g.op("Add", [g.op("Erf", [g.op("Div", [y, g.weight(1)])]), g.weight(1)])
    y = g.op("Mul", [g.op("Mul", [y, erf]), g.weight(1)])
    y = _channels_first(g, g.linear(y, channels))
    return g.op("Add", [g.op("Mul", [y, g.weight(channels, 1, 1)]), x])


def _mobile_block(g: Layers, x: str, expansion: int, out: int, stride: int, kernel: int) -> str:
    """Expand, depthwise, squeeze and excite, project."""
    channels = g.channels[x]
    y = g.swish(g.conv(x, channels * expansion, 1)) if expansion > 1 else x
    width = channels * expansion
    y = g.swish(g.conv(y, width, kernel, stride=stride, group=width))
    gate = g.swish(g.conv(g.op("GlobalAveragePool", [y]), max(1, channels // 4), 1))
    y = g.op("Mul", [y, g.op("Sigmoid", [g.conv(gate, width, 1)])])
    y = g.conv(y, out, 1)
    return g.op("Add", [y, x]) if stride == 1 and channels == out else y


def _convs(g: Layers, x: str, *steps: tuple[int, int | Pair, dict[str, int]]) -> str:
    for out, kernel, options in steps:
        x = g.conv_relu(x, out, kernel, **options)
    return x


def _pooled(g: Layers, x: str, out: int) -> str:
    return g.conv_relu(g.pool(x, "AveragePool", 3, 1, 1), out, 1)


def _inception_a(g: Layers, x: str, pooled: int) -> str:
    return g.concat(
        [
            g.conv_relu(x, 64, 1),
            _convs(g, x, (48, 1, {}), (64, 5, {})),
            _convs(g, x, (64, 1, {}), (96, 3, {}), (96, 3, {})),
            _pooled(g, x, pooled),
        ]
    )


def _inception_b(g: Layers, x: str, width: int) -> str:
    row, column = (1, 7), (7, 1)
    return g.concat(
        [
            g.conv_relu(x, 192, 1),
            _convs(g, x, (width, 1, {}), (width, row, {}), (192, column, {})),
            _convs(
                g,
                x,
                (width, 1, {}),
                (width, column, {}),
                (width, row, {}),
                (width, column, {}),
                (192, row, {}),
            ),
            _pooled(g, x, 192),
        ]
    )


def _inception_c(g: Layers, x: str) -> str:
    left = g.conv_relu(x, 320, 1)
    middle = g.conv_relu(x, 384, 1)
    middle = g.concat([g.conv_relu(middle, 384, (1, 3)), g.conv_relu(middle, 384, (3, 1))])
    right = _convs(g, x, (448, 1, {}), (384, 3, {}))
    right = g.concat([g.conv_relu(right, 384, (1, 3)), g.conv_relu(right, 384, (3, 1))])
    return g.concat([left, middle, right, _pooled(g, x, 192)])
