"""What TRL gives: `generate_learner_values.py` runs this in an environment that has it.

TRL's formulas stand inside the methods of its trainers. So real trainers are made, on a model of a few hundred weights, and
their own methods run; what is replaced is where numbers come from (generation, rewards, the forward pass), never what is
computed from them.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.golden.generate_learner_values import Recorder

PROMPT_TOKENS = 2
LOSS_INPUTS = {
    "log_probs": "log_probs", "old_log_probs": "old_log_probs", "advantages": "advantages", "mask": "mask",
}  # fmt: skip


def collect(recorder: Recorder) -> None:
    """Every case."""
    for add in (advantages, losses, divergences, corrections, entropies, lengths, updates):
        add(recorder)


SOURCES: dict[str, Any] = {"trl": (lambda: {"version": version("trl")}, collect)}


def small_model() -> Any:
    """A Qwen2 of one narrow layer over ten tokens."""
    transformers = import_module("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "max_position_embeddings": 32}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    config = transformers.Qwen2Config(vocab_size=10, **sizes, **heads, pad_token_id=0, eos_token_id=1)
    return transformers.Qwen2ForCausalLM(config)


def letters() -> Any:
    """A tokenizer of eight letters."""
    transformers, tokenizers = import_module("transformers"), import_module("tokenizers")
    names = ["<pad>", "<eos>", *"abcdefgh"]
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="a"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


def set_weights(model: Any) -> None:
    """Weights by a formula, so that two programs have the same ones without a file."""
    for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
        wave = torch.sin(torch.arange(parameter.numel(), dtype=torch.float32) * 1.7 + number)
        level = 1.0 if "norm" in name else 0.0
        parameter.data.copy_(level + 0.3 * wave.reshape(parameter.shape))


def make_trainer(kind: str, rewards: list[Tensor], options: dict[str, Any], *, group: int, rows: int) -> Any:
    """A trainer of TRL whose reward functions give the columns of `rewards`."""
    trl, datasets = import_module("trl"), import_module("datasets")

    def reward(column: Tensor, number: int) -> Any:
        def give(completions: list[str], **_: Any) -> list[float]:
            return [float(value) for value in column]

        give.__name__ = f"reward_{number}"
        return give

    folder = tempfile.mkdtemp(prefix="trl-values-")
    batch = {"per_device_train_batch_size": rows, "num_generations": group, "max_completion_length": 12}
    quiet = {"report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "seed": 0}
    trainer = getattr(trl, f"{kind}Trainer")(
        model=small_model(),
        reward_funcs=[reward(column, number) for number, column in enumerate(rewards)],
        args=getattr(trl, f"{kind}Config")(output_dir=folder, **batch, **quiet, **options),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["ab"] * rows}),
        processing_class=letters(),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def sampled(
    trainer: Any, lengths: list[int], *, sampler: list[list[float]] | None = None, tools: list[list[int]] | None = None
) -> None:
    """Let a trainer's generation give completions of these lengths, the sampler's log-probs and the mask of a tool's tokens."""
    ids = [[2 + place % 8 for place in range(length)] for length in lengths]
    prompts = [[2, 3]] * len(ids)

    def generate(_: Any) -> Any:
        if type(trainer).__name__ == "RLOOTrainer":
            return prompts, ids, ["x"] * len(ids)
        return prompts, ids, tools, ["x"] * len(ids), sampler, {}, None, None

    trainer._generate = generate


def scored(trainer: Any, log_probs: Tensor, entropy: Tensor | None = None) -> None:
    """Let a trainer's forward pass give these log-probs."""
    other = torch.zeros_like(log_probs) if entropy is None else entropy
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (log_probs, other, None)


def advantages(recorder: Recorder) -> None:
    """Scaling by the group and none; several rewards; leave-one-out."""
    one, two = ["trl_rewards"], ["trl_accuracy", "trl_format"]
    cases: list[tuple[str, str, list[str], dict[str, Any]]] = [
        ("grpo", "GRPO", one, {"scale_rewards": "group"}),
        ("grpo/none", "GRPO", one, {"scale_rewards": "none"}),
        ("grpo/sum", "GRPO", two, {"reward_weights": [1.0, 0.5]}),
        ("rloo", "RLOO", one, {"beta": 0.0}),
    ]
    for name, kind, columns, options in cases:
        trainer = make_trainer(kind, [recorder.tensor(column) for column in columns], options, group=3, rows=9)
        sampled(trainer, [3] * 9)
        scored(trainer, torch.zeros(9, 3))
        found = trainer._generate_and_score_completions([{"prompt": "ab"}] * 9)["advantages"]
        named = {f"rewards_{number}": column for number, column in enumerate(columns)}
        function = f"trl.{kind}Trainer._generate_and_score_completions"
        recorder.note(f"advantage/{name}", function, named, options | {"group": 3}, {"advantages": found})


