"""Pipelines of the shapes that tools of the published system write out: every field, with its default, in that system's spelling.

The models, datasets and functions of users are stand-ins.
"""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]

PARSER = "import torch\ndef bytes_parser_function(data: memoryview) -> torch.Tensor:\n    return torch.frombuffer(data, dtype=torch.float32)"
TO_CLASSES = "import torch\ndef evaluation_transformer_function(model_output: torch.Tensor) -> torch.Tensor:\n    return model_output.argmax(-1)"

ACCURACY: Options = {"name": "Accuracy", "evaluation_transformer_function": TO_CLASSES, "topn": 1}
TOP_2: Options = {"name": "Accuracy", "evaluation_transformer_function": "", "topn": 2}
F1: Options = {
    "name": "F1Score",
    "evaluation_transformer_function": TO_CLASSES,
    "num_classes": 3,
    "average": "weighted",
    "pos_label": 1,
}
ROC_AUC: Options = {"name": "RocAuc", "evaluation_transformer_function": None}

OPTIMIZER: Options = {
    "name": "default",
    "algorithm": "SGD",
    "source": "PyTorch",
    "param_groups": [{"module": "model", "config": {"lr": 0.001, "momentum": 0.9}}],
}


def data(dataset: str = "stubbed", **options: Any) -> Options:
    """A section `data`."""
    return {
        "dataset_id": dataset,
        "bytes_parser_function": PARSER,
        "transformations": [],
        "label_transformer_function": "",
        "tokenizer": None,
        **options,
    }


def scored(dataset: str = "stubbed", *metrics: Options) -> Options:
    """A dataset to evaluate on."""
    return data(dataset, batch_size=64, dataloader_workers=2, metrics=list(metrics or (ACCURACY,)), generative=False)


def training(**options: Any) -> Options:
    """A section `training`."""
    return {
        "gpus": 1,
        "epochs_per_trigger": 5,
        "num_samples_to_pass": None,
        "num_prefetched_partitions": 1,
        "parallel_prefetch_requests": 1,
        "device": "cpu",
        "amp": False,
        "dataloader_workers": 1,
        "batch_size": 64,
        "drop_last_batch": True,
        "shuffle": True,
        "enable_accurate_gpu_measurements": False,
        "use_previous_model": False,
        "generative": False,
        "lora": False,
        "kadapter": False,
        "prompt_tuning": False,
        "prefix_tuning": False,
        "seed": 42,
        "initial_model": "random",
        "initial_model_id": None,
        "checkpointing": {"activated": False, "interval": None, "path": None},
        "record_loss_every": 0,
        "optimizers": [OPTIMIZER],
        "optimization_criterion": {"name": "CrossEntropyLoss", "config": {}},
        "lr_scheduler": None,
        "grad_scaler_config": None,
        "grad_norm": 0,
        "gradient_accumulation_steps": 1,
        **options,
    }


def selection(name: str, **options: Any) -> Options:
    """A section `selection_strategy`."""
    return {
        "name": name,
        "maximum_keys_in_memory": 100_000,
        "processor_type": None,
        "limit": -1,
        "storage_backend": "database",
        "uses_weights": False,
        "tail_triggers": 0,
        **options,
    }


def coreset(downsampling: Options | None = None, presampling: Options | None = None, **options: Any) -> Options:
    """A CoresetStrategy."""
    return selection(
        "CoresetStrategy",
        warmup_triggers=0,
        presampling_config=presampled("No", ratio=100) if presampling is None else presampling,
        downsampling_config=downsampled("No", ratio=100) if downsampling is None else downsampling,
        **options,
    )


def presampled(strategy: str, ratio: int = 50, **options: Any) -> Options:
    """A presampling policy."""
    return {
        "strategy": strategy,
        "ratio": ratio,
        "ratio_max": 100,
        "force_column_balancing": False,
        "force_required_target_size": False,
        **options,
    }


def downsampled(strategy: str, ratio: int = 50, **options: Any) -> Options:
    """A downsampling policy."""
    return {"strategy": strategy, "sample_then_batch": False, "ratio": ratio, "ratio_max": 100, "period": 1, **options}


