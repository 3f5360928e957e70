"""Train a small GPT-2 in a loop of one's own: two workers, warm-up, clipping, generated text, save_pretrained."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


class Blocks(Dataset):
    def __init__(self, tokens, block):
        self.tokens, self.block = tokens, block

    def __len__(self):
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, i):
        return self.tokens[i * self.block : (i + 1) * self.block]


def main():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=5000, n_positions=192, n_embd=192, n_layer=4, n_head=6)
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, 5000, (40_000,))
    train = DataLoader(Blocks(tokens[:24_000], 192), batch_size=8, shuffle=True, num_workers=2)
    valid = DataLoader(Blocks(tokens[32_000:], 192), batch_size=16, num_workers=2)

    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))
    epochs = 1
    scheduler = get_linear_schedule_with_warmup(optimizer, 4, epochs * len(train))
    for epoch in range(epochs):
        model.train()
        total = 0
        for batch in train:
            out = model(batch, labels=batch)
            out.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += out.loss.detach()
        print(f"epoch {epoch}: {total.item() / len(train):.3f}")

        model.eval()
        losses = []
        for batch in valid:
            with torch.no_grad():
                losses.append(model(batch, labels=batch).loss)
        print(f"valid {torch.stack(losses).mean().item():.3f}")
        model.save_pretrained("gpt2-out")


if __name__ == "__main__":
    main()
