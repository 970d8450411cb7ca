"""Pipelines of the shapes of the files that the published system comes with: what a person wrote, without most defaults.

The newest state of its repository has 187. 174 are in the older format: two generators of throughput experiments wrote 56 and 94 that differ in four
numbers, and 24 are written by hand. 13 are in today's. Files that differ in nothing but numbers and names share a shape. Models, datasets and
functions are stand-ins.
"""

from __future__ import annotations

from typing import Any

from tests.support.published_shapes import OPTIMIZER, PARSER, TO_CLASSES

Options = dict[str, Any]

TO_FLOATS = "import torch\ndef label_transformer_function(labels: torch.Tensor) -> torch.Tensor:\n    return labels.float()"
IMAGE = ["transforms.ToTensor()", "transforms.Normalize((0.5,), (0.25,))"]
MLP: Options = {"id": "MLP", "config": {"input_size": 4, "hidden_sizes": [8], "num_classes": 3}}
RARE: Options = {"base_lrs": [[2, 2], [2]], "warmup_steps": 80, "warmup_factor": 0, "decay_steps": 240, "decay_start_step": 480,
                 "decay_power": 2, "end_lr_factor": 0}  # fmt: skip


def by_hand(training: Options, **sections: Any) -> Options:
    """Return a file without optional fields. Args: training: fields in addition to those of all files."""
    return {
        "pipeline": {"name": "by-hand", "description": "an experiment", "version": "0.1.0"},
        "model": MLP,
        "model_storage": {"full_model_strategy": {"name": "PyTorchFullModel"}},
        "data": {"dataset_id": "stubbed", "bytes_parser_function": PARSER},
        **sections,
        "training": {
            "gpus": 1,
            "device": "cpu",
            "dataloader_workers": 2,
            "use_previous_model": True,
            "initial_model": "random",
            "batch_size": 32,
            "optimizers": [OPTIMIZER],
            "optimization_criterion": {"name": "CrossEntropyLoss"},
            "checkpointing": {"activated": False},
            **training,
        },
    }


def older(strategy: Options, trigger: Options, training: Options | None = None, **sections: Any) -> Options:
    """A file in the older format."""
    begun: Options = {"initial_pass": {"activated": False}, "num_prefetched_partitions": 4, "parallel_prefetch_requests": 2}
    config = {"id": "DataAmountTrigger" if "data_points_for_trigger" in trigger else "TimeTrigger", "trigger_config": trigger}
    return by_hand({**begun, "selection_strategy": strategy, **(training or {})}, trigger=config, **sections)


def strategy(name: str = "NewDataStrategy", resets: bool = True, **options: Any) -> Options:
    """A section `selection_strategy` in the older format."""
    config = {"storage_backend": "database", "limit": -1, "reset_after_trigger": resets, **options}
    return {"name": name, "maximum_keys_in_memory": 5000, "config": config}


def coreset(part: str, name: str, ratio: int = 25, resets: bool = True, **options: Any) -> Options:
    """A CoresetStrategy in the older format. Args: part: "pre" or "down"."""
    first = {"sample_then_batch": False} if part == "down" else {}
    kind = {"strategy": f"{name}{part.title()}samplingStrategy", "ratio": ratio, **first}
    return strategy("CoresetStrategy", resets, **{f"{part}sampling_config": kind}, **options)


def evaluated(*metrics: Options, **options: Any) -> Options:
    """A section `evaluation` in the older format: it names no handlers."""
    dataset = {"dataset_id": "stubbed", "bytes_parser_function": PARSER, "batch_size": 32, "dataloader_workers": 2}
    accuracy = {"name": "Accuracy", "evaluation_transformer_function": TO_CLASSES}
    return {"device": "cpu", "datasets": [{**dataset, "metrics": [accuracy, *metrics]}], **options}


AMOUNT: Options = {"data_points_for_trigger": 100_000}
DAILY: Options = {"trigger_every": "1d"}
F1: Options = {
    "name": "F1-score",
    "config": {"num_classes": 3, "average": "macro"},
    "evaluation_transformer_function": TO_CLASSES,
}
TWO_OPTIMIZERS: Options = {
    "device": "cuda:0",
    "amp": True,
    "batch_size": 65_536,
    "optimizers": [
        {**OPTIMIZER, "name": "dense", "algorithm": "FusedSGD", "source": "APEX",
         "param_groups": [{"module": "model.hidden", "config": {"lr": 2}}]},
        {**OPTIMIZER, "name": "rest", "param_groups": [{"module": "model.output", "config": {"lr": 2}}]},
    ],
    "lr_scheduler": {"name": "DLRMScheduler", "source": "Custom", "optimizers": ["dense", "rest"], "config": RARE},
    "optimization_criterion": {"name": "BCEWithLogitsLoss"},
    "grad_scaler_config": {"growth_interval": 1_000_000},
}  # fmt: skip
CLICKS: Options = {
    "data": {"dataset_id": "stubbed", "bytes_parser_function": PARSER, "label_transformer_function": TO_FLOATS},
    "model": {"id": "MLP", "config": {"input_size": 4, "hidden_sizes": [8], "num_classes": 1}},
}
ROC: Options = {"evaluation": evaluated({"name": "ROC-AUC", "config": None}, result_writers=["json"])}

