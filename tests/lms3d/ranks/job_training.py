"""Two ranks train: as one rank with a batch of two, with LMS, interrupted, and resumed on another number of ranks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from lms3d import errors
from lms3d.device import startup
from lms3d.ranks import job
from lms3d.ranks.world import World
from tests.thorough import also

OPTIMISERS = ("adam", "averaged", *also("sgd"))
INTERRUPTS = {"mid_epoch": (1, 1, "train"), "validation": (0, 1, "test"), **dict(also(("last_step", (1, 3, "train"))))}
"""Name -> epoch, step and kind of step in which Ctrl-C comes."""


def main() -> None:
    with job.joined() as world:
        startup.start_tensorflow(seed=1, world=world)
        for check in (
            equivalence,
            files,
            statistics,
            drift,
            recorded,
            lms,
            interrupts,
            other_ranks,
            stopping,
            not_finite,
        ):
            check(world)


def equivalence(world: World, names: Sequence[str] = OPTIMISERS) -> None:
    """Five steps, dropout off: two ranks with a batch of one, and one rank with a batch of two."""
    import keras
    import ranks

    optimizers = {
        "adam": lambda: keras.optimizers.Adam(1e-2),
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=2),
    }
    for name in names:
        make = optimizers[name]
        model = ranks.make_model(world, optimizer=make())
        history = ranks.train(world, model, ranks.FOLDER / name, steps_per_epoch=5, epochs=1)
        ranks.note(world, **{name: ranks.values(model), f"{name}_rows": ranks.without_seconds(history.rows)})
        if world.is_chief:
            alone = ranks.make_model(World(), optimizer=make())
            history = ranks.train(World(), alone, ranks.FOLDER / f"{name}1", steps_per_epoch=5, epochs=1, batch_size=2)
            rows = ranks.without_seconds(history.rows)
            ranks.note(world, **{f"{name}_alone": ranks.values(alone), f"{name}_alone_rows": rows})
        world.wait()


def files(world: World) -> None:
    """The contents of the run folders, if each rank gets one of its own."""
    import ranks

    folder = ranks.FOLDER / f"own{world.rank}"
    ranks.train(world, ranks.make_model(world), folder, epochs=1)
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    ranks.note(world, files=[name for name in written if "tensorboard" not in name])


def statistics(world: World) -> None:
    """Moving statistics differ between ranks within an epoch, but not when validation begins."""
    import keras
    import numpy as np
    import ranks

    seen: dict[str, list[list[float]]] = {"within": [], "validating": []}

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch < ranks.STEPS - 1:
                seen["within"].append(self.moving())

        def on_test_begin(self, logs: Any = None) -> None:
            seen["validating"].append(self.moving())

        def moving(self) -> list[float]:
            moving = [v for v in self.model.non_trainable_variables if v.name.startswith("moving")]
            return np.concatenate([np.ravel(v) for v in moving]).astype(float).tolist()

    model = ranks.make_model(world, normalised=True, dropout=0.5)
    ranks.train(world, model, ranks.FOLDER / "statistics", Look(), epochs=2)
    seeds = [np.asarray(v).tolist() for v in model.variables if v.name == "seed_generator_state"]
    ranks.note(world, moving=seen, seeds=seeds, normalised=ranks.values(model))


def drift(world: World) -> None:
    """A weight of rank 1 changes in the second step, as on a processor that computes differently."""
    import ranks

    model = ranks.make_model(world, dropout=0.5, normalised=True)
    ranks.train(world, model, ranks.FOLDER / "drift", ranks.Slip(world, 1), epochs=1)
    ranks.note(world, drift=ranks.values(model))


def recorded(world: World) -> None:
    """The same change, in a job whose bits are compared with an undisturbed job's."""
    import keras
    import ranks

    from lms3d.keras_step.callback import LMS

    for name, slips in {"sound": (), "slips": (ranks.Slip(world, 1),)}.items():
        keras.backend.clear_session()  # layers have the names that they would have in another job
        callbacks = (LMS(enabled=False), *slips)
        folder = ranks.FOLDER / f"recorded_{name}"
        ranks.train(world, ranks.make_model(world), folder, *callbacks, epochs=1, record_bits=ranks.FOLDER / "bits")
        world.wait()


