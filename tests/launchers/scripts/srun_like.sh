#!/bin/sh
# Starts two processes with the variables that srun gives to the tasks of a step.
export MASTER_ADDR=127.0.0.1 MASTER_PORT="$2" SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2
SLURM_PROCID=0 SLURM_LOCALID=0 "$1" grouped.py & first=$!
SLURM_PROCID=1 SLURM_LOCALID=1 "$1" grouped.py & second=$!
wait "$first" && wait "$second"
