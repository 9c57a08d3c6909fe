"""Fine-tune a small BERT on pairs of sentences, accumulating gradients over four micro-batches."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def get_data(pairs, length, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 3000, (pairs, length), generator=g)
    mask = torch.ones_like(ids)
    return TensorDataset(ids, mask, torch.randint(0, 2, (pairs,), generator=g))


def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.inference_mode():
        for ids, mask, labels in loader:
            correct += (model(input_ids=ids, attention_mask=mask).logits.argmax(-1) == labels).sum().item()
    model.train()
    return correct / len(loader.dataset)


def main(args):
    torch.manual_seed(args.seed)
    config = BertConfig(
        vocab_size=3000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, max_position_embeddings=128,
    )
    model = BertForSequenceClassification(config)
    train = DataLoader(get_data(3000, args.length, 0), batch_size=args.micro_batch, shuffle=True)
    dev = DataLoader(get_data(240, args.length, 1), batch_size=24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = get_linear_schedule_with_warmup(optimizer, 20, args.epochs * len(train) // args.accumulate)
    start = time.time()
    for epoch in range(args.epochs):
        running = 0.0
        for i, (ids, mask, labels) in enumerate(train, 1):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss / args.accumulate
            loss.backward()
            running += loss.detach()
            if i % args.accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if i % 80 == 0:
                print(f"epoch {epoch} micro-batch {i} loss {running.item() / 20:.4f}")
                running = 0.0
        print(f"epoch {epoch} accuracy {evaluate(model, dev):.3f}")
    model.save_pretrained("bert-pairs")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--seed", type=int, default=42)
    main(parser.parse_args())
