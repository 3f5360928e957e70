"""Classify made-up sentences with BERT by the Trainer of transformers, evaluated and saved after each epoch."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n, length=96, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 8000, (n, length), generator=g)
        self.labels = torch.randint(0, 2, (n,), generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones_like(self.ids[i]),
            "labels": self.labels[i],
        }


def compute_metrics(prediction):
    return {"accuracy": float(np.mean(np.argmax(prediction.predictions, axis=-1) == prediction.label_ids))}


config = BertConfig(
    vocab_size=8000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, num_labels=2
)
model = BertForSequenceClassification(config)
args = TrainingArguments(
    output_dir="bert-out",
    num_train_epochs=2,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=32,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=5,
    learning_rate=5e-5,
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Sentences(160),
    eval_dataset=Sentences(64, seed=1),
    compute_metrics=compute_metrics,
)
trainer.train()
print(trainer.evaluate())
