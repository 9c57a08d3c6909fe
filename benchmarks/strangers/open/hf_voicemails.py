"""Who should call back? Transcripts of voicemails, a DistilBERT of our own size, a word-level tokenizer, the Trainer."""

import os
import random
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch.utils.data import Dataset
from transformers import (
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

DESKS = ["sales", "repairs", "invoices", "complaints", "jobs"]
MAX_LENGTH = 128


def transcripts(n, seed):
    rnd = random.Random(seed)
    lexicon = ["".join(random.Random(i).choices("aeioubdklmnrst", k=4 + i % 5)) for i in range(1500)]
    found = []
    for _ in range(n):
        desk = rnd.randrange(len(DESKS))
        length = min(MAX_LENGTH - 4, max(6, int(rnd.lognormvariate(3.0, 0.45))))
        words = [lexicon[desk * 40 + rnd.randrange(40)] if rnd.random() < 0.15 else rnd.choice(lexicon) for _ in range(length)]
        found.append((" ".join(words), desk))
    return found


def build_tokenizer(texts):
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    words.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", model_max_length=MAX_LENGTH)


class Voicemails(Dataset):
    def __init__(self, calls, tokenizer):
        texts = [text for text, _ in calls]
        padding = False if os.environ.get("REPAIRED") == "1" else "max_length"
        self.encoded = tokenizer(texts, truncation=True, max_length=MAX_LENGTH, padding=padding)
        self.desks = [desk for _, desk in calls]

    def __len__(self):
        return len(self.desks)

    def __getitem__(self, i):
        return {
            "input_ids": self.encoded["input_ids"][i],
            "attention_mask": self.encoded["attention_mask"][i],
            "labels": self.desks[i],
        }


def main():
    set_seed(7)
    calls = transcripts(1440, 1)
    tokenizer = build_tokenizer([text for text, _ in calls])
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=128, n_layers=3, n_heads=4, hidden_dim=384,
                              max_position_embeddings=MAX_LENGTH, num_labels=len(DESKS))
    arguments = TrainingArguments(
        output_dir="voicemails",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=DistilBertForSequenceClassification(config),
        args=arguments,
        train_dataset=Voicemails(calls, tokenizer),
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    t0 = time.time()
    trainer.train()
    print("training took %.2f s" % (time.time() - t0))
    trainer.model.eval()
    with torch.inference_mode():
        text, desk = calls[0]
        print(DESKS[trainer.model(**tokenizer(text, return_tensors="pt")).logits.argmax().item()], "for", DESKS[desk])


if __name__ == "__main__":
    main()
