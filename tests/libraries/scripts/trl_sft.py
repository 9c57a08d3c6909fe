"""TRL's SFTTrainer: a small Llama on tokenized conversations, with accumulation and evaluation."""

import counted
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = [f"w{number}" for number in range(60)]
plain = Tokenizer(
    models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, **{w: n + 3 for n, w in enumerate(WORDS)}}, "<unk>")
)
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def texts(rows):
    picked = torch.randint(0, len(WORDS), (rows, 12))
    return Dataset.from_dict({"text": [" ".join(WORDS[i] for i in row) for row in picked.tolist()]})


config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
)  # fmt: skip
model = LlamaForCausalLM(config)
arguments = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=2 * counted.SCALE,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    logging_steps=2,
    use_cpu=True,
    bf16=False,
    disable_tqdm=True,
    max_length=16,
)
trainer = SFTTrainer(model, args=arguments, train_dataset=texts(48), eval_dataset=texts(16), processing_class=tokenizer)
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
# 48 records, 4 a batch, 8 a step; each of two evaluations has ceil(16 / 8) batches
counted.finish(
    trainer.model,
    train=trainer.state.global_step * arguments.gradient_accumulation_steps,
    evaluation=2 * counted.SCALE * len(trainer.get_eval_dataloader()),
    losses=losses,
)