AMOUNT: Options = {"id": "DataAmountTrigger", "num_samples": 1000}
EVERY_DAY: Options = {"id": "TimeTrigger", "every": "1d", "start_timestamp": None}
BATCHED: Options = {"evaluation_interval_data_points": 250, "warmup_intervals": 10, "warmup_policy": EVERY_DAY}
AMOUNTS: Options = {"id": "AmountWindowingStrategy", "amount_ref": 500, "amount_cur": 500, "allow_overlap": False}
TIMES: Options = {"id": "TimeWindowingStrategy", "limit_ref": "4d", "limit_cur": "4d", "allow_overlap": False}
STATIC: Options = {"id": "ThresholdDecisionCriterion", "threshold": 0.05, "needs_calibration": False}
QUANTILE: Options = {
    "id": "DynamicQuantileThresholdCriterion",
    "window_size": 15,
    "quantile": 0.05,
    "needs_calibration": True,
}
ROLLING: Options = {
    "id": "DynamicRollingAverageThresholdCriterion",
    "window_size": 15,
    "deviation": 1.0,
    "absolute": False,
    "needs_calibration": True,
}
ALIBI: Options = {"p_val": 0.05, "x_ref_preprocessed": False, "preprocessor": None}
MMD: Options = {
    "id": "AlibiDetectMmdDriftMetric",
    **ALIBI,
    "device": "gpu",
    "num_permutations": None,
    "kernel": "GaussianRBF",
    "configure_kernel_from_x_ref": True,
    "threshold": None,
}


def drift(metrics: Options, windows: Options = AMOUNTS, votes: Options | None = None) -> Options:
    """A DataDriftTrigger."""
    return {
        "id": "DataDriftTrigger",
        **BATCHED,
        "windowing_strategy": windows,
        "sample_size": None,
        "metrics": metrics,
        "aggregation_strategy": votes or {"id": "MajorityVote"},
    }


def performance(**criteria: Options) -> Options:
    """Return the common settings of performance triggers."""
    return {
        **BATCHED,
        "data_density_window_size": 20,
        "performance_triggers_window_size": 10,
        "evaluation": {"device": "cpu", "dataset": scored("stubbed", ACCURACY, {**TOP_2}), "label_transformer_function": None},
        "decision_criteria": criteria,
        "mode": "hindsight",
        "forecasting_method": "ridge_regression",
    }


STATIC_SCORE: Options = {
    "id": "StaticPerformanceThresholdCriterion",
    "metric": "Accuracy",
    "metric_threshold": 0.8,
    "needs_calibration": False,
}
QUANTILE_SCORE: Options = {
    "id": "DynamicQuantilePerformanceThresholdCriterion",
    "metric": "Accuracy",
    "window_size": 15,
    "quantile": 0.05,
    "needs_calibration": True,
}
ROLLING_SCORE: Options = {
    "id": "DynamicRollingAveragePerformanceThresholdCriterion",
    "metric": "Top-2-Accuracy",
    "window_size": 15,
    "deviation": 0.2,
    "absolute": False,
    "needs_calibration": True,
}
AVOIDABLE: Options = {
    "id": "StaticNumberMisclassificationCriterion",
    "expected_accuracy": 0.9,
    "allow_reduction": True,
    "needs_calibration": True,
    "avoidable_misclassification_threshold": 100,
}

