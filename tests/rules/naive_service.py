"""The service's rules, event by event and as slow as they are plain: what `compat="service"` has to equal."""

import json
from collections import defaultdict
from functools import cache

import numpy as np

MINUTE_US = 60_000_000
TIMELINES = ("pythontimeline", "model_timeline", "trace", "horovod_timeline")
PASSES = {"Forward-SubModuleInternal": "Forward pass", "Backward-SubModuleInternal": "Backward pass"}
LIMITS = {
    "CPUBottleneck": {"threshold": 50, "cpu_threshold": 90, "gpu_threshold": 10, "patience": 1000},
    "IOBottleneck": {"threshold": 50, "io_threshold": 50, "gpu_threshold": 10, "patience": 1000},
    "LowGPUUtilization": {"threshold_p95": 70, "threshold_p5": 10, "window": 500, "patience": 1000},
    "GPUMemoryIncrease": {"increase": 5, "patience": 1000, "window": 10},
    "BatchSize": {
        "cpu_threshold_p95": 70, "gpu_threshold_p95": 70, "gpu_memory_threshold_p95": 70, "patience": 1000, "window": 500,
    },
}  # fmt: skip


class Job:
    """All rows and events of a job, and the windows that the service evaluated."""

    def __init__(self, folder):
        self.rows = []
        minutes = []
        for path in sorted(folder.glob("system/incremental/*/*.json"), key=lambda path: path.name):
            minutes.append(int(path.name.partition(".")[0]) * 1_000_000)
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows.append(
                    (row["Timestamp"], row["NodeId"], row["Type"], row["Dimension"], row["Name"], row["Value"])
                )
        self.events = []
        traces = sorted(folder.glob("framework/pevents/*/*.json"), key=lambda path: path.name)
        for timeline in TIMELINES:
            for path in traces:
                if path.stem.endswith(timeline):
                    self.events += read_trace(path, timeline)
        last_trace_us = max((int(path.name.partition("_")[0]) for path in traces), default=max(minutes))
        end_us = min(max(minutes), last_trace_us)
        self.windows = [(at, at + MINUTE_US) for at in range(minutes[0], end_us, MINUTE_US)]
        self.rows_in = cache(lambda window: [row for row in self.rows if window[0] <= row[0] * 1e6 <= window[1]])

    def events_in(self, window):
        return [event for event in self.events if event[3] <= window[1] and event[4] >= window[0]]


def read_trace(path, timeline):
    """Return (process, phase, name, start, end, timeline, args) of each event."""
    process = path.name.partition("_")[2].removesuffix(f"_{timeline}.json")
    rank, _, node = process.partition("-")
    phases, base_us, found, stack = {}, 0, [], []
    for event in json.loads(path.read_text()):
        args = event.get("args", {})
        if event["ph"] == "M":
            base_us = args.get("start_time_since_epoch_in_micros", base_us)
            phases[event["pid"]] = args.get("name", phases.get(event["pid"], ""))
            continue
        start = base_us + event["ts"]
        if event["ph"] == "X":
            found.append((f"{node}-{rank}", phases[event["pid"]], event["name"], start, start + event["dur"], args))
        elif event["ph"] == "B":
            stack.append((phases[event["pid"]], event["name"], start))
        else:
            phase, name, began = stack.pop()
            found.append((f"{node}-{rank}", phase, name, began, start, args))
    return [(process, phase, name, start, end, timeline, args) for process, phase, name, start, end, args in found]


def whiskers(values, lower=None):
    p25, p50, p75, p95 = np.quantile(values, [0.25, 0.5, 0.75, 0.95])
    spread = 1.5 * (p75 - (p25 if lower is None else lower))
    ends = {"upper": min(p75 + spread, max(values)), "lower": max(p25 - spread, min(values))}
    return {"p25": p25, "p50": p50, "p75": p75, "p95": p95, **ends}


def shares(sums):
    return {key: 100 * value / sum(sums.values()) for key, value in sums.items()}


def bottleneck(job, limits, dimension, hot_threshold):
    at, datapoints, triggered = 0.0, 0, 0
    idle, hot, found, sums = defaultdict(set), defaultdict(set), {}, defaultdict(lambda: defaultdict(float))
    for window in job.windows:
        here = {}
        for time_s, node, _, row_dimension, name, value in job.rows_in(window):
            if abs(time_s - at) > 0.02:
                at, datapoints = time_s, datapoints + 1
            here[at] = True
            if row_dimension == "GPUUtilization" and value < limits["gpu_threshold"]:
                idle[at].add((node, name))
            if row_dimension == dimension and value > hot_threshold:
                hot[at].add((node, name))
        here = [time_s for time_s in here if time_s in idle and time_s in hot]
        found |= {str(time_s): {"GPUs": len(idle[time_s]), "CPUs": len(hot[time_s])} for time_s in here}
        if datapoints > limits["patience"] and 100 * len(found) / datapoints > limits["threshold"]:
            triggered += 1
            add_events_at(sums, job.events_in(window), here)
    details = {"low_gpu_utilization": len(idle), "bottlenecks": found}
    if triggered:
        details |= {"phase": shares(sums["phase"]), "general": shares(sums["general"])}
        details = {key: value for key, value in details.items() if value or key != "general"}
    return triggered, len(found), datapoints, details


