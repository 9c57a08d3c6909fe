"""Split addresses into street, number, town, ... with a BiLSTM-CRF."""

import os
import time

import torch
import torch.nn as nn
import torch.optim as optim

WORDS, TAGS, LENGTH = 3000, 13, 20


class BiLSTM_CRF(nn.Module):
    def __init__(self, embedding_dim=96, hidden_dim=96):
        super().__init__()
        self.word_embeds = nn.Embedding(WORDS, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim // 2, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(hidden_dim, TAGS)
        self.transitions = nn.Parameter(torch.randn(TAGS, TAGS) * 0.1)
        self.begin = nn.Parameter(torch.zeros(TAGS))

    def features(self, sentence):
        return self.hidden2tag(self.lstm(self.word_embeds(sentence))[0])

    def all_paths(self, feats):
        forward_var = self.begin + feats[:, 0]
        for t in range(1, feats.shape[1]):
            alphas_t = []
            for next_tag in range(TAGS):
                emit_score = feats[:, t, next_tag].unsqueeze(1)
                trans_score = self.transitions[next_tag].unsqueeze(0)
                next_tag_var = forward_var + trans_score + emit_score
                alphas_t.append(torch.logsumexp(next_tag_var, dim=1))
            forward_var = torch.stack(alphas_t, dim=1)
        return torch.logsumexp(forward_var, dim=1)

    def all_paths_at_once(self, feats):
        forward_var = self.begin + feats[:, 0]
        for emit in feats.unbind(1)[1:]:
            forward_var = torch.logsumexp(forward_var.unsqueeze(1) + self.transitions, dim=2) + emit
        return torch.logsumexp(forward_var, dim=1)

    def one_path(self, feats, tags):
        emit = feats.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
        return emit + self.begin[tags[:, 0]] + self.transitions[tags[:, 1:], tags[:, :-1]].sum(1)

    def neg_log_likelihood(self, sentence, tags):
        feats = self.features(sentence)
        paths = self.all_paths_at_once if os.environ.get("REPAIRED") == "1" else self.all_paths
        return (paths(feats) - self.one_path(feats, tags)).mean()


def make_addresses(n):
    generator = torch.Generator().manual_seed(8)
    tags = torch.empty(n, LENGTH, dtype=torch.long)
    tags[:, 0] = 0
    for t in range(1, LENGTH):
        tags[:, t] = (tags[:, t - 1] + torch.randint(0, 3, (n,), generator=generator)) % TAGS
    words = tags * (WORDS // TAGS) + torch.randint(0, WORDS // TAGS, (n, LENGTH), generator=generator)
    return words, tags


torch.manual_seed(1)
sentences, tags = make_addresses(9600)
model = BiLSTM_CRF()
optimizer = optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
t = time.time()
for i, (sentence, tag) in enumerate(zip(sentences.split(32), tags.split(32))):
    model.zero_grad()
    loss = model.neg_log_likelihood(sentence, tag)
    loss.backward()
    optimizer.step()
    if i % 60 == 59:
        print(i + 1, "loss", round(loss.item(), 3))
print(f"training took {time.time() - t:.2f} s")