TRIGGERS: dict[str, Options] = {
    "amount": AMOUNT,
    "time": EVERY_DAY,
    "time from": {**EVERY_DAY, "start_timestamp": 0},
    "drift by threshold": drift({"mmd_0.05": {**MMD, "decision_criterion": STATIC}}),
    "drift by quantile": drift({"mmd-quantile-0.05-15": {**MMD, "decision_criterion": QUANTILE}}),
    "drift by rolling average": drift({"mmd-rollavg-1.0-15": {**MMD, "decision_criterion": ROLLING}}, TIMES),
    "drift of several": drift(
        {"mmd": {**MMD, "decision_criterion": QUANTILE}, "mmd.5": {**MMD, "decision_criterion": ROLLING}},
        TIMES,
        {"id": "AtLeastN", "n": 1},
    ),
    "scores by threshold": {"id": "PerformanceTrigger", **performance(**{"static-0.8": STATIC_SCORE})},
    "scores by quantile": {"id": "PerformanceTrigger", **performance(**{"dynamic-quant-0.05-15": QUANTILE_SCORE})},
    "scores by rolling average": {"id": "PerformanceTrigger", **performance(**{"dynamic-rollavg-0.2-15": ROLLING_SCORE})},
    "misclassifications": {"id": "PerformanceTrigger", **performance(**{"num_misclass-100-exp-0.9-red-True": AVOIDABLE})},
    "cost of latency": {
        "id": "DataIncorporationLatencyCostTrigger",
        **BATCHED,
        "cost_tracking_window_size": 1000,
        "incorporation_delay_per_training_second": 7.5,
    },
    "cost of misclassifications": {
        "id": "AvoidableMisclassificationCostTrigger",
        **performance(**{"static-0.8": STATIC_SCORE}),
        "cost_tracking_window_size": 1000,
        "expected_accuracy": None,
        "allow_reduction": False,
        "needs_calibration": True,
        "avoidable_misclassification_latency_per_training_second": 10.0,
    },
    "ensemble": {
        "id": "EnsembleTrigger",
        "subtriggers": {
            "drift-0.05": drift({"mmd-0.05": {**MMD, "decision_criterion": STATIC}}),
            "perf-0.8": {"id": "PerformanceTrigger", **performance(**{"static-0.8": STATIC_SCORE})},
            "timetrigger_1.0": EVERY_DAY,
        },
        "ensemble_strategy": {"id": "AtLeastN", "n": 1},
    },
}

_GREEDY: Options = {"selection_batch": 64, "balance": False, "full_grad_approximation": "LastLayer"}
DOWNSAMPLERS: dict[str, Options] = {
    "No": {},
    "Loss": {},
    "GradNorm": {},
    "Uncertainty": {"score_metric": "Margin", "balance": False},
    "RS2": {"with_replacement": False},
    "KcenterGreedy": {"balance": True},
    "GradMatch": {"balance": False, "full_grad_approximation": "LastLayer"},
    "Craig": {**_GREEDY, "greedy": "NaiveGreedy"},
    "Submodular": {**_GREEDY, "submodular_function": "FacilityLocation", "submodular_optimizer": "NaiveGreedy"},
}
IL_TRAINING: Options = {
    **training(drop_last_batch=False, batch_size=16),
    "il_model_id": "ResNet18",
    "il_model_config": {"num_classes": 3},
}

SELECTIONS: dict[str, Options] = {
    "new data": selection("NewDataStrategy", limit_reset="lastX"),
    "all data": selection("NewDataStrategy", limit_reset="sampleUAR", tail_triggers=None, limit=1000, storage_backend="local"),
    "freshness": selection("FreshnessSamplingStrategy", unused_data_ratio=50, tail_triggers=None),
    "coreset": coreset(),
    **{
        f"presampling {name}": coreset(presampling=presampled(name))
        for name in ("Random", "RandomNoReplacement", "LabelBalanced", "TriggerBalanced")
    },
    **{
        f"downsampling {name} {'sampled first' if first else 'in batches'}": coreset(
            downsampled(name, 100 if name == "No" else 50, **{**options, "sample_then_batch": first})
        )
        for name, options in DOWNSAMPLERS.items()
        for first in ([True] if name == "RS2" else [False] if name == "No" else [True, False])
    },
    "downsampling RHOLoss": coreset(
        downsampled("RHOLoss", holdout_set_strategy="Simple", holdout_set_ratio=10, il_training_config=IL_TRAINING)
    ),
    "several downsamplers": coreset(
        {"downsampling_list": [downsampled("Loss"), downsampled("GradNorm")], "downsampling_thresholds": [10]}
    ),
}

STRATEGIES: dict[str, Options] = {
    "slices": {"type": "SlicingEvalStrategy", "eval_every": "1d", "eval_start_from": 0, "eval_end_at": 864_000},
    "periods": {
        "type": "PeriodicEvalStrategy",
        "every": "1d",
        "start_timestamp": 0,
        "end_timestamp": 864_000,
        "interval": "[-2d; +2d]",
    },
    "intervals": {"type": "StaticEvalStrategy", "intervals": [[0, 86_400]]},
    "between triggers": {"type": "BetweenTwoTriggersEvalStrategy"},
    "offsets": {"type": "OffsetEvalStrategy", "offsets": ["-inf", "1d", "inf"]},
}
MODELS: dict[str, str] = {"between triggers": "active", "offsets": "active"}