def add_events_at(sums, events, times):
    for time_s in times:
        for _, phase, name, start, end, timeline, _ in events:
            if start < time_s * 1e6 < end:
                classify(sums, phase, name, end - start, timeline)


def classify(sums, phase, name, length, timeline):
    if "cpu" in phase or "gpu" in phase:
        return
    if "Step" in phase:
        sums["phase"][phase] += length
    elif phase not in PASSES and timeline != "horovod_timeline":
        sums["general"][phase] += length


def low_gpu(job, limits):
    series, hits, details = defaultdict(list), 0, {}
    for window in job.windows:
        for _, node, _, dimension, name, value in job.rows_in(window):
            if dimension == "GPUUtilization":
                series[node, name].append(value)
        for (node, gpu), values in series.items():
            datapoints = len(values)
            if datapoints > limits["patience"]:
                last = values[-limits["window"] :]
                p95, p5 = np.quantile(last, 0.95), np.quantile(last, 0.05)
                high = limits["threshold_p95"]
                if p95 < high or (p95 > high and p5 < limits["threshold_p5"]):
                    hits += 1
                    usage = {"gpu_max": max(last), "gpu_95": p95, "gpu_5": p5}
                    details.setdefault(node, {})[gpu] = {**usage, **whiskers(values)}
                    details["last_timestamp"] = window[0]
    return hits, hits, datapoints, details


def memory_increase(job, limits):
    series, hits, details, size = defaultdict(list), 0, {}, limits["window"]
    for window in job.windows:
        for _, node, _, dimension, gpu, value in job.rows_in(window):
            if dimension == "GPUMemoryUtilization":
                values = series[node, gpu]
                values.append(value)
                datapoints = len(values)
                if datapoints > max(size + 1, limits["patience"]):
                    rise = np.mean(values[-size:]) - np.mean(values[-size - 1 : -2])
                    if rise > limits["increase"]:
                        hits += 1
                        usage = {"increase": rise, "gpu_max": max(values), "p05": np.quantile(values, 0.05)}
                        details.setdefault(node, {})[gpu] = {**usage, **whiskers(values)}
                        details["last_timestamp"] = window[0]
    return hits, hits, datapoints, details


def batch_size(job, limits):
    cores, totals, devices, hits, details = set(), defaultdict(list), defaultdict(dict), 0, {}
    for window in job.windows:
        sums = defaultdict(float)
        for time_s, node, _, dimension, name, value in job.rows_in(window):
            if dimension == "CPUUtilization":
                cores.add(name)
                sums[node, time_s] += value
            elif dimension in {"GPUUtilization", "GPUMemoryUtilization"}:
                suffix = "_memory" if "Memory" in dimension else ""
                devices[node].setdefault(name + suffix, []).append(value)
        for (node, _), total in sums.items():
            totals[node].append(total / len(cores))
        for node, cpu in totals.items():
            datapoints, size = len(cpu), limits["window"]
            is_low = datapoints > max(size, limits["patience"])
            is_low = is_low and np.quantile(cpu[-size:], 0.95) < limits["cpu_threshold_p95"]
            for gpu in [name for name in devices[node] if is_low and not name.endswith("_memory")]:
                use, memory = devices[node][gpu], devices[node][f"{gpu}_memory"]
                if (
                    len(use) > size
                    and np.quantile(use[-size:], 0.95) < limits["gpu_threshold_p95"]
                    and np.quantile(memory[-size:], 0.95) < limits["gpu_memory_threshold_p95"]
                ):
                    hits += 1
                    boxes = {gpu: whiskers(use), f"{gpu}_memory": whiskers(memory, np.quantile(use, 0.25))}
                    details.setdefault(node, {}).update({"cpu": whiskers(cpu), **boxes})
                    details["last_timestamp"] = job.windows[0][0]
    return hits, hits, datapoints, details


def load_balancing(job):
    series = defaultdict(list)
    for window in job.windows:
        for _, node, _, dimension, gpu, value in job.rows_in(window):
            if dimension == "GPUUtilization":
                series[node, gpu].append(value)
    details = {}
    for (node, gpu), values in series.items():
        counts = np.histogram(values, bins=np.arange(0, 100, 2))[0].tolist()
        details.setdefault(node, {"workloads": {}})["workloads"][gpu] = counts
    return 0, 0, len(values), details


def initialization(job):
    times, steps = [], []
    for window in job.windows:
        times += [row[0] for row in job.rows_in(window)]
        steps += [event[3] for event in job.events_in(window) if "Step:ModeKeys" in event[2]]
    first_and_last = {"first": steps[0], "last": steps[-1]} if steps else {}
    return 0, 0, len(steps), {"step_num": first_and_last, "job_start": min(times), "job_end": max(times)}


