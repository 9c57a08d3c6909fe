"""PEFT: LoRA adapters on a small GPT-2, trained by transformers' Trainer; the base stays frozen."""

import counted
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

tokens = torch.randint(0, 90, (40, 16))
base = GPT2LMHeadModel(GPT2Config(vocab_size=90, n_positions=32, n_embd=32, n_layer=2, n_head=4))
lora = LoraConfig(
    r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
)
model = get_peft_model(base, lora)
model.print_trainable_parameters()
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, max_steps=15 * counted.SCALE, logging_steps=5, save_strategy="no", report_to=[],
    use_cpu=True, disable_tqdm=True, learning_rate=1e-3,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=counted.Rows(tokens, tokens, names=("input_ids", "labels")))
trainer.train()
counted.finish(
    model,
    train=trainer.state.global_step,
    losses=[row["loss"] for row in trainer.state.log_history if "loss" in row],
)
