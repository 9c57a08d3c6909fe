#!/bin/bash
# TaskProlog in slurm.conf: runs before each task as its user, and what it prints as "export" is set in the task.
config=/shared/sm-profiler.json  # without it, nothing is profiled
targets=/shared/sm-profiler-targets  # for Prometheus; without it, no port is opened

set_unless_set() {  # so that a job can choose another configuration, or SM_PROFILER_AUTO=0
    [ -n "${!1+set}" ] || echo "export $1=$2"
}
if [ -r "$config" ]; then
    set_unless_set SM_PROFILER_AUTO 1
    set_unless_set SM_PROFILER_CONFIG "$config"
    set_unless_set SM_PROFILER_DELETE_UPLOADED 1  # what is in the bucket does not stay on the node
    if [ -d "$targets" ]; then
        set_unless_set SM_PROFILER_METRICS_PORT 9400
        set_unless_set SM_PROFILER_METRICS_ADDRESS 0.0.0.0
        set_unless_set SM_PROFILER_METRICS_TARGETS "$targets"
    fi
fi