def lms(world: World) -> None:
    """The same training, with tensors swapped on both ranks, on either, or on none."""
    import ranks

    from lms3d.engine.cost import Machine
    from lms3d.engine.engine import Engine
    from lms3d.keras_step.callback import LMS

    Engine.machine = property(lambda self: Machine())
    Engine._with_ops = lambda self, graph, machine, function: (graph, machine)
    for name, swapping in {"none": (), "both": (0, 1), "one": (1,)}.items():
        callback = LMS(**ranks.SWAP_ALL) if world.rank in swapping else LMS(enabled=False)
        model = ranks.make_model(world, dropout=0.5)
        history = ranks.train(world, model, ranks.FOLDER / f"lms_{name}", callback, epochs=2)
        found = {"values": ranks.values(model), "rows": ranks.without_seconds(history.rows)}
        found["swaps"] = len(callback.plan.swap_outs)
        callback.close()
        ranks.note(world, **{f"lms_{name}": found})


def interrupts(world: World) -> None:
    """Ctrl-C on rank 1 alone stops both ranks. The resumed run ends with the bits of an uninterrupted one."""
    import ranks

    from lms3d.errors import Interrupted

    def outcome(model: Any, history: Any) -> dict[str, Any]:
        return {"values": ranks.values(model), "rows": ranks.without_seconds(history.rows)}

    def fresh() -> Any:
        return ranks.make_model(world, dropout=0.5, normalised=True)

    options = {"warmup_epochs": 2, "plateau_patience": 1}
    model = fresh()
    history = ranks.train(world, model, ranks.FOLDER / "undisturbed", **options)
    ranks.note(world, undisturbed=outcome(model, history))
    for name, (epoch, step, hook) in INTERRUPTS.items():
        folder, stopped = ranks.FOLDER / name, ""
        try:
            ranks.train(world, fresh(), folder, ranks.CtrlC(world, 1, epoch, step, hook), **options)
        except Interrupted as stop:
            stopped = f"{stop} {errors.is_of_all_ranks(stop)}"
        model = fresh()
        history = ranks.train(world, model, folder, resume=True, **options)
        at = [history.resumed_at.epoch, history.resumed_at.step]
        ranks.note(world, **{name: {**outcome(model, history), "stopped": stopped, "resumed_at": at}})


def other_ranks(world: World) -> None:
    """From two ranks to one, and from one to two, within an epoch."""
    import ranks

    alone = World() if world.is_chief else None  # rank 0 trains for itself, rank 1 has nothing to do
    _interrupted(world, "two", ranks.STEPS)
    ranks.note(world, two_to_one=alone and _resumed(alone, "two", 2 * ranks.STEPS))
    world.wait()
    if alone:
        _interrupted(alone, "one", ranks.STEPS)
    world.wait()
    ranks.note(world, one_to_two=_resumed(world, "one", ranks.STEPS // 2))


def _interrupted(world: World, name: str, steps: int) -> None:
    """Ends after the second step of the second epoch."""
    import ranks

    from lms3d.errors import Interrupted

    with contextlib.suppress(Interrupted):
        model, stop = ranks.make_model(world, normalised=True), ranks.CtrlC(world, 0, 1, 1)
        ranks.train(world, model, ranks.FOLDER / name, stop, steps_per_epoch=steps)


def _resumed(world: World, name: str, steps: int) -> dict[str, Any]:
    import numpy as np
    import ranks

    taken: list[int] = []
    sample = ranks.sample
    ranks.sample = lambda number: taken.append(number) or sample(number)
    model = ranks.make_model(world, normalised=True)
    history = ranks.train(world, model, ranks.FOLDER / name, resume=True, steps_per_epoch=steps)
    ranks.sample = sample
    return {
        "resumed_at": [history.resumed_at.epoch, history.resumed_at.step],
        "first_samples": [number for number in taken if number < 900][:3],
        "rate": float(np.asarray(model.optimizer.learning_rate)),
        "epochs": len(history.rows),
    }


def stopping(world: World) -> None:
    """A callback of one rank stops all of them."""
    import keras
    import ranks

    class Enough(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if world.rank == 1 and batch == 1:
                self.model.stop_training = True

    model = ranks.make_model(world)
    history = ranks.train(world, model, ranks.FOLDER / "stopped", Enough())
    ranks.note(world, stopped=[len(history.rows), int(model.optimizer.iterations)])


def not_finite(world: World) -> None:
    """The data of one rank is damaged."""
    import numpy as np
    import ranks

    from lms3d.errors import Diverged

    sample = ranks.sample
    damaged = 2 * ranks.STEPS + 3  # of rank 1, the second step of the second epoch
    ranks.sample = lambda number: (sample(number)[0], sample(number)[1] * (np.nan if number == damaged else 1))
    try:
        ranks.train(world, ranks.make_model(world), ranks.FOLDER / "diverged")
        ranks.note(world, diverged="")
    except Diverged as error:
        ranks.note(world, diverged=str(error))
    ranks.sample = sample


if __name__ == "__main__":
    sys.exit(errors.run(main))
