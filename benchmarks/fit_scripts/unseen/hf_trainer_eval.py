"""transformers Trainer: DistilBERT-like classifier, evaluation and saving each epoch."""

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments


class Toy(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(n)
        self.ids = torch.randint(5, 5000, (n, 64), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones(64, dtype=torch.long),
            "labels": int(self.ids[i, 0]) % 3,
        }


def metrics(p):
    return {"acc": float((np.argmax(p.predictions, 1) == p.label_ids).mean())}


config = DistilBertConfig(vocab_size=5000, dim=256, n_layers=3, n_heads=4, hidden_dim=1024, num_labels=3)
model = DistilBertForSequenceClassification(config)
args = TrainingArguments(
    "out",
    num_train_epochs=2,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=128,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
    report_to=[],
    use_cpu=True,
    logging_steps=5,
    gradient_accumulation_steps=2,
)
trainer = Trainer(model=model, args=args, train_dataset=Toy(320), eval_dataset=Toy(256), compute_metrics=metrics)
trainer.train()
print(trainer.evaluate())
