"""Hugging Face Trainer, a tiny GPT-2 made from a config, accumulation, evaluation, bf16 on a GPU."""
import hashlib
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.nn.functional as F
from torch import nn

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
DEV = 'cuda' if torch.cuda.is_available() else 'cpu'


def truth(text):
    path = os.environ.get("STEPSCOPE_TRUTH")
    if path:
        with open(path, "a") as file:
            file.write(f"{text}\n")


def finish(models, updates):
    total = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            total.update(name.encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("weights", total.hexdigest())
    print("rng", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
    if torch.cuda.is_initialized():
        print("cuda rng", hashlib.sha256(torch.cuda.get_rng_state().numpy().tobytes()).hexdigest())
    truth(f"UPDATES {updates}")


os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        self.data = torch.randint(0, 128, (n, 32), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i], "labels": self.data[i]}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print(state.global_step, {key: repr(value) for key, value in (logs or {}).items()
                                  if key in ("loss", "grad_norm", "learning_rate", "eval_loss", "epoch")})


torch.manual_seed(44)
config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
                    attn_implementation="eager")
model = GPT2LMHeadModel(config)
arguments = TrainingArguments("out", per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=30,
                              learning_rate=1e-3, logging_steps=5, eval_strategy="steps", eval_steps=10, save_strategy="no",
                              report_to="none", disable_tqdm=True, seed=44, bf16=DEV == "cuda", dataloader_num_workers=0)
trainer = Trainer(model=model, args=arguments, train_dataset=Data(512, 1), eval_dataset=Data(32, 2), callbacks=[Show()])
trainer.remove_callback(PrinterCallback)
trainer.train()
print("steps", trainer.state.global_step, next(model.parameters()).device.type)
finish([model], trainer.state.global_step)
