"""TRL's DPOTrainer: preferences, with a frozen reference model that runs in each step."""

import counted
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

WORDS = [f"w{number}" for number in range(60)]
plain = Tokenizer(
    models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, **{w: n + 3 for n, w in enumerate(WORDS)}}, "<unk>")
)
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def texts(rows, words):
    return [" ".join(WORDS[i] for i in row) + " " for row in torch.randint(0, len(WORDS), (rows, words)).tolist()]


config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1)
model, reference = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
reference.load_state_dict(model.state_dict())
arguments = DPOConfig(
    output_dir="out", per_device_train_batch_size=4, max_steps=8 * counted.SCALE, save_strategy="no", report_to=[], logging_steps=2,
    use_cpu=True, bf16=False, disable_tqdm=True, max_length=32,
)  # fmt: skip
preferences = Dataset.from_dict({"prompt": texts(32, 4), "chosen": texts(32, 6), "rejected": texts(32, 6)})
trainer = DPOTrainer(model, reference, args=arguments, train_dataset=preferences, processing_class=tokenizer)
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
counted.finish(trainer.model, train=trainer.state.global_step, losses=losses)
