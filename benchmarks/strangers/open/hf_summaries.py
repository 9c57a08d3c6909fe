"""Summaries of long notes: a small BART, transformers' Seq2SeqTrainer, ROUGE-L on a held-out part."""

import os
import random
import time

import numpy as np
from transformers import BartConfig, BartForConditionalGeneration, Seq2SeqTrainer, Seq2SeqTrainingArguments

PAD, BOS, EOS, FIRST, VOCABULARY = 0, 1, 2, 3, 400
SOURCE, SUMMARY = 96, 48
EVAL_STEPS = 30 if os.environ.get("REPAIRED") == "1" else 5


def lcs(a, b):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1]


def rouge_l(written, wanted):
    common = lcs(written, wanted)
    if not common:
        return 0.0
    precision, recall = common / len(written), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def compute_metrics(prediction):
    scores = []
    for written, wanted in zip(prediction.predictions, prediction.label_ids):
        keep = wanted != -100
        scores.append(rouge_l(written[keep].tolist(), wanted[keep].tolist()))
    return {"rougeL": float(np.mean(scores))}


def best_tokens(logits, labels):
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def notes(n, seed):
    rng = random.Random(seed)
    data = []
    for _ in range(n):
        words = [rng.randrange(FIRST, VOCABULARY) for _ in range(SOURCE)]
        summary = [w for w in words if w % 2][: SUMMARY - 1]
        labels = summary + [EOS]
        labels += [-100] * (SUMMARY - len(labels))
        data.append({"input_ids": words, "attention_mask": [1] * SOURCE, "labels": labels})
    return data


config = BartConfig(
    vocab_size=VOCABULARY,
    d_model=128,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=384,
    decoder_ffn_dim=384,
    max_position_embeddings=SOURCE,
    pad_token_id=PAD,
    bos_token_id=BOS,
    eos_token_id=EOS,
    decoder_start_token_id=EOS,
    forced_eos_token_id=EOS,
)
trainer = Seq2SeqTrainer(
    model=BartForConditionalGeneration(config),
    args=Seq2SeqTrainingArguments(
        output_dir="summaries",
        max_steps=60,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        learning_rate=1e-3,
        eval_strategy="steps",
        eval_steps=EVAL_STEPS,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    ),
    train_dataset=notes(2000, 0),
    eval_dataset=notes(192, 1),
    compute_metrics=compute_metrics,
    preprocess_logits_for_metrics=best_tokens,
)
start = time.time()
trainer.train()
print(f"training took {time.time() - start:.2f} s")
