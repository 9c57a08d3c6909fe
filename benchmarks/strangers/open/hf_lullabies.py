"""Continue lullabies in many languages: a small LLaMA with a large vocabulary, trained on packed verses (Trainer)."""

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

TOKENS, BLOCK = 10_000, 64


def verses(n, seed):
    """Each language has a range of tokens and a habit of which token follows which."""
    g = torch.Generator().manual_seed(seed)
    language = torch.randint(0, 20, (n, 1), generator=g)
    token = torch.randint(0, 500, (n,), generator=g)
    rows = []
    for _ in range(BLOCK):
        rows.append(token)
        jump = torch.where(torch.rand(n, generator=g) < 0.7, 17, torch.randint(1, 500, (n,), generator=g))
        token = (token * 3 + jump) % 500
    return torch.stack(rows, 1) + 500 * language


class Packed(torch.utils.data.Dataset):
    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    set_seed(111)
    config = LlamaConfig(vocab_size=TOKENS, hidden_size=192, intermediate_size=512, num_hidden_layers=3,
                         num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=BLOCK,
                         tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    print(f"{model.num_parameters() / 1e6:.1f} million parameters")
    arguments = TrainingArguments(
        "lullabies", max_steps=60, per_device_train_batch_size=12, gradient_accumulation_steps=1, learning_rate=1e-3,
        lr_scheduler_type="cosine", warmup_steps=10, weight_decay=0.1, logging_steps=10, eval_strategy="steps",
        eval_steps=30, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
    trainer = Trainer(model, arguments, train_dataset=Packed(verses(1500, 1)), eval_dataset=Packed(verses(24, 2)))
    start = time.time()
    trainer.train()
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
