#!/bin/bash
# TaskProlog in slurm.conf: runs before each task as its user, and what it prints as "export" is set in the task.
config=/shared/sm-profiler.json  # without it, nothing is profiled

set_unless_set() {  # so that a job can choose another configuration, or SM_PROFILER_AUTO=0
    [ -n "${!1+set}" ] || echo "export $1=$2"
}
if [ -r "$config" ]; then
    set_unless_set SM_PROFILER_AUTO 1
    set_unless_set SM_PROFILER_CONFIG "$config"
fi
