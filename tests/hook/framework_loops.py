"""Train with popular training libraries, and print what the script itself counted: run by test_hook_frameworks.py.

    python framework_loops.py FOLDER SCENARIO …

The scenarios run in one process and contain nothing about a hook.  Prints one JSON object per scenario: its start and
end, the numbers of steps, forwards, backwards, optimizer steps and batches, and a
digest of all losses, parameters, gradients and random states.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import torch_loops
from torch.utils.data import DataLoader
from torch_loops import Counted, counted_loader
from training_matrix import LOSS, Net, Truth, data

from sm_profiler.hook import overhead

HF_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
os.environ.update(HF_OFFLINE)
warnings.simplefilter("ignore")


# transformers


def transformers_trainer(truth: Truth, folder: Path) -> None:
    """Accumulation, an evaluation and a checkpoint in the middle of the epochs, an odd number of batches."""
    trainer = _trainer(truth, folder, rows=56, accumulate=2)
    trainer.train()
    trainer.evaluate()
    trainer.predict(trainer.eval_dataset)
    truth.see_all(trainer.model)


def transformers_resumed(truth: Truth, folder: Path) -> None:
    """A second trainer goes on in the middle of an epoch, from the checkpoint of the first."""
    trainer = _trainer(truth, folder, rows=56, accumulate=2, num_train_epochs=1)
    trainer.train()
    other = _trainer(truth, folder, rows=56, accumulate=2, num_train_epochs=2)
    other.train(resume_from_checkpoint=str(folder / "trainer-2" / "checkpoint-2"))
    truth.see_all(trainer.model, other.model)


def transformers_workers(truth: Truth, folder: Path) -> None:
    """A worker, accumulation over more batches than an epoch has left."""
    trainer = _trainer(truth, folder, rows=56, accumulate=4, dataloader_num_workers=1)
    trainer.train()
    truth.see_all(trainer.model)


def transformers_compiled(truth: Truth, folder: Path) -> None:
    """The Trainer trains the compiled model, and evaluates the one that it compiled."""
    trainer = _trainer(truth, folder, rows=56, accumulate=2, torch_compile=True, torch_compile_backend="eager")
    trainer.train()
    truth.see_all(trainer.model)


def _trainer(truth: Truth, folder: Path, *, rows: int, accumulate: int, **more):  # a Trainer has that many parts
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        num_labels=3,
    )

    class Model(BertForSequenceClassification):
        def forward(self, *args, **kwargs):
            truth.add(forward=1)
            return super().forward(*args, **kwargs)

    class Counting(Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            truth.see(loss)
            truth.add(train=1, backward=1)
            return loss

        def prediction_step(self, *args, **kwargs):
            truth.add(eval=1)
            return super().prediction_step(*args, **kwargs)

    class Optimizers(TrainerCallback):
        def on_optimizer_step(self, *_args, **_kwargs):
            truth.add(optimizer=1)

    workers = more.get("dataloader_num_workers", 0)

    def collate(records):
        if torch.utils.data.get_worker_info() is None:
            truth.add(wait=1)
        return {"input_ids": torch.stack([r["x"] for r in records]), "labels": torch.tensor([r["y"] for r in records])}

    class Counted(torch.utils.data.Dataset):
        def __init__(self, rows):
            self.x, self.y = torch.randint(0, 50, (rows, 8)), torch.randint(0, 3, (rows,))

        def __len__(self):
            return len(self.y)

        def __getitem__(self, index):
            return {"x": self.x[index], "y": self.y[index]}

    arguments = TrainingArguments(
        output_dir=str(folder / f"trainer-{accumulate}"),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=accumulate,
        eval_strategy="no" if workers else "steps",
        eval_steps=2,
        save_strategy="no" if workers else "steps",
        save_steps=2,
        logging_steps=3,
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        seed=5,
        **{"num_train_epochs": 2, **more},
    )
    trainer = Counting(
        Model(config),
        arguments,
        data_collator=collate,
        train_dataset=Counted(rows),
        eval_dataset=Counted(24),
        callbacks=[Optimizers()],
    )
    if workers:  # what is fetched in a worker counts there
        truth.add(wait=rows // 8 * arguments.num_train_epochs)
    return trainer


# accelerate


def accelerate_accumulation(truth: Truth, folder: Path) -> None:
    _accelerated(truth, accumulate=2, mixed_precision="no")


def accelerate_bf16(truth: Truth, folder: Path) -> None:
    _accelerated(truth, accumulate=3, mixed_precision="bf16")


def _accelerated(truth: Truth, *, accumulate: int, mixed_precision: str) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, cpu=True, mixed_precision=mixed_precision)
    inner = Counted(truth)
    model, optimizer, batches, held_out = accelerator.prepare(
        inner, torch.optim.AdamW(inner.parameters()), counted_loader(truth, 56), counted_loader(truth, 24)
    )
    schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1))
    for _ in range(2):
        model.train()
        for x, y in batches:
            with accelerator.accumulate(model):
                loss = LOSS(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    truth.add(optimizer=1)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            truth.see(loss)
            truth.add(train=1, backward=1)
        model.eval()
        for x, y in held_out:
            with torch.inference_mode():
                logits = model(x)
            truth.see(accelerator.gather_for_metrics(LOSS(logits, y)))
            truth.add(eval=1)
    truth.see_all(inner)


# Lightning


def lightning_trainer(truth: Truth, folder: Path) -> None:
    """Sanity check, validation twice an epoch, accumulation with an odd rest, then a test and a prediction."""
    trainer, module = _lightning(truth, folder, accumulate_grad_batches=2, max_epochs=2, val_check_interval=0.5)
    trainer.fit(module, counted_loader(truth, 56), counted_loader(truth, 24))
    trainer.test(module, counted_loader(truth, 16), verbose=False)
    trainer.predict(module, counted_loader(truth, 16))
    truth.see_all(module)


def lightning_without_length(truth: Truth, folder: Path) -> None:
    """A loader without a length: one batch is fetched ahead."""

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from data(56)

    def collate(records):
        truth.add(wait=1)
        return torch.utils.data.default_collate(records)

    trainer, module = _lightning(truth, folder, max_epochs=2, accumulate_grad_batches=2)
    trainer.fit(module, DataLoader(Rows(), batch_size=8, collate_fn=collate), counted_loader(truth, 24))
    truth.see_all(module)


def lightning_manual(truth: Truth, folder: Path) -> None:
    """Manual optimization with two optimizers, as a GAN has it."""
    trainer, module = _lightning(truth, folder, manual=True, max_epochs=2)
    trainer.fit(module, counted_loader(truth, 48))
    truth.see_all(module)


def _lightning(truth: Truth, folder: Path, *, manual: bool = False, **options):  # a module has that many parts
    import logging

    from lightning import LightningModule, Trainer

    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not manual
            self.net = Counted(truth)
            if manual:
                self.critic = Net(4, 1)

        def training_step(self, batch, _):
            x, y = batch
            loss = LOSS(self.net(x), y)
            truth.add(train=1, backward=1)
            truth.see(loss)
            if manual:
                self._both(x, loss)
            self.log("loss", loss)
            return loss

        def _both(self, x, loss):
            first, second = self.optimizers()
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
            second.zero_grad()
            fooled = self.critic(self.net(x).detach()).mean()
            self.manual_backward(fooled)
            second.step()
            truth.add(forward=1, backward=1, optimizer=2)

        def on_before_optimizer_step(self, _):
            if not manual:
                truth.add(optimizer=1)

        def validation_step(self, batch, _):
            x, y = batch
            self.log("held_out", LOSS(self.net(x), y))
            truth.add(eval=1)

        test_step = validation_step

        def predict_step(self, batch, _):
            truth.add(eval=1)
            return self.net(batch[0])

        def configure_optimizers(self):
            if manual:
                return torch.optim.Adam(self.net.parameters()), torch.optim.SGD(self.critic.parameters(), 0.1)
            optimizer = torch.optim.Adam(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
        **options,
    )
    return trainer, Module()


def run(name: str, folder: Path) -> dict:
    truth = Truth()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - the global state is what is compared
    begin = time.time()
    time.sleep(0.005)  # separates it from events of the previous scenario
    {**vars(torch_loops), **globals()}[name](truth, folder / name)
    time.sleep(0.005)
    return {"scenario": name, "begin": begin, "end": time.time(), **truth.counts, "digest": truth.digest.hexdigest()}


if __name__ == "__main__":
    overhead.OVER = sys.maxsize  # on a busy machine, phases would become sparse, and could not be counted
    for name in sys.argv[2:]:
        sys.stdout.write(json.dumps(run(name, Path(sys.argv[1]))) + "\n")
        sys.stdout.flush()
