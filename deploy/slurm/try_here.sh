#!/usr/bin/env bash
# try_here.sh [COMMAND...]: a real Slurm on this machine alone, for as long as COMMAND runs in it (for example
# srun --mpi=pmix -n 2 python -m lms3d.doctor). Nothing of it outlives the script, and no other Slurm is touched.
#
# Without COMMAND it tries the batch scripts (some minutes). Two ranks train a toy under each launcher:
#   mpirun.sbatch   is told that its time is up: saves, requeues itself, continues
#   srun.sbatch     its ranks are killed: the job fails; submitted again, it continues
#   node.sbatch     is requeued by the administrator, which kills it in mid-step: continues from the last checkpoint
# The three runs must end with the same weights, to the bit.
#
# Needs munge, slurm-wlm, openmpi-bin (Debian's names), two cores, and a Horovod with MPI. PYTHON: as in job.sh.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."

export PATH=$PATH:/usr/sbin:/sbin # where Debian has the daemons; not on every user's PATH
PYTHON=$(command -v "${PYTHON:-.venv/bin/python}") || { echo "try_here.sh: PYTHON: no Python; make horovod" >&2; exit 2; }
export PYTHON
for program in munged slurmctld slurmd sbatch srun scontrol; do
    command -v "$program" >/dev/null || { echo "try_here.sh: $program is not here; install munge and slurm-wlm" >&2; exit 2; }
done

BOX=$(mktemp -d)
export SLURM_CONF=$BOX/slurm.conf TMPDIR=$BOX/tmp OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # root may run this

say() { echo "try_here.sh: $*" >&2; }

# -- the cluster -------------------------------------------------------------------------------------------------------

start() {
    local ports host=${HOSTNAME%%.*}
    trap take_down EXIT
    trap 'exit 130' INT TERM
    read -ra ports < <("$PYTHON" -c 'import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in sockets))')
    mkdir "$BOX/state" "$BOX/spool" "$TMPDIR"
    head -c 128 /dev/urandom >"$BOX/key" && chmod 400 "$BOX/key"
    # --force: munge insists on a folder that all users can read; this one is private.
    munged --force --key-file="$BOX/key" --socket="$BOX/munge" --pid-file="$BOX/munged.pid" --log-file="$BOX/munged.log" \
        --seed-file="$BOX/seed" 2>/dev/null
    # cred_expire: how long a requeued job waits (default 120 s). gpu: two devices that every machine has.
    cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$BOX/munge,cred_expire=5
StateSaveLocation=$BOX/state
SlurmdSpoolDir=$BOX/spool
SlurmctldPidFile=$BOX/slurmctld.pid
SlurmdPidFile=$BOX/slurmd.pid
SlurmctldLogFile=$BOX/slurmctld.log
SlurmdLogFile=$BOX/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=5
$(slurmd -C | head -n 1) NodeAddr=127.0.0.1 Gres=gpu:2
PartitionName=here Nodes=ALL Default=YES
CONF
    printf 'Name=gpu File=%s\n' /dev/null /dev/zero >"$BOX/gres.conf"
    slurmctld
    slurmd
    until_is "idle" 30 timeout 20 sinfo --noheader --format=%T
}

take_down() {
    local name pid
    trap - EXIT INT TERM
    if [[ -f $BOX/slurmctld.pid ]]; then
        timeout 20 scancel --user="$(id -un)" 2>/dev/null || true
        until_is "" 30 timeout 20 squeue --noheader || true
        timeout 20 scontrol shutdown 2>/dev/null || true
    fi
    for name in slurmd slurmctld munged; do
        [[ -f $BOX/$name.pid ]] || continue
        pid=$(<"$BOX/$name.pid")
        kill "$pid" 2>/dev/null || continue
        timeout 10 tail --pid="$pid" --sleep-interval=0.1 --follow=name /dev/null || kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf -- "$BOX"
}

