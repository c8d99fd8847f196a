"""isensee2017 in PyTorch: the same layers, sizes and order as `models.isensee2017`; 8,269,561 parameters.

Channels first, (B, C, D, H, W). `wrap` stands around each block: `lambda block, *x: block(*x)` for none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

FILTERS = (16, 32, 64, 128, 256)
HEADS = 3
LEAKY_SLOPE = 0.3
EPSILON = 1e-3

Wrap = Callable[..., torch.Tensor]


class Block(nn.Sequential):
    """Convolution, instance normalisation, LeakyReLU."""

    def __init__(self, channels: int, filters: int, *, kernel: int = 3, stride: int = 1) -> None:
        # TensorFlow's padding for stride 2 is one voxel at the far end only; the cost is the same.
        super().__init__(
            nn.Conv3d(channels, filters, kernel, stride=stride, padding=kernel // 2),
            nn.InstanceNorm3d(filters, eps=EPSILON, affine=True),
            nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
        )


class Encoder(nn.Module):
    """a = Block (stride 2 below level 0); out = a + Block(dropout(Block(a)))."""

    def __init__(self, channels: int, filters: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.a = Block(channels, filters, stride=stride)
        self.b, self.c = Block(filters, filters), Block(filters, filters)
        self.dropout = nn.Dropout3d(dropout)

    def forward(self, x: torch.Tensor, wrap: Wrap) -> torch.Tensor:
        entry = wrap(self.a, x)
        return entry + wrap(self.c, self.dropout(wrap(self.b, entry)))


class Decoder(nn.Module):
    """Up-sampling, Block, concatenation with the skip, Block, Block 1x1x1."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.a = Block(channels, filters)
        self.b, self.c = Block(2 * filters, filters), Block(filters, filters, kernel=1)

    def forward(self, x: torch.Tensor, skip: torch.Tensor, wrap: Wrap) -> torch.Tensor:
        x = wrap(lambda low: self.a(_upsample(low)), x)
        return wrap(self.c, wrap(lambda *both: self.b(torch.cat(both, 1)), skip, x))


class Isensee2017(nn.Module):
    """(B, inputs, D, H, W) images -> (B, outputs, D, H, W) probabilities."""

    def __init__(self, inputs: int = 4, outputs: int = 3, dropout: float = 0.3) -> None:
        super().__init__()
        below = (inputs, *FILTERS)
        self.encoders = nn.ModuleList(
            Encoder(below[level], count, 1 if level == 0 else 2, dropout) for level, count in enumerate(FILTERS)
        )
        self.decoders = nn.ModuleList(Decoder(FILTERS[level + 1], FILTERS[level]) for level in range(len(FILTERS) - 1))
        self.heads = nn.ModuleList(nn.Conv3d(count, outputs, 1) for count in FILTERS[:HEADS])

    def forward(self, x: torch.Tensor, wrap: Wrap = lambda block, *x: block(*x)) -> torch.Tensor:
        skips = []
        for encoder in self.encoders:
            x = encoder(x, wrap)
            skips.append(x)
        logits: Any = None
        for level in reversed(range(len(self.decoders))):
            x = self.decoders[level](x, skips[level], wrap)
            if level < HEADS:
                head = self.heads[level](x)
                logits = head if logits is None else _upsample(logits) + head
        return torch.sigmoid(logits)


def _upsample(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(x, scale_factor=2, mode="nearest")


def dice_loss(truth: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """As `lms3d.scoring.losses.dice_loss`, channels first."""
    voxels = (2, 3, 4)
    truth = truth.to(probabilities.dtype)
    overlap = 2 * (truth * probabilities).sum(voxels) + 1e-5
    return -(overlap / (truth.sum(voxels) + probabilities.sum(voxels) + 1e-5)).mean()
