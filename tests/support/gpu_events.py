"""Events of made-up traces."""


def event(category, name, start, length, *, thread=1, **arguments):
    """Return a whole event."""
    pid = 0 if category in {"kernel", "gpu_memcpy", "gpu_memset"} else 100
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": thread,
        "ts": start,
        "dur": length,
        "args": arguments,
    }


def kernel(name, start, length, *, stream=7, correlation=-1):
    return event("kernel", name, start, length, thread=stream, stream=stream, device=0, correlation=correlation)


def call(start, length, correlation=-1, *, name="cudaLaunchKernel", thread=1):
    return event("cuda_runtime", name, start, length, thread=thread, correlation=correlation)
