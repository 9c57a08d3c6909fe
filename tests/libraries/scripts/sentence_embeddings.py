"""sentence-transformers: pairs with in-batch negatives, by its own trainer; the model is called twice per step."""

import counted
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = [f"w{number}" for number in range(60)]
special = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
plain = Tokenizer(models.WordLevel({**special, **{word: n + 5 for n, word in enumerate(WORDS)}}, "[UNK]"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain,
    pad_token="[PAD]",
    unk_token="[UNK]",
    cls_token="[CLS]",
    sep_token="[SEP]",
    mask_token="[MASK]",
)
bert = BertModel(
    BertConfig(vocab_size=65, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
)


def sentences(rows):
    return [" ".join(WORDS[i] for i in row) for row in torch.randint(0, len(WORDS), (rows, 8)).tolist()]


import tempfile

with tempfile.TemporaryDirectory() as folder:
    bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    words = Transformer(folder)
    model = SentenceTransformer(modules=[words, Pooling(32)], device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=folder, num_train_epochs=2 * counted.SCALE, per_device_train_batch_size=8, save_strategy="no", report_to=[],
        logging_steps=2, use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    pairs = Dataset.from_dict({"anchor": sentences(64), "positive": sentences(64)})
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
    )
    trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
counted.finish(model, train=trainer.state.global_step, losses=losses)
