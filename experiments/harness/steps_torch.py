"""A child that trains isensee2017 in PyTorch, one step each time that the parent asks for one.

The layers, sizes and order are as in `lms3d.models.isensee2017`, 8,269,561 parameters, channels first, (B, C, D, H, W). `wrap`
stands around each block: `lambda block, *x: block(*x)` for none.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from lms3d.experiments.harness import batches, methods
from lms3d.experiments.harness.methods import InTorch
from lms3d.experiments.harness.part import MIB, StudyPart
from lms3d.experiments.harness.talk import Resident, Talk, asked

FILTERS = (16, 32, 64, 128, 256)
HEADS = 3
LEAKY_SLOPE = 0.3
EPSILON = 1e-3

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Wrap = Callable[..., torch.Tensor]


class TorchBlock(nn.Sequential):
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
        self.a = TorchBlock(channels, filters, stride=stride)
        self.b, self.c = TorchBlock(filters, filters), TorchBlock(filters, filters)
        self.dropout = nn.Dropout3d(dropout)

    def forward(self, x: torch.Tensor, wrap: Wrap) -> torch.Tensor:
        entry = wrap(self.a, x)
        return entry + wrap(self.c, self.dropout(wrap(self.b, entry)))


class Decoder(nn.Module):
    """Up-sampling, Block, concatenation with the skip, Block, Block 1x1x1."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.a = TorchBlock(channels, filters)
        self.b, self.c = TorchBlock(2 * filters, filters), TorchBlock(filters, filters, kernel=1)

    def forward(self, x: torch.Tensor, skip: torch.Tensor, wrap: Wrap) -> torch.Tensor:
        x = wrap(lambda low: self.a(_upsample(low)), x)
        return wrap(self.c, wrap(lambda *both: self.b(torch.cat(both, 1)), skip, x))


class Isensee2017(nn.Module):
    """(B, inputs, D, H, W) images -> (B, outputs, D, H, W) probabilities."""

    def __init__(
        self, inputs: int = 4, outputs: int = 3, dropout: float = 0.3, filters: tuple[int, ...] = FILTERS
    ) -> None:
        super().__init__()
        below, raised = (inputs, *filters), len(filters) - 1
        self.encoders = nn.ModuleList(
            Encoder(below[level], count, 1 if level == 0 else 2, dropout) for level, count in enumerate(filters)
        )
        self.decoders = nn.ModuleList(Decoder(filters[level + 1], filters[level]) for level in range(raised))
        self.heads = nn.ModuleList(nn.Conv3d(count, outputs, 1) for count in filters[: min(HEADS, raised)])

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
    """The loss of `lms3d.scoring.losses.dice_loss`, channels first."""
    voxels = (2, 3, 4)
    truth = truth.to(probabilities.dtype)
    overlap = 2 * (truth * probabilities).sum(voxels) + 1e-5
    return -(overlap / (truth.sum(voxels) + probabilities.sum(voxels) + 1e-5)).mean()


def main() -> None:
    part = StudyPart.of(asked())
    talk = Talk()
    with talk.explained():
        torch.manual_seed(0)
        if part.limit_mib is not None and DEVICE == "cuda":
            whole = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(part.limit_mib * MIB / whole)
        torch.zeros(1, device=DEVICE) + 1
        resident = Resident()
        _train(part, talk, resident)


def _train(part: StudyPart, talk: Talk, resident: Resident) -> None:
    way = methods.TORCH_METHODS[part.method]
    model = Isensee2017(filters=part.filters or FILTERS).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, eps=1e-7)
    image, truth = (torch.from_numpy(array).movedim(-1, 1).contiguous() for array in batches.volumes(part.resolution))
    order = torch.channels_last_3d if way.channels_last else torch.contiguous_format
    model, image = model.to(memory_format=order), image.to(memory_format=order)
    if DEVICE == "cuda":  # as lms3d's own batches are
        image, truth = image.pin_memory(), truth.pin_memory()
    network = model
    if way.mode:
        if way.budget is not None:
            functorch_config.activation_memory_budget = way.budget
        network = torch.compile(model, mode=way.mode)
    talk.say(ready=True, device=DEVICE, parameters=sum(p.numel() for p in model.parameters()))
    while talk.asked():
        resident.take_peak()
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        loss = _step(way, network, optimizer, image.to(DEVICE, non_blocking=True), truth.to(DEVICE, non_blocking=True))
        seconds = time.perf_counter() - started
        peak = {"peak_bytes": torch.cuda.max_memory_allocated()} if DEVICE == "cuda" else {}
        talk.say(seconds=seconds, resident_bytes=resident.take_peak(), loss=loss, **peak)
    talk.say(finished=True)


def _step(
    way: InTorch, network: Any, optimizer: torch.optim.Optimizer, image: torch.Tensor, truth: torch.Tensor
) -> float:
    optimizer.zero_grad(set_to_none=True)
    arguments: dict[str, Any] = {}
    if way.checkpoint:
        arguments["wrap"] = lambda block, *x: checkpoint(block, *x, use_reentrant=False)
    with contextlib.ExitStack() as around:
        if way.save_on_cpu:
            around.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=DEVICE == "cuda"))
        if way.autocast:
            around.enter_context(torch.autocast(DEVICE, torch.bfloat16))
        loss = dice_loss(truth, network(image, **arguments).float())
    loss.backward()
    optimizer.step()
    return loss.item()  # a GPU runs behind: this waits for it


if __name__ == "__main__":
    main()
