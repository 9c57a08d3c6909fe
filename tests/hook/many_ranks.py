"""One of many ranks on a node: trains with DDP and gloo, and writes what it used and a digest of its parameters to a folder."""

import hashlib
import json
import resource
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 40

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(STEPS, 8)), batch_size=1):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
used = {
    "digest": digest,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "files": len(list(Path("/proc/self/fd").iterdir())),
}
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(used))
torch.distributed.barrier()  # gloo aborts a rank whose peers leave before it
torch.distributed.destroy_process_group()