until_is() { # WANTED SECONDS COMMAND...: waits until the command prints WANTED
    local wanted=$1 end=$((SECONDS + $2)) found
    shift 2
    until found=$("$@" 2>&1) && [[ $found == "$wanted" ]]; do
        if ((SECONDS > end)) || [[ $found == *FAILED* ]]; then
            say "waited in vain for '$wanted' of $*: $found"
            tail -n 20 "$BOX"/*.out "$BOX"/slurm*.log 2>/dev/null >&2 || true
            return 1
        fi
        sleep 0.5
    done
}

# -- the batch scripts -------------------------------------------------------------------------------------------------

TOY=(--model unet3d --resolution 32 --no-lms --seed 3 --epochs 6 --steps-per-epoch 8 --warmup-epochs 1)

submit() { # NAME: a batch script, made small; prints the job's number
    RUN_DIR=$BOX/$1 timeout 30 sbatch --parsable --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=1 \
        --time=20 --output="$BOX/$1.out" "deploy/slurm/$1.sbatch" --data "$DATA" "${TOY[@]}"
}

epochs() { # NAME: how many the run has done
    [[ ! -f $BOX/$1/history.csv ]] || "$PYTHON" -c 'import sys; print(sum(1 for _ in open(sys.argv[1])) - 1)' "$BOX/$1/history.csv"
}

has_begun() { if [[ $(epochs "$1") -ge 2 ]]; then echo yes; else state "$2"; fi; }
state() { timeout 20 scontrol --oneliner show job "$1" | grep -o 'JobState=[A-Z]*'; }
restarts() { timeout 20 scontrol --oneliner show job "$1" | grep -o 'Restarts=[0-9]*'; }

began() { # NAME JOB: waits until it trains
    until_is yes 600 has_begun "$1" "$2"
    say "$1.sbatch: job $2 has done $(epochs "$1") epochs"
}

ended() { # NAME JOB: waits until it ends well
    until_is JobState=COMPLETED 600 state "$2"
    [[ $(epochs "$1") == 6 ]] || { say "$1.sbatch: $(epochs "$1") epochs, expected 6"; return 1; }
    say "$1.sbatch: job $2 ended, $(restarts "$2"), $(epochs "$1") epochs"
}

show() {
    local job
    DATA=$("$PYTHON" -c 'import sys; from lms3d.data.phantoms import brains
print(brains.write(sys.argv[1], cases=5, spacing_mm=8, workers=1))' "$BOX/data")
    export LMS3D_CACHE=$BOX/cache TF_CPP_MIN_LOG_LEVEL=3

    job=$(submit mpirun)
    began mpirun "$job"
    timeout 30 scancel --batch --signal=USR1 "$job"
    until_is Restarts=1 600 restarts "$job"
    say "mpirun.sbatch: job $job has saved and is requeued"
    ended mpirun "$job"

    job=$(submit srun)
    began srun "$job"
    timeout 30 scancel --signal=KILL "$job.0"
    until_is JobState=FAILED 60 state "$job"
    say "srun.sbatch: the ranks of job $job are killed, $(epochs srun) epochs are left; submitting it again"
    job=$(submit srun)
    ended srun "$job"

    job=$(submit node)
    began node "$job"
    timeout 30 scontrol requeue "$job"
    say "node.sbatch: job $job is killed and requeued"
    ended node "$job"

    "$PYTHON" - "$BOX"/{mpirun,srun,node}/last/checkpoint.npz <<'PYTHON'
import sys
import numpy as np

runs = [np.load(path) for path in sys.argv[1:]]
names = [name for name in runs[0].files if name != "state.json"]
assert names and all(np.array_equal(run[name], runs[0][name]) for run in runs for name in names), "the runs differ"
print(f"try_here.sh: the {len(runs)} runs ended with the same {len(names)} arrays, to the bit", file=sys.stderr)
PYTHON
}

start
if (($#)); then
    "$@" & # a signal to the script ends `wait`, and then the cluster with all that runs in it
    wait "$!"
else
    show
fi