def system_usage(job):
    names, sums = defaultdict(set), defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    wanted = {
        "Algorithm": "Network", "GPUUtilization": "GPU", "CPUUtilization": "CPU", "GPUMemoryUtilization": "GPU memory",
        "I/OWaitPercentage": "I/O",
    }  # fmt: skip
    for window in job.windows:
        rows = job.rows_in(window)
        for _, _, kind, dimension, name, _ in rows:
            if dimension in wanted and kind in {"cpu", "gpu"}:
                names[kind].add(name)
        of_window = defaultdict(float)
        for time_s, node, kind, dimension, name, value in rows:
            metric = "CPU memory" if name == "MemoryUsedPercent" else wanted.get(dimension)
            if metric:
                of_window[metric, node, time_s, kind] += value
        for (metric, node, _, kind), total in of_window.items():
            sums[metric][node]["values"].append(total / (len(names[kind]) if kind in names else 1))
    details = {}
    for metric in ("Network", "GPU", "CPU", "CPU memory", "GPU memory", "I/O"):
        details[metric] = {node: summary(found["values"]) for node, found in sums[metric].items()}
    return 0, 0, len(next(iter(sums["CPU"].values()))["values"]), details


def summary(values):
    p99, p95, p50 = np.quantile(values, [0.99, 0.95, 0.5])
    found = {"max": max(values), "p99": p99, "p95": p95, "p50": p50, "min": min(values)}
    return {name: max(0, float(np.round(value, 2))) for name, value in found.items()}


def step_outlier(job, stddev=3, tolerated=10):
    series, count, triggered, violations, details = {}, 0, 0, 0, {}
    for window in job.windows:
        for process, _, name, start, end, _, args in job.events_in(window):
            if "Step:ModeKeys" in name:
                count += 1
                lengths, numbers = series.setdefault(process, {}).setdefault(name, ([], []))
                lengths.append((end - start) / 1e6)
                numbers.append(args["step_num"])
        for process, phases in series.items():
            for name, (lengths, numbers) in phases.items():
                if len(lengths) > 100:
                    limit = np.mean(lengths) + stddev * np.std(lengths)
                    outliers = [number for number, length in zip(numbers, lengths, strict=True) if length > limit]
                    details[process] = {"phase": name, "number_of_outliers": len(outliers), "step_numbers": outliers}
                    if len(outliers) > tolerated:
                        triggered, violations = triggered + 1, violations + len(outliers)
    return triggered, violations, count, details


def dataloader(job):
    cores = len({row[4] for row in job.rows_in(job.windows[0]) if row[3] == "CPUUtilization"})
    counts, lengths, violations, details = [], [], 0, {}
    for window in job.windows:
        loading = [event for event in job.events_in(window) if event[1] in {"DataLoaderIter", "DataLoaderWorker"}]
        processes = defaultdict(set)
        for _, _, _, start, end, _, args in loading:
            lengths.append((end - start) / 1e6)
            processes[start // 1_000_000].add(args["pid"])
        if loading:
            counts = counts if len(counts) <= 1000 else []
            counts += [len(each) for each in processes.values()]
            median = int(np.median(counts))
            if len(counts) > 10:
                violations += (median < cores * 0.7) + (median > cores * 2)
            details = {"cores": cores, "dataloaders": median}
    return int(violations > 0), violations, len(lengths), details


def framework(job):
    steps, gpus, first_us = {}, set(), None
    for window in job.windows:
        for _, phase, _, start, end, _, _ in job.events_in(window):
            if "cpu" in phase.lower():
                continue
            if "gpu" in phase.lower():
                gpus.add(phase)
            elif "Step" in phase:
                first_us = start if first_us is None else first_us
                steps[phase] = steps.get(phase, 0) + end - start
                steps["others"] = (end - first_us) - sum(steps.values()) / max(len(gpus), 1)
    return 0, 0, 0, {"phase": shares(steps)}


def evaluate(folder, **given):
    """Return rule → (times triggered, violations, data points, details) of a job's folder."""
    job = Job(folder)
    limits = {rule: {**defaults, **given.get(rule, {})} for rule, defaults in LIMITS.items()}
    cpu, waiting = limits["CPUBottleneck"], limits["IOBottleneck"]
    return {
        "CPUBottleneck": bottleneck(job, cpu, "CPUUtilization", cpu["cpu_threshold"]),
        "IOBottleneck": bottleneck(job, waiting, "I/OWaitPercentage", waiting["io_threshold"]),
        "LowGPUUtilization": low_gpu(job, limits["LowGPUUtilization"]),
        "GPUMemoryIncrease": memory_increase(job, limits["GPUMemoryIncrease"]),
        "BatchSize": batch_size(job, limits["BatchSize"]),
        "LoadBalancing": load_balancing(job),
        "MaxInitializationTime": initialization(job),
        "OverallSystemUsage": system_usage(job),
        "StepOutlier": step_outlier(job),
        "Dataloader": dataloader(job),
        "OverallFrameworkMetrics": framework(job),
    }