def loss_of(recorder: Recorder, trainer: Any, named: dict[str, str]) -> dict[str, Any]:
    """Loss and gradient of `_compute_loss`."""
    log_probs = recorder.tensor(named["log_probs"]).requires_grad_()
    rows, width = log_probs.shape
    scored(trainer, log_probs)
    ones = torch.ones(rows, PROMPT_TOKENS, dtype=torch.long)
    mask = recorder.tensor(named["mask"])
    given: dict[str, Any] = {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": torch.ones(rows, width, dtype=torch.long),
        "completion_mask": mask,
        # The generation's token count, as `_generate_and_score_completions` takes it.
        "num_items_in_batch": mask.sum(),
        "advantages": recorder.tensor(named["advantages"])[:, 0],
    }
    others = {
        "old_log_probs": "old_per_token_logps",
        "reference_log_probs": "ref_per_token_logps",
        "sampler_log_probs": "sampling_per_token_logps",
        "weights": "importance_sampling_ratio",
    }
    given |= {others[key]: recorder.tensor(name) for key, name in named.items() if key in others}
    loss = trainer._compute_loss(trainer.model, given)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    metrics = {key: values[-1] for key, values in trainer._metrics["train"].items() if values and "clip" in key}
    return {"loss": loss, "gradient": gradient, "metrics": metrics}


