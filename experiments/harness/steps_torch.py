"""A child that trains the same network in PyTorch, one step each time that the parent asks for one."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from experiments.harness import batches, methods
from experiments.harness.network_torch import Isensee2017, dice_loss
from experiments.harness.part import MIB, InTorch, Part
from experiments.harness.talk import Resident, Talk, asked

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    part = Part.of(asked())
    talk = Talk()
    with talk.explained():
        torch.manual_seed(0)
        if part.limit_mib is not None and DEVICE == "cuda":
            whole = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(part.limit_mib * MIB / whole)
        torch.zeros(1, device=DEVICE) + 1
        resident = Resident()
        _train(part, talk, resident)


def _train(part: Part, talk: Talk, resident: Resident) -> None:
    way = methods.TORCH_METHODS[part.method]
    model = Isensee2017().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, eps=1e-7)
    image, truth = (torch.from_numpy(array).movedim(-1, 1).contiguous() for array in batches.volumes(part.resolution))
    order = torch.channels_last_3d if way.channels_last else torch.contiguous_format
    model, image = model.to(memory_format=order), image.to(memory_format=order)
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
        loss = _step(way, network, optimizer, image.to(DEVICE), truth.to(DEVICE))
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
