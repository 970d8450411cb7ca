"""Which environment variables user code may see."""

from __future__ import annotations

from modyn.rpc.environment import keep_allowed


def test_what_libraries_read_stays_and_secrets_go() -> None:
    environment = dict.fromkeys(
        (
            *("PATH", "HOME", "LC_ALL", "PYTHONPATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_LOGS", "HF_HOME"),
            *(
                "MODYN_DATABASE_URL",
                "MODYN_SECURITY__TOKEN",
                "POSTGRES_PASSWORD",
                "PGPASSWORD",
                "AWS_SECRET_ACCESS_KEY",
                "MY_TOKEN",
            ),
        ),
        "value",
    )
    keep_allowed(environment, ["HF_*"])
    kept = {"PATH", "HOME", "LC_ALL", "PYTHONPATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_LOGS", "HF_HOME"}
    assert environment.keys() == kept
