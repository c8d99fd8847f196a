"""The ways to train that are compared, by the names that tables give them. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass

NONE = "no LMS"
KERAS = "Keras fit as it is"
LMS = "LMS"
COPIED = "LMS that copies back"
TFLMS = "TFLMS auto-tune"
SWAP_ALL = "swap everything"
RECOMPUTE_ALL = "recompute everything"
RECOMPUTE_CHEAP = "recompute all but convolutions"
KERAS_REMAT = "keras.RematScope per block"
RECOMPUTE_GRAD = "tf.recompute_grad per block"
XLA = "XLA for the whole step"
UNCOMPILED = "LMS, compile off"
COMPILED = "LMS, compile auto"
TORCH = "PyTorch"
TORCH_CHECKPOINT = "torch.utils.checkpoint per block"
TORCH_SAVE_ON_CPU = "torch save_on_cpu"
TORCH_COMPILED = "torch.compile"
PREDICTION = "prediction"


@dataclass(frozen=True, kw_only=True)
class InTorch:
    """How PyTorch trains. mode: that of `torch.compile`, "" for eager. budget: its `activation_memory_budget`, the share of the
    activations that are kept. checkpoint: each block is one. autocast: to bfloat16. channels_last: the order of axes in memory."""

    mode: str = ""
    budget: float | None = None
    checkpoint: bool = False
    save_on_cpu: bool = False
    autocast: bool = False
    channels_last: bool = False


TORCH_METHODS: dict[str, InTorch] = {
    TORCH: InTorch(),
    f"{TORCH}, channels last": InTorch(channels_last=True),
    f"{TORCH}, bfloat16": InTorch(autocast=True),
    TORCH_CHECKPOINT: InTorch(checkpoint=True),
    TORCH_SAVE_ON_CPU: InTorch(save_on_cpu=True),
    TORCH_COMPILED: InTorch(mode="default"),
    f"{TORCH_COMPILED}, channels last": InTorch(mode="default", channels_last=True),
    f"{TORCH_COMPILED}, bfloat16": InTorch(mode="default", autocast=True),
    f"{TORCH_COMPILED}, max-autotune": InTorch(mode="max-autotune-no-cudagraphs"),
    **{
        f"{TORCH_COMPILED}, activation_memory_budget {budget}": InTorch(mode="default", budget=budget)
        for budget in (0.75, 0.5, 0.25, 0.0)
    },
}
UNIFORM = {
    SWAP_ALL: "swap_everything",
    RECOMPUTE_ALL: "recompute_everything",
    RECOMPUTE_CHEAP: "recompute_all_but_convolutions",
}
"""Method -> the planner of LMS that makes the same decision for every tensor."""
SAME_NUMBERS = (NONE, LMS, COPIED, TFLMS, *UNIFORM)
"""Methods that edit the same traced step: their weights must be the same bits."""
