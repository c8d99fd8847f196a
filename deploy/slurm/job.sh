# shellcheck shell=bash
# What the batch scripts of this folder share: they source it from the root of the repository.
#
#   launch COMMAND...   runs a launcher. What Slurm or you send to the batch shell meanwhile:
#     USR1   save, stop, and have Slurm requeue the job, which continues from the checkpoint (10 minutes before the
#            time limit, by `#SBATCH --signal=B:USR1@600`)
#     USR2   save and stop for good (scancel --batch --signal=USR2 JOB); plain scancel leaves no time to save
#
# Set by the user: PYTHON (.venv/bin/python), RUN_DIR (runs/slurm-JOB; a requeued job keeps its number), and TMPDIR.
set -euo pipefail

PYTHON=${PYTHON:-.venv/bin/python}
RUN_DIR=${RUN_DIR:-runs/slurm-$SLURM_JOB_ID}

export TTY_COMPATIBLE=0 # plain lines in the log: mpirun gives its ranks a terminal of its own

# --resume: the first start finds no checkpoint and begins; each later one continues.
TRAIN=(bash deploy/rank.sh "$PYTHON" -m lms3d.train --output "$RUN_DIR" --resume "$@")

say() { echo "$(date +%FT%T) ${SLURM_JOB_NAME:-job} $SLURM_JOB_ID: $*" >&2; }

launch() {
    local status=0 again=no
    say "${TRAIN[*]:2}"
    mkdir -p -- "$RUN_DIR" "${TMPDIR:-/tmp}"
    LMS3D_RANKS=$(mktemp -d -- "${TMPDIR:-/tmp}/lms3d-$SLURM_JOB_ID.XXXXXX") # mode 700, under a name that nobody can guess
    export LMS3D_RANKS
    touch -- "$RUN_DIR/.started" # beside the checkpoint, so that one file server's clock dates both
    trap 'rm -rf -- "$LMS3D_RANKS"' EXIT
    trap 'again=yes; _ask_to_save' USR1
    trap '_ask_to_save' USR2
    "$@" &
    _wait_for "$!" || status=$?
    if [[ $status -ne 0 && $again == yes ]] && _queue_again; then
        status=0
    fi
    return "$status"
}

_ask_to_save() {
    say "saving, then stopping"
    bash deploy/stop.sh || say "no rank answers on this node"
}

_wait_for() { # PID: its exit status; a trapped signal ends `wait` early
    local status
    while true; do
        status=0
        wait "$1" || status=$?
        kill -0 "$1" 2>/dev/null || return "$status"
    done
}

_queue_again() {
    if [[ ! $RUN_DIR/last/checkpoint.npz -nt $RUN_DIR/.started ]]; then
        say "no checkpoint is newer than this start: not requeued, it would never end; give more --time"
        return 1
    fi
    say "requeued, to continue from $RUN_DIR/last"
    scontrol requeue "$SLURM_JOB_ID"
}
