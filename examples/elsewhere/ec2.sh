#!/bin/bash
# Run on each machine; NODE is 0 on the first one, 1 on the second. JOB is the same on all, and another for each run.
set -euo pipefail

export SM_PROFILER_AUTO=1
export SM_PROFILER_CONFIG='{"S3OutputPath": "s3://YOUR-BUCKET/profiles",
  "ProfilingParameters": {"LocalPath": "/tmp/sm-profiler/%u/%j"}}'
export TRAINING_JOB_NAME="${JOB:?}"
export SM_PROFILER_NODE_RANK="${NODE:-0}" SM_PROFILER_NODES="${NODES:-1}"

exec torchrun --nnodes="$SM_PROFILER_NODES" --node-rank="$SM_PROFILER_NODE_RANK" --nproc-per-node="${GPUS:-1}" \
    --master-addr="${FIRST:-127.0.0.1}" --master-port="${PORT:-29500}" train.py
