"""Networks of PyTorch with random weights: ResNet-50, MobileNetV2, BERT-Base, a part of that, a
small one.

PyTorch is imported when the first is made, since `make test` does without it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

TEXT = ("bert", "encoder")
"""Networks whose inputs are words."""


def example(name: str, items: int = 2) -> Any:
    """Inputs of a network, for `items` items."""
    import torch

    torch.manual_seed(1)
    if name in TEXT:
        return torch.randint(0, 1000, (items, 32))
    return torch.randn(items, 3, 64, 64)


def network(name: str) -> Any:
    """A network in evaluation mode.

    Args:
        name: "resnet50", "mobilenetv2", "bert" (12 layers of 768, with 1,000 words),
            "encoder" (three such layers) or "small".
    """
    import torch

    torch.manual_seed(0)
    made: dict[str, Callable[[], Any]] = {
        "resnet50": _resnet50,
        "mobilenetv2": _mobilenetv2,
        "bert": transformer,
        "encoder": partial(transformer, layers=3),
        "small": _small,
    }
    return _settled(made[name](), name).eval()


def export(model: Any, inputs: Any, path: Path) -> Path:
    """Write `model.pt2` as the how-to says, the batch free."""
    import torch

    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (inputs,), dynamic_shapes=({0: batch},))
    torch.export.save(exported, path)
    return path


def _settled(model: Any, name: str) -> Any:
    """Statistics of the normalisations that keep activations in range, as training would leave."""
    import torch

    if name not in TEXT:
        with torch.no_grad():
            model.train()(example(name, 4))
    return model


def _resnet50() -> Any:
    from torch import nn

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, taken: int, width: int, stride: int) -> None:
            super().__init__()
            given = 4 * width
            self.body = nn.Sequential(
                *(nn.Conv2d(taken, width, 1, bias=False), nn.BatchNorm2d(width)),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
                *(nn.Conv2d(width, given, 1, bias=False), nn.BatchNorm2d(given)),
            )
            straight = stride == 1 and taken == given
            self.skip = (
                nn.Identity()
                if straight
                else nn.Sequential(
                    nn.Conv2d(taken, given, 1, stride, bias=False), nn.BatchNorm2d(given)
                )
            )
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.skip(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    taken = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(taken, width, stride if number == 0 else 1))
            taken = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(taken, 1000)]
    return nn.Sequential(*layers)


def _mobilenetv2() -> Any:
    from torch import nn

    def convolved(taken: int, given: int, kernel: int, stride: int, groups: int = 1) -> Any:
        padding = (kernel - 1) // 2
        conv = nn.Conv2d(taken, given, kernel, stride, padding, groups=groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(given), nn.ReLU6(inplace=True))

    class Inverted(nn.Module):  # type: ignore[misc]
        def __init__(self, taken: int, given: int, stride: int, expand: int) -> None:
            super().__init__()
            hidden = taken * expand
            first = [convolved(taken, hidden, 1, 1)] if expand > 1 else []
            last = (nn.Conv2d(hidden, given, 1, bias=False), nn.BatchNorm2d(given))
            self.body = nn.Sequential(*first, convolved(hidden, hidden, 3, stride, hidden), *last)
            self.straight = stride == 1 and taken == given

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.straight else self.body(x)

    layers: list[Any] = [convolved(3, 32, 3, 2)]
    taken = 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    for expand, given, count, stride in (*table, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for number in range(count):
            layers.append(Inverted(taken, given, stride if number == 0 else 1, expand))
            taken = given
    layers += [convolved(taken, 1280, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1280, 1000))


def transformer(
    words: int = 1000,
    places: int = 512,
    *,
    causal: bool = False,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
) -> Any:
    """Of BERT's or GPT-2's sizes, without a head; in evaluation mode once `eval` is called."""
    import torch
    from torch import nn

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = (
                part.view(batch, length, heads, width // heads).transpose(1, 2)
                for part in self.qkv(x).chunk(3, -1)
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            mixed = mixed.transpose(1, 2).reshape(batch, length, width)
            x = self.first(x + self.dropout(self.out(mixed)))
            up = nn.functional.gelu(self.up(x))
            return self.second(x + self.dropout(self.down(up)))

    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
            self.norm = nn.LayerNorm(width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, ids: Any) -> Any:
            order = torch.arange(ids.shape[1], device=ids.device)
            x = self.norm(self.words(ids) + self.places(order))
            for layer in self.layers:
                x = layer(x)
            return x.mean(1)

    return Encoder()


def _small() -> Any:
    """What exports contain besides layers: overwriting, no_grad, sizes, views, two outputs."""
    import torch
    from torch import nn

    class Small(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.relu = nn.ReLU(inplace=True)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 4)
            self.register_buffer("turned", torch.arange(4.0).reshape(2, 2).t(), persistent=False)

        def forward(self, x: Any) -> Any:
            y = nn.functional.max_pool2d(self.relu(self.norm(self.conv(x))), 8)
            y += 1
            t = y.flatten(2).transpose(1, 2)
            with torch.no_grad():
                t = t * 2
            mask = torch.full((t.shape[1], t.shape[1]), float("-inf")).triu(1)
            a, _ = self.attention(t, t, t, attn_mask=mask, need_weights=False)
            a = a.reshape(x.shape[0] * 2, -1).reshape(x.shape[0], -1, 8)
            low, high = a.mean(1).chunk(2, -1)
            return self.head(a.amax(1)) + self.turned.sum(), low + high

    return Small()