def losses(recorder: Recorder) -> None:
    """Every `loss_type`, token and sequence level, two-sided clip, masks of whole sequences."""
    asymmetric = {"epsilon": 0.2, "epsilon_high": 0.28}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("grpo", {"loss_type": "grpo", "epsilon": 0.2}),
        ("grpo/clip_higher", {"loss_type": "grpo", **asymmetric}),
        ("bnpo", {"loss_type": "bnpo", **asymmetric}),
        ("dr_grpo", {"loss_type": "dr_grpo", **asymmetric}),
        ("dapo", {"loss_type": "dapo", **asymmetric}),
        ("luspo", {"loss_type": "luspo", "importance_sampling_level": "sequence", **asymmetric}),
        ("cispo", {"loss_type": "cispo", "epsilon_high": 1.28}),
        ("cispo/wide", {"loss_type": "cispo", "epsilon_high": 5.0}),
        ("gspo", {"loss_type": "grpo", "importance_sampling_level": "sequence", **asymmetric}),
        (
            "gspo/narrow",
            {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
    ]
    for name, options in cases:
        trainer = make_trainer("GRPO", [torch.zeros(8)], options, group=2, rows=8)
        for ending, mask in (("", "mask"), ("/empty_row", "mask_with_empty_row")):
            named = LOSS_INPUTS | {"mask": mask}
            function = "trl.GRPOTrainer._compute_loss"
            settings = options | {"max_completion_length": 12}
            recorder.note(f"loss/{name}{ending}", function, named, settings, loss_of(recorder, trainer, named))


def divergences(recorder: Recorder) -> None:
    """The loss with a KL term."""
    options = {"loss_type": "bnpo", "beta": 0.1, "use_bias_correction_kl": False}
    trainer = make_trainer("GRPO", [torch.zeros(8)], options | {"beta": 0.0}, group=2, rows=8)
    trainer.beta = options["beta"]  # set after the start: a reference model would be loaded from the Hub
    named = LOSS_INPUTS | {"reference_log_probs": "reference_log_probs"}
    recorder.note("loss/kl", "trl.GRPOTrainer._compute_loss", named, options, loss_of(recorder, trainer, named))


def corrections(recorder: Recorder) -> None:
    """Weights from the log-probs of learner and sampler, and a loss with them."""
    mask = recorder.tensor("mask")
    lengths = [int(row.nonzero().max()) + 1 for row in mask]
    old, sampler = recorder.tensor("old_log_probs"), recorder.tensor("sampler_log_probs")
    rows = [row[:length].tolist() for row, length in zip(sampler, lengths, strict=True)]
    tools = [row[:length].int().tolist() for row, length in zip(mask, lengths, strict=True)]
    named = {"old_log_probs": "old_log_probs", "sampler_log_probs": "sampler_log_probs", "mask": "mask"}
    settings = {"mode": "token_truncate", "min": None, "max": 2.0}
    trainer = make_trainer("GRPO", [torch.zeros(8)], {"loss_type": "bnpo"}, group=2, rows=8)
    trainer.use_vllm = True  # set after the start: no engine is wanted, and none is asked for anything
    trainer.vllm_importance_sampling_correction, trainer.vllm_importance_sampling_mode = True, settings["mode"]
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = None, 2.0
    sampled(trainer, lengths, sampler=rows, tools=tools)
    scored(trainer, old)
    found = trainer._generate_and_score_completions([{"prompt": "ab"}] * 8)["importance_sampling_ratio"]
    function = "trl.GRPOTrainer._generate_and_score_completions"
    metrics = {key: values[-1] for key, values in trainer._metrics["train"].items() if "sampling" in key}
    recorder.note("correction/token_truncate", function, named, settings, {"weights": found, "metrics": metrics})
    weighted = LOSS_INPUTS | {"weights": "entropies"}  # any positive numbers serve as weights
    values = loss_of(recorder, trainer, weighted)
    recorder.note("loss/weighted", "trl.GRPOTrainer._compute_loss", weighted, {"loss_type": "bnpo"}, values)


def entropies(recorder: Recorder) -> None:
    """The entropy bonus."""
    fixed = {"loss_type": "bnpo", "entropy_coef": 0.05}
    given: dict[str, Any] = {
        "prompt_ids": torch.ones(8, 2, dtype=torch.long),
        "prompt_mask": torch.ones(8, 2, dtype=torch.long),
        "completion_ids": torch.ones(8, 5, dtype=torch.long),
        "completion_mask": recorder.tensor("mask"),
        "num_items_in_batch": recorder.tensor("mask").sum(),
        "advantages": torch.zeros(8, dtype=torch.float64),
        "old_per_token_logps": recorder.tensor("old_log_probs"),
    }
    named = {"entropies": "entropies", "mask": "mask"}
    function = "trl.GRPOTrainer._compute_loss"
    trainer = make_trainer("GRPO", [torch.zeros(8)], fixed, group=2, rows=8)
    scored(trainer, recorder.tensor("old_log_probs"), recorder.tensor("entropies"))
    recorder.note("entropy/fixed", function, named, fixed, {"loss": trainer._compute_loss(trainer.model, given)})


def lengths(recorder: Recorder) -> None:
    """DAPO's soft penalty on long answers."""
    function = import_module("trl.rewards").get_soft_overlong_punishment
    counts = [1, 7, 8, 9, 11, 12, 13, 20]
    settings = {"max_completion_len": 12, "soft_punish_cache": 4, "lengths": counts}
    values = function(12, 4)(completion_ids=[[0] * count for count in counts])
    recorder.note("overlong", function, {}, settings, {"penalties": values})


def updates(recorder: Recorder) -> None:
    """Whole updates: forward, loss and backward of a real model, nothing of it replaced.

    The log-probs before the update and of the reference lie as far from the model's own as those of the loss cases do from each
    other. The gradient is given for each parameter as its norm and its product with a wave.
    """
    asymmetric = {"epsilon": 0.2, "epsilon_high": 0.28}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("grpo", {"loss_type": "grpo", "epsilon": 0.2}),
        ("dapo", {"loss_type": "dapo", **asymmetric}),
        ("dr_grpo", {"loss_type": "dr_grpo", **asymmetric}),
        ("gspo", {"loss_type": "grpo", "importance_sampling_level": "sequence", **asymmetric}),
        ("kl", {"loss_type": "bnpo", "beta": 0.1, "temperature": 0.7, "use_bias_correction_kl": False}),
    ]
    mask = recorder.tensor("mask")
    rows, width = mask.shape
    tokens = (torch.arange(rows)[:, None] * 3 + torch.arange(PROMPT_TOKENS + width) * 5) % 8 + 2
    for name, options in cases:
        trainer = make_trainer("GRPO", [torch.zeros(8)], options | {"beta": 0.0}, group=2, rows=8)
        set_weights(trainer.model)
        trainer.model.to(torch.float32)
        trainer.beta = options.get("beta", 0.0)
        ones = torch.ones(rows, PROMPT_TOKENS, dtype=torch.long)
        present = (mask.flip(1).cumsum(1).flip(1) > 0).long()
        with torch.no_grad():
            own, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, tokens, torch.cat([ones, present], dim=1), width
            )
        away = recorder.tensor("log_probs") - recorder.tensor("old_log_probs")
        apart = recorder.tensor("log_probs") - recorder.tensor("reference_log_probs")
        old, reference = plain_rows(own - away.float()), plain_rows(own - apart.float())
        given = {
            "prompt_ids": tokens[:, :PROMPT_TOKENS], "prompt_mask": ones,
            "completion_ids": tokens[:, PROMPT_TOKENS:], "completion_mask": present, "tool_mask": mask.long(),
            "num_items_in_batch": mask.sum(),
            "advantages": recorder.tensor("advantages")[:, 0].float(),
            "old_per_token_logps": torch.tensor(old),
            "ref_per_token_logps": torch.tensor(reference),
        }  # fmt: skip
        loss = trainer._compute_loss(trainer.model, given)
        loss.backward()
        found = {}
        for parameter_name, parameter in trainer.model.named_parameters():
            gradient = parameter.grad.double().flatten()
            wave = torch.cos(torch.arange(gradient.numel(), dtype=torch.float64) * 0.9)
            found[parameter_name] = [gradient.norm(), gradient @ wave]
        named = {"advantages": "advantages", "mask": "mask"}
        settings = options | {"max_completion_length": 12, "tokens": tokens.tolist()}
        settings |= {"old_log_probs": old, "reference_log_probs": reference}
        values = {"loss": loss, "gradient": found}
        recorder.note(f"update/{name}", "trl.GRPOTrainer._compute_loss", named, settings, values)


def plain_rows(values: Tensor) -> list[list[float]]:
    """Numbers of six digits, which both programs can read exactly alike."""
    return [[round(value, 6) for value in row] for row in values.tolist()]
