"""The programs as data: where they come from, how they are called, and what is true of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

EXAMPLES, LIGHTNING = "pytorch/examples", "Lightning-AI/pytorch-lightning"
COMMITS = {
    EXAMPLES: "77f55b9",
    "karpathy/nanoGPT": "3adf61e",
    "karpathy/minGPT": "37baab7",
    "kuangliu/pytorch-cifar": "49b7aa9",
    "huggingface/pytorch-image-models": "aa4b585",
    "huggingface/trl": "f2cd577",
    "huggingface/accelerate": "16cb6eb",
    "huggingface/diffusers": "58eb52c",
    "vwxyzjn/cleanrl": "fe8d8a0",
    LIGHTNING: "7f0c343",
    "keras-team/keras": "3422977",
}


@dataclass(frozen=True)
class Program:
    """One row.

    `call` is what follows `python`, in the folder `cwd` of a fresh copy of the paths `copied` of its repository; `data`
    are kinds of made data by the path at which the program looks for them, from the copy's top. `truth` says how steps
    are counted in a bare run: "optimizer" (steps of the busiest one), "optimizers" (of all of them), "backward" (an
    update by hand), "none" (it trains nothing), a number read from the program, or a pattern of stdout that holds it.
    `samples` are those of a usual step, None where the notion does not fit. `layers` overrides how many were counted.
    With `stop_after`, Ctrl-C is pressed once stdout has said it.
    """

    name: str
    special: str
    repository: str
    copied: tuple[str, ...]
    call: str
    cwd: str = "."
    data: tuple[tuple[str, str], ...] = ()
    truth: str = "optimizer"
    samples: float | None = None
    layers: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    stop_after: str | None = None
    terminal: bool = False
    limit_s: float = 180.0


def _example(name: str, special: str, call: str, **other: Any) -> Program:
    """A program of pytorch/examples, in the folder that the first word of its name says."""
    folder = name.split()[0]
    return replace(Program(name, special, EXAMPLES, (folder,), call, cwd=folder), **other)


def _language_model(mode: str, special: str, arguments: str = "", **other: Any) -> Program:
    call = f"main.py --epochs 1 --log-interval 10 {arguments}"
    settings = {"samples": 20, "data": _CORPUS, "truth": "backward", **other}
    return _example(f"word_language_model {mode}", special, call, **settings)


_MNIST = (("data", "mnist"),)
_CORPUS = (("word_language_model/data/wikitext-2", "wikitext"),)
_BY_HAND = "update by hand, torch.save of the model"
_NANOGPT: dict[str, Any] = {
    "repository": "karpathy/nanoGPT",
    "copied": ("train.py", "model.py", "configurator.py", "config"),
    "data": (("data/shakespeare_char", "shakespeare_char"),),
    "samples": 16,
}
_NANOGPT_CALL = (
    "train.py config/train_shakespeare_char.py --device=cpu --eval_iters=2 --eval_interval=20 --log_interval=1"
    " --block_size=32 --batch_size=4 --n_layer=2 --n_head=2 --n_embd=64 --max_iters=40 --lr_decay_iters=40"
    " --dropout=0.0 --gradient_accumulation_steps=4"
)
_TIMM: dict[str, Any] = {
    "repository": "huggingface/pytorch-image-models",
    "copied": ("train.py", "timm"),
    "data": (("images", "image_folders"),),
    "samples": 16,
}
_TIMM_CALL = (
    "train.py --data-dir images --device cpu --num-classes 10 --img-size 64 --batch-size 16 --workers 2 --output out"
    " --experiment one --log-interval 5"
)
_TRL = (
    "--model_name_or_path llama --output_dir out --max_steps 20 --per_device_train_batch_size 4 --logging_steps 5"
    " --use_cpu --report_to none --max_length 64 --save_strategy no --seed 1 --dtype float32"
    " --dataloader_num_workers 1"
)
_SFT: dict[str, Any] = {
    "repository": "huggingface/trl",
    "copied": ("trl/scripts/sft.py",),
    "data": (("llama", "llama"), ("chats", "conversations")),
}
_UNCONDITIONAL = "examples/unconditional_image_generation"
_DIFFUSION: dict[str, Any] = {
    "repository": "huggingface/diffusers",
    "copied": (_UNCONDITIONAL,),
    "cwd": _UNCONDITIONAL,
    "data": ((f"{_UNCONDITIONAL}/pictures", "flat_images"), (f"{_UNCONDITIONAL}/unet", "unet_config")),
    "samples": 4,
}
_DIFFUSION_CALL = (
    "train_unconditional.py --train_data_dir pictures --model_config_name_or_path unet/config.json --resolution 32"
    " --train_batch_size 4 --num_epochs 3 --ddpm_num_inference_steps 10 --eval_batch_size 2"
    " --dataloader_num_workers 0 --output_dir out --lr_warmup_steps 5"
)
_LAUNCH = "--num_machines 1 --mixed_precision no --dynamo_backend no"
_CLEANRL: dict[str, Any] = {
    "repository": "vwxyzjn/cleanrl",
    "env": (("PYTHONPATH", "{place}"),),
    "samples": 128,
}
_SHORT_DQN = "--total-timesteps 1400 --learning-starts 1000 --buffer-size 1000 --no-cuda"
_CLASSIFIER = "examples/fabric/image_classifier"
_FABRIC: dict[str, Any] = {
    "repository": LIGHTNING,
    "copied": (_CLASSIFIER,),
    "cwd": _CLASSIFIER,
    "data": (("Datasets", "mnist"),),
    "samples": 64,
}
_KERAS = (("KERAS_BACKEND", "torch"),)
_A_WHILE = r"(?:[6-9]\d|\d{3})/1250"  # its progress bar leaves steps out

SMALLEST = Program("smallest", "a loop of this repository, no row", "", (), "smallest.py")
PROGRAMS: tuple[Program, ...] = (
    _example(
        "mnist", "evaluation after each epoch, Adadelta", "main.py --epochs 2 --save-model", data=_MNIST, samples=64
    ),
    _example("mnist_rnn", "LSTM, Adadelta", "main.py --epochs 1 --save-model", data=_MNIST, samples=64),
    _example(
        "mnist_forward_forward", "each layer trains itself, `forward` is called directly",
        "main.py --epochs 20 --train_size 500 --test_size 200 --save_model --log-interval 5",
        data=(("mnist_forward_forward/data", "mnist"),), truth="optimizers", samples=500, layers=2,
    ),
    _example(
        "mnist_hogwild", "two spawned processes train shared weights", "main.py --epochs 1 --save_model",
        data=_MNIST, samples=64,
    ),
    _example("vae", "evaluation after each epoch, pictures", "main.py --epochs 2", data=_MNIST, samples=128),
    _example(
        "dcgan", "two nets, two optimizers, two workers",
        "main.py --dataset mnist --dataroot ../data --niter 1 --manualSeed 1 --ngf 16 --ndf 16",
        data=_MNIST, samples=64,
    ),
    _example(
        "siamese_network", "one ResNet18 called twice a step", "main.py --epochs 1 --save-model",
        data=_MNIST, samples=64, limit_s=300.0,
    ),
    _language_model("LSTM", _BY_HAND),
    _language_model("GRU", _BY_HAND, "--model GRU"),
    _language_model("RNN_TANH", _BY_HAND, "--model RNN_TANH --lr 1"),
    _language_model("RNN_RELU", _BY_HAND, "--model RNN_RELU --lr 1"),
    _language_model("Transformer", _BY_HAND, "--model Transformer --lr 5"),
    _language_model(
        "LSTM --use-optimizer", "AdamW, torch.save of the model", "--use-optimizer --lr 0.001", truth="optimizer"
    ),
    _language_model(
        "Transformer --use-optimizer", "AdamW, torch.save of the model",
        "--model Transformer --use-optimizer --lr 0.001", truth="optimizer",
    ),
    _language_model("LSTM --tied", "one weight in two modules", "--tied"),
    _example(
        "time_sequence_prediction", "LBFGS: 20 closures a step, float64, matplotlib", "train.py --steps 5",
        data=(("time_sequence_prediction/traindata.pt", "sine_wave"),), samples=30,
        env=(("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"),),  # since torch 2.6 it could not read its own data
    ),
    _example("regression", "update by hand, ends by its own loss", "main.py", truth=r"after (\d+) batches", samples=32),
    _example(
        "super_resolution", "torch.save of the model, workers",
        "main.py --upscale_factor 3 --batchSize 4 --testBatchSize 4 --nEpochs 2 --threads 2",
        data=(("super_resolution/dataset", "bsds"),), samples=4,
    ),
    _example(
        "gat", "a graph is the batch, two evaluations after each step",
        "main.py --epochs 20 --num-heads 2 --hidden-dim 8", data=(("gat/cora", "cora"),),
    ),
    _example(
        "reinforcement_learning reinforce", "a forward pass for each move, unbatched; Ctrl-C", "reinforce.py",
        stop_after="Episode 60\t",
    ),
    _example(
        "reinforcement_learning actor_critic", "a forward pass for each move, unbatched; Ctrl-C", "actor_critic.py",
        stop_after="Episode 60\t",
    ),
    _example(
        "imagenet", "ResNet18 on image folders, workers, checkpoints",
        "main.py ../images --arch resnet18 --epochs 1 --batch-size 16 --workers 2 --seed 1 --print-freq 5 --no-accel",
        data=(("images", "image_folders"),), samples=16,
    ),
    _example("fx module_tracer", "a model is traced, nothing trains", "module_tracer.py", truth="none"),
    _example(
        "fx profiling_tracer", "an own profiler, record_function patched; nothing trains", "profiling_tracer.py",
        truth="none",
    ),
    _example("fx replace_op", "a graph is rewritten, nothing trains", "replace_op.py", truth="none"),
    _example(
        "distributed/rpc/rnn", "two spawned processes, remote parameters, distributed autograd", "main.py", truth="50",
    ),
    Program("nanoGPT", "four micro batches, two groups", call=f"{_NANOGPT_CALL} --compile=False", **_NANOGPT),
    Program(
        "nanoGPT compiled", "torch.compile", call=f"{_NANOGPT_CALL} --compile=True", limit_s=300.0, layers=16,
        env=(("PROGRAM_COUNTS_LAYERS", "0"),), **_NANOGPT,
    ),
    Program(
        "minGPT adder", "generates in between, workers", "karpathy/minGPT", ("mingpt", "projects/adder"),
        "projects/adder/adder.py --data.ndigit=1 --trainer.max_iters=40 --trainer.num_workers=2",
        env=(("PYTHONPATH", "{place}"),), samples=64,
    ),
    Program(
        "minGPT chargpt", "generates 500 letters in between", "karpathy/minGPT", ("mingpt", "projects/chargpt"),
        "projects/chargpt/chargpt.py --model.model_type=gpt-nano --trainer.max_iters=30 --trainer.num_workers=0"
        " --data.block_size=64 --trainer.batch_size=16",
        env=(("PYTHONPATH", "{place}"),), data=(("input.txt", "characters"),), samples=16,
    ),
    Program(
        "pytorch-cifar", "a terminal, SimpleDLA, workers; 200 epochs, Ctrl-C", "kuangliu/pytorch-cifar",
        ("main.py", "utils.py", "models"), "main.py", data=(("data", "cifar"),), samples=20,
        stop_after=r"Epoch: 12\b", terminal=True, limit_s=240.0,
    ),
    Program(
        "timm resnet10t", "bf16 autocast, workers, evaluation, checkpoints",
        call=f"{_TIMM_CALL} --model resnet10t --epochs 2 --amp --amp-dtype bfloat16", **_TIMM,
    ),
    Program(
        "timm vit_tiny", "an averaged second model is evaluated",
        call=f"{_TIMM_CALL} --model vit_tiny_patch16_224 --model-kwargs img_size=64 --epochs 1 --model-ema"
        " --opt adamw --clip-grad 1", **_TIMM,
    ),
    Program(
        "trl sft", "transformers.Trainer: accumulation, checkpointing, evaluation, tied head",
        call=f"trl/scripts/sft.py --dataset_name chats --gradient_accumulation_steps 2 --gradient_checkpointing"
        f" --eval_strategy steps --eval_steps 10 {_TRL}", samples=8, **_SFT,
    ),
    Program(
        "trl sft, 2 processes", "torch.distributed.run, gloo, DDP",
        call="-m torch.distributed.run --nproc-per-node 2 --master-port 29611 trl/scripts/sft.py --dataset_name chats"
        f" {_TRL}", samples=4, **_SFT,
    ),
    Program(
        "trl dpo", "two models, one of them frozen", "huggingface/trl", ("trl/scripts/dpo.py",),
        f"trl/scripts/dpo.py --dataset_name preferences {_TRL}",
        data=(("llama", "llama"), ("preferences", "preferences")), samples=4,
    ),
    Program(
        "diffusers train_unconditional", "a diffusion loop: UNet, Accelerator, EMA, sampling",
        call=f"{_DIFFUSION_CALL} --use_ema", **_DIFFUSION,
    ),
    Program(
        "accelerate launch", "the same script in a process that accelerate starts",
        call=f"-m accelerate.commands.launch --cpu {_LAUNCH} {_DIFFUSION_CALL}", **_DIFFUSION,
    ),
    Program(
        "accelerate launch, 2 processes", "the same script, gloo, DDP",
        call="-m accelerate.commands.launch --multi_gpu --num_processes 2 --main_process_port 29612"
        f" {_LAUNCH} {_DIFFUSION_CALL}", env=(("ACCELERATE_USE_CPU", "true"),), **_DIFFUSION,
    ),
    Program(
        "accelerate cv_example", "resnet50d, all but its last layer frozen, workers", "huggingface/accelerate",
        ("examples/cv_example.py",), "examples/cv_example.py --data_dir pets --cpu",
        data=(("pets", "pets"), ("hf", "resnet_cache")), env=(("HF_HOME", "{place}/hf"),), samples=32, limit_s=300.0,
    ),
    Program(
        "cleanrl dqn", "an environment, a replay buffer, a target net", copied=("cleanrl/dqn.py", "cleanrl_utils"),
        call=f"cleanrl/dqn.py {_SHORT_DQN} --target-network-frequency 50", **_CLEANRL,
    ),
    Program(
        "cleanrl c51", "an environment, a replay buffer, a target net", copied=("cleanrl/c51.py", "cleanrl_utils"),
        call=f"cleanrl/c51.py {_SHORT_DQN}", **_CLEANRL,
    ),
    Program(
        "cleanrl ppo", "128 calls without gradients, then 16 updates", copied=("cleanrl/ppo.py", "cleanrl_utils"),
        call="cleanrl/ppo.py --total-timesteps 2048 --no-cuda", **_CLEANRL,
    ),
    Program(
        "Lightning bug_report_model", "one step, validation, test", LIGHTNING, ("examples/pytorch/bug_report",),
        "bug_report_model.py", cwd="examples/pytorch/bug_report", samples=2,
    ),
    Program(
        "Lightning backbone_image_classifier", "LightningCLI", LIGHTNING, ("examples/pytorch/basics",),
        "backbone_image_classifier.py --trainer.max_epochs 1 --trainer.limit_train_batches 30"
        " --trainer.limit_val_batches 2 --trainer.accelerator cpu",
        cwd="examples/pytorch/basics", samples=32,
        data=(("examples/Datasets", "mnist_whole"), ("examples/pytorch/basics/data", "mnist")),
    ),
    Program(
        "Fabric image_classifier", "wrapped model and optimizer", call="train_fabric.py --epochs 2 --save-model",
        **_FABRIC,
    ),
    Program(
        "Fabric image_classifier, 2 processes", "`fabric run`: gloo, DDP",
        call="-m lightning.fabric.cli --accelerator cpu --devices 2 --strategy ddp --main-port 29613 train_fabric.py"
        " --epochs 1", **_FABRIC,
    ),
    Program(
        "Keras demo_functional", "Keras on torch, `fit`; Ctrl-C", "keras-team/keras", ("examples/demo_functional.py",),
        "examples/demo_functional.py", env=_KERAS, truth="backward", samples=32, layers=9, stop_after=_A_WHILE,
    ),
    Program(
        "Keras demo_subclass", "a subclassed Keras model, `fit`; Ctrl-C", "keras-team/keras",
        ("examples/demo_subclass.py",), "examples/demo_subclass.py", env=_KERAS, truth="backward", samples=32, layers=3,
        stop_after=_A_WHILE,
    ),
    Program(
        "Keras torch_custom_fit_test", "an own train_step, two steps", "keras-team/keras",
        ("integration_tests/torch_custom_fit_test.py",), "integration_tests/torch_custom_fit_test.py", env=_KERAS,
        truth="backward", samples=32, layers=1,
    ),
)  # fmt: skip