def evaluation(strategy: str = "periods", *metrics: Options) -> Options:
    """A section `evaluation`."""
    handler: Options = {
        "name": strategy,
        "execution_time": "after_training" if strategy == "offsets" else "after_pipeline",
        "models": MODELS.get(strategy, "matrix"),
        "strategy": STRATEGIES[strategy],
        "datasets": ["stubbed", "stubbed-test"],
    }
    return {
        "handlers": [handler],
        "device": "cpu",
        "datasets": [scored("stubbed", *metrics), scored("stubbed-test", *metrics)],
        "after_training_evaluation_workers": 2,
        "after_pipeline_evaluation_workers": 2,
    }


def pipeline(**sections: Any) -> Options:
    """A whole file. Args: sections: in place of its own."""
    return {
        "pipeline": {"name": "written-out", "description": "all fields", "version": "0.0.1"},
        "model": {"id": "LogisticRegression", "config": {"input_size": 4, "num_classes": 3}},
        "model_storage": {
            "full_model_strategy": {"name": "PyTorchFullModel", "zip": False, "zip_algorithm": "ZIP_DEFLATED"},
            "incremental_model_strategy": None,
            "full_model_interval": None,
        },
        "training": training(),
        "data": data(),
        "trigger": AMOUNT,
        "selection_strategy": SELECTIONS["new data"],
        "evaluation": evaluation(),
        **sections,
    }


SCHEDULER: Options = {
    "name": "CosineAnnealingLR",
    "source": "PyTorch",
    "step_every": "batch",
    "optimizers": ["default"],
    "config": {"T_max": "MODYN_NUM_BATCHES", "eta_min": 0.0},
}

SHAPES: dict[str, Options] = {
    **{f"trigger: {name}": pipeline(trigger=section) for name, section in TRIGGERS.items()},
    **{f"selection: {name}": pipeline(selection_strategy=section) for name, section in SELECTIONS.items()},
    **{f"evaluation: {name}": pipeline(evaluation=evaluation(name)) for name in STRATEGIES},
    "metrics": pipeline(
        evaluation=evaluation("periods", ACCURACY, TOP_2, F1, {**F1, "average": "macro"}, {**F1, "average": "micro"})
    ),
    "handlers": pipeline(
        evaluation={
            **evaluation(),
            "handlers": [
                {**evaluation(strategy)["handlers"][0], "name": f"{strategy}-delta+-1.5y", "execution_time": "manual"}
                for strategy in ("periods", "between triggers")
            ],
        }
    ),
    "metrics of two classes": pipeline(
        evaluation=evaluation("periods", ROC_AUC),
        model={"id": "LogisticRegression", "config": {"input_size": 4, "num_classes": 2}},
    ),
    "no evaluation": pipeline(evaluation=None),
    "scheduler": pipeline(training=training(lr_scheduler=SCHEDULER)),
    "fine-tuning": pipeline(training=training(use_previous_model=True, num_samples_to_pass=[1000, 500], record_loss_every=1)),
    "compressed models": pipeline(
        model_storage={
            "full_model_strategy": {"name": "BinaryFullModel", "zip": True, "zip_algorithm": "ZIP_DEFLATED"},
            "incremental_model_strategy": None,
            "full_model_interval": None,
        }
    ),
    "differences of models": pipeline(
        model_storage={
            "full_model_strategy": {"name": "PyTorchFullModel", "zip": True, "zip_algorithm": "ZIP_DEFLATED"},
            "incremental_model_strategy": {
                "name": "WeightsDifference",
                "zip": False,
                "zip_algorithm": "ZIP_DEFLATED",
                "config": {"operator": "sub", "split_exponent": True, "rle": False},
            },
            "full_model_interval": 5,
        }
    ),
}
"""Whole pipelines by what is special about them."""
