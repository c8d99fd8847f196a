"""Ends all ranks soon after a rank dies or hangs. One rank says why, and how to continue.

| what happened                       | who notices, and when                                                        |
|-------------------------------------|------------------------------------------------------------------------------|
| a rank died, for whatever reason    | all: the watchdog at once, the link at the next exchange, the launcher        |
| a rank is stopped, a machine is gone | all: the watchdog after `WAIT_SECONDS`, Horovod as well                       |
| a rank fails with an error          | the rank itself, which reports the error before it leaves; the others end too |
| a rank's main thread hangs          | rank 0, after two minutes or twenty times the usual time: it names the rank   |
| a rank is only slow                 | nobody: ranks may plan, trace or read for as long as they need                |
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator, MutableMapping

from lms3d import errors
from lms3d.errors import RankLost
from lms3d.ranks.heartbeat import SILENT_SECONDS, Loss, Watchdog
from lms3d.ranks.lateness import Late
from lms3d.ranks.world import World

WAIT_SECONDS = round(SILENT_SECONDS)
ELASTIC_WAIT_SECONDS = 120  # a rank that joins has to start Python and TensorFlow while the others wait for it
LAST_SECONDS = 20  # in which a rank may close its files after a loss or an error of its own

_MESSAGES_OF_A_LOSS = (
    *("Horovod has been shut down", "Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("Timed out waiting", "Wait timeout after", "ncclRemoteError", "ncclSystemError"),
    *("Collective ops is aborted", "Socket closed"),  # of TensorFlow's collectives
)


def bound_waits(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limits the time that Horovod waits for a rank that does not answer. Call it before `hvd.init`. The user's values stay.

    Gloo's limit concerns ranks whose background thread is silent; that thread answers while Python plans or reads data.
    Horovod's stall check measures the time that a reduction waits for a slow rank: it may warn, but must not end the job.
    Horovod's log is hidden, because after a loss it lists socket addresses; `RankLost` says the same in one line.
    """
    wait = ELASTIC_WAIT_SECONDS if environ.get("HOROVOD_ELASTIC") == "1" else WAIT_SECONDS
    environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(wait))
    environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "600")
    environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")


def is_loss(error: BaseException | None) -> bool:
    """Whether Horovod or TensorFlow means by this error that another rank is gone."""
    while error is not None:
        classes = {kind.__name__ for kind in type(error).__mro__}
        if "HorovodInternalError" in classes:
            return True
        is_own = "ResourceExhaustedError" in classes  # a rank that lacks memory during an exchange aborts it
        if (
            not is_own
            and classes & {"OpError", "RuntimeError"}
            and any(words in str(error) for words in _MESSAGES_OF_A_LOSS)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def watched(world: World) -> Iterator[None]:
    """Within the block, the loss of another rank ends this process: by RankLost, or at once if the process is too busy for that.

    RankLost, and an error that only this rank has, are reported on stderr before they are raised, since launchers soon kill the
    other ranks. The other ranks leave silently.
    """
    if world.size == 1:
        yield
        return
    watchdog = Watchdog(
        world,
        lambda loss: _report(world, loss),
        RankLost.exit_code,
        begun=lambda: 0 if world.link is None else world.link.begun(),
        on_late=lambda late: _report_late(world, late),
    )
    farewell = "bye"
    try:
        yield
    except Exception as error:
        farewell = "failed"
        if is_loss(error):
            raise _rank_lost(world, watchdog) from error
        if not errors.is_of_all_ranks(error):
            errors.report_once(error, True)
            _bound_closing()
        raise
    finally:
        watchdog.close(farewell)


def _rank_lost(world: World, watchdog: Watchdog) -> RankLost:
    """The error to raise after an exchange failed. The watchdog may still be waiting for a rank that hangs."""
    loss = watchdog.wait_for_loss(2.0) or Loss(-1, "an exchange failed")
    if watchdog.loss is None:
        _report(world, loss)
    _bound_closing()
    return RankLost(_message(world, loss))


def _bound_closing() -> None:
    """Ends this process with exit code 1 after `LAST_SECONDS`, since closing must not wait for a rank that is gone. A thread that
    needs no Python lock does it; if that thread has ended, the kernel does."""
    faulthandler.dump_traceback_later(LAST_SECONDS, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    signal.alarm(LAST_SECONDS + 5)


def _report(world: World, loss: Loss) -> None:
    """Reports a loss, on one rank: rank 0, or rank 1 if rank 0 is lost."""
    speaker = 1 if loss.rank == 0 else 0
    if world.rank == speaker and not loss.reported:
        errors.say(f"error: {_message(world, loss)}")


def _report_late(world: World, late: Late) -> None:
    errors.say(
        f"rank {late.rank} of {world.size} keeps the others waiting: for {late.waited_seconds:.0f} s now, where exchange "
        f"{late.exchange} was due after about {late.usual_seconds:.1f} s; the job waits. If that rank hangs, end its process: "
        "the job then ends, and goes on from the last checkpoint with the same command and --resume"
    )


def _message(world: World, loss: Loss) -> str:
    who = f"rank {loss.rank} of {world.size}" if loss.rank >= 0 else f"one of {world.size} ranks"
    return f"{who} is lost ({loss.reason}); go on from the last checkpoint with the same command and --resume"