OLDER: dict[str, Options] = {
    "throughput of images": older(
        strategy(), AMOUNT, data={"dataset_id": "stubbed", "transformations": IMAGE, "bytes_parser_function": PARSER}
    ),
    "throughput of clicks": older(strategy(), AMOUNT, TWO_OPTIMIZERS, **CLICKS),
    "new data": older(strategy(), DAILY, evaluation=evaluated(F1)),
    "all data": older(strategy(resets=False), DAILY, {"use_previous_model": False}, evaluation=evaluated(F1)),
    **{
        f"{part}sampling {name}{'' if resets else ', all data'}": older(
            coreset(part, name, resets=resets), DAILY, evaluation=evaluated(F1)
        )
        for part, name, resets in (
            ("pre", "Random", True), ("pre", "Random", False), ("pre", "TriggerBalanced", False),
            ("down", "GradNorm", True), ("down", "GradNorm", False), ("down", "Loss", True),
        )
    },
    "the last triggers": older(coreset("pre", "TriggerBalanced", 30, resets=False, tail_triggers=3), DAILY, evaluation=evaluated(F1)),
    "two F1 scores": older(
        strategy(), DAILY, evaluation=evaluated(F1, {**F1, "name": "WeightedF1-score"}, amp=False, result_writers=["json", "tensorboard"])
    ),
    "clicks": older(strategy(), DAILY, TWO_OPTIMIZERS, **CLICKS, **ROC),
    "clicks, downsampling": older(coreset("down", "Loss"), DAILY, TWO_OPTIMIZERS, **CLICKS, **ROC),
    "written by a tool": older(
        {"name": "CoresetStrategy", "maximum_keys_in_memory": 5000, "config": {
            "presampling_config": {"strategy": "No"},
            "downsampling_config": {"strategy": "Submodular", "submodular_function": "GraphCut", "ratio": 10, "sample_then_batch": False}}},
        DAILY,
    ),
    "options without config": older({**strategy(), **strategy()["config"], "config": {}}, AMOUNT),
}  # fmt: skip
"""In the older format, by what is special about them."""

SLICES: Options = {"type": "SlicingEvalStrategy", "eval_every": "100s", "eval_start_from": 0, "eval_end_at": 300}
HANDLER: Options = {"execution_time": "after_training", "strategy": SLICES, "models": "matrix", "datasets": ["stubbed"]}
TODAYS_F1 = {**F1["config"], "name": "F1Score", "evaluation_transformer_function": TO_CLASSES}
NEW_DATA: Options = {
    "name": "NewDataStrategy",
    "maximum_keys_in_memory": 1000,
    "storage_backend": "database",
    "limit": -1,
    "tail_triggers": 0,
}
HELD_OUT: Options = {
    "strategy": "RHOLoss",
    "holdout_set_strategy": "Simple",
    "sample_then_batch": False,
    "holdout_set_ratio": 30,
    "ratio": 60,
    "il_training_config": {
        "il_model_id": "MLP",
        "il_model_config": MLP["config"],
        "device": "cpu",
        "generative": False,
        "dataloader_workers": 1,
        "use_previous_model": False,
        "batch_size": 2,
        "drop_last_batch": False,
        "shuffle": False,
        "optimizers": [OPTIMIZER],
        "optimization_criterion": {"name": "CrossEntropyLoss"},
    },
}


def todays(training: Options | None = None, **sections: Any) -> Options:
    """A file in today's format, by hand."""
    kinds: Options = {"trigger": {"id": "DataAmountTrigger", "num_samples": 2000}, "selection_strategy": NEW_DATA}
    return by_hand({"shuffle": True, **(training or {})}, **{**kinds, **sections})


def drift(metric: Options) -> Options:
    """A DataDriftTrigger without what is optional."""
    measured = {**metric, "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 0.7}}
    return {
        "id": "DataDriftTrigger",
        "evaluation_interval_data_points": 5000,
        "metrics": {"measured": measured},
        "aggregation_strategy": {"id": "MajorityVote"},
    }


BY_HAND: dict[str, Options] = {
    "by amount": todays(),
    "by time": todays(trigger={"id": "TimeTrigger", "every": "1d"}),
    "slices": todays(evaluation={**evaluated(TODAYS_F1), "handlers": [HANDLER]}),
    "options of metrics apart": todays(
        evaluation={**evaluated({"name": "Accuracy", "evaluation_transformer_function": "", "config": {"num_classes": 3, "topn": 2}}),
                    "handlers": [HANDLER]}
    ),
    "drift": todays(trigger=drift({"id": "EvidentlyModelDriftMetric"})),
    "drift, permutations": todays(trigger=drift({"id": "AlibiDetectMmdDriftMetric", "num_permutations": 1000})),
    "not generative": todays({"generative": False, "lora": False, "grad_norm": 0.5}),
    "held out": todays({"generative": False}, selection_strategy={**NEW_DATA, "name": "CoresetStrategy", "downsampling_config": HELD_OUT}),
    "a processor": todays(
        {"lr_scheduler": {"name": "StepLR", "optimizers": ["default"], "step_every": "batch", "source": "PyTorch",
                          "config": {"step_size": 10, "gamma": 0.1}},
         "checkpointing": {"activated": True, "interval": 10, "path": "results"}},
        selection_strategy={**NEW_DATA, "processor_type": "basic_processor_strategy"},
    ),
}  # fmt: skip
"""In today's format, by what is special about them."""
