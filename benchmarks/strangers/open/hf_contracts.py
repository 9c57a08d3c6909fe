"""Is there a penalty clause in a contract? A tokenizer of our own and transformers' Trainer."""

import os
import random
import time

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, Trainer, TrainingArguments

ONCE = os.environ.get("REPAIRED") == "1"
SYLLABLES = [a + b for a in "bcdfglmnprstv" for b in ("a", "e", "i", "o", "u", "an", "er")]


def make_contracts(n, seed):
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(5000)]
    contracts = []
    for i in range(n):
        text = rng.choices(words, k=rng.randint(900, 2600))
        if i % 2:
            text[rng.randrange(40)] = "penalty"
        contracts.append({"text": " ".join(text).capitalize() + ".", "label": i % 2})
    return contracts


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False))
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


class Contracts(torch.utils.data.Dataset):
    def __init__(self, contracts, tokenizer, max_length=64):
        self.contracts, self.tokenizer, self.max_length = contracts, tokenizer, max_length
        self.ready = [self.encode(c) for c in contracts] if ONCE else None

    def encode(self, contract):
        features = self.tokenizer(
            contract["text"], truncation=True, max_length=self.max_length, padding="max_length", return_tensors="pt"
        )
        return {name: value[0] for name, value in features.items()} | {"labels": contract["label"]}

    def __len__(self):
        return len(self.contracts)

    def __getitem__(self, i):
        return self.ready[i] if self.ready else self.encode(self.contracts[i])


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    contracts = make_contracts(500, 0)
    tokenizer = make_tokenizer([c["text"] for c in contracts[:60]])
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=192, num_hidden_layers=3, num_attention_heads=4, intermediate_size=768,
        max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id,
    )
    args = TrainingArguments(
        output_dir="contracts",
        max_steps=130,
        per_device_train_batch_size=16,
        learning_rate=3e-4,
        lr_scheduler_type="cosine",
        logging_steps=26,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=args, train_dataset=Contracts(contracts, tokenizer)
    )
    begin = time.time()
    trainer.train()
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
