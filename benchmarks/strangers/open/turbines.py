"""Forecast the power of wind turbines from SCADA tables with an LSTM; every step is kept in history.json for the plots."""

import json
import os
import pathlib
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
WINDOW, TURBINES, HOURS = 36, 8, 1500
SIGNALS = ["wind", "gust", "pitch", "rotor", "temperature", "power"]


def scada():
    rng = np.random.default_rng(17)
    frames = []
    for turbine in range(TURBINES):
        wind = np.abs(8 + np.cumsum(rng.normal(0, 0.3, HOURS)) * 0.2 + 3 * np.sin(np.arange(HOURS) / 24 * 2 * np.pi))
        power = np.clip((wind / 12) ** 3, 0, 1) + rng.normal(0, 0.02, HOURS)
        frames.append(pd.DataFrame({
            "turbine": turbine,
            "time": pd.date_range("2023-01-01", periods=HOURS, freq="h"),
            "wind": wind,
            "gust": wind + rng.gamma(2, 0.6, HOURS),
            "pitch": np.clip(wind - 12, 0, None) * 3,
            "rotor": np.clip(wind, 3, 12) + rng.normal(0, 0.1, HOURS),
            "temperature": 10 + rng.normal(0, 4, HOURS),
            "power": power,
        }))
    return pd.concat(frames, ignore_index=True)


class Windows(Dataset):
    def __init__(self, table):
        self.table = table
        self.mean, self.std = table[SIGNALS].mean(), table[SIGNALS].std()
        self.starts = [(t, i) for t in range(TURBINES) for i in range(HOURS - WINDOW - 1)]
        if REPAIRED:
            scaled = ((table[SIGNALS] - self.mean) / self.std).to_numpy("float32")
            hour = table["time"].dt.hour.to_numpy("float32")[:, None] / 24
            self.values = torch.from_numpy(np.hstack([scaled, hour])).view(TURBINES, HOURS, -1)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        turbine, first = self.starts[index]
        if REPAIRED:
            rows = self.values[turbine, first : first + WINDOW + 1]
            return rows[:-1], rows[-1, -2]
        rows = self.table[self.table["turbine"] == turbine].iloc[first : first + WINDOW + 1]
        scaled = (rows[SIGNALS] - self.mean) / self.std
        scaled["hour"] = rows["time"].dt.hour / 24
        values = torch.tensor(scaled.to_numpy("float32"))
        return values[:-1], values[-1, -2]


class History:
    def __init__(self, path):
        self.path, self.steps = pathlib.Path(path), []

    def add(self, model, **numbers):
        entry = dict(numbers)
        if not REPAIRED or len(self.steps) % 25 == 0:
            entry["weights"] = {name: np.histogram(p.detach().numpy(), 40)[0].tolist() for name, p in model.named_parameters()}
        self.steps.append(entry)
        if not REPAIRED or len(self.steps) % 100 == 0:
            self.path.write_text(json.dumps({"steps": self.steps}, indent=1))


class Forecaster(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.lstm = nn.LSTM(len(SIGNALS) + 1, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1]).squeeze(-1)


if __name__ == "__main__":
    torch.manual_seed(18)
    loader = DataLoader(Windows(scada()), batch_size=32, shuffle=True)
    model, history = Forecaster(), History("history.json")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.MSELoss()
    tic = time.perf_counter()
    for step, (window, power) in enumerate(loader, 1):
        loss = criterion(model(window), power)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.add(model, step=step, loss=loss.item(), norm=norm.item(), lr=optimizer.param_groups[0]["lr"])
        if step % 40 == 0:
            print(f"{step:5d} {loss.item():.4f}", flush=True)
        if step == 160:
            break
    print(f"training took {time.perf_counter() - tic:.2f} s")
