#!/usr/bin/env bash
# rank.sh COMMAND...: one rank of a run. Launchers start this, once per rank.
#
# It notes its process id below $LMS3D_RANKS and becomes the command, so that stop.sh can reach the rank itself: a
# launcher that is told to end kills its ranks seconds later (horovodrun 5 s, mpirun 1 s), in the middle of a long step.
set -euo pipefail

: "${LMS3D_RANKS:?rank.sh: LMS3D_RANKS is not set; expected a folder of this machine, alone for this job}"
rank=${HOROVOD_RANK:-${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}}

mkdir -p -- "$LMS3D_RANKS"
rmdir -- "$LMS3D_RANKS/asked" 2>/dev/null || true # left by stop.sh when an earlier try of this job ended
echo "$$" >"$LMS3D_RANKS/$rank.pid"
exec "$@"
