#!/usr/bin/env bash
# rank.sh COMMAND...: one rank of a run. Launchers start this, once per rank.
#
# It registers itself in $LMS3D_RANKS (see ranks.sh) and becomes the command, so that stop.sh can reach the rank itself: a
# launcher that is told to end kills its ranks seconds later (horovodrun 5 s, mpirun 1 s), in the middle of a long step.
set -euo pipefail

# shellcheck source=deploy/ranks.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/ranks.sh"
rank=${LMS3D_RANK:-${HOROVOD_RANK:-${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}}}

mkdir -p -- "$(dirname -- "$LMS3D_RANKS")"
mkdir -m 700 -- "$LMS3D_RANKS" 2>/dev/null || private # it exists already, made by the batch script, another rank or another user
rmdir -- "$LMS3D_RANKS/asked" 2>/dev/null || true     # left by stop.sh when an earlier attempt of this job ended
echo "$$ $(started "$$")" >"$LMS3D_RANKS/$rank.new"
mv -- "$LMS3D_RANKS/$rank.new" "$LMS3D_RANKS/$rank.pid"
exec "$@"
