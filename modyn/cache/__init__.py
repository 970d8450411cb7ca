"""The cache of prepared samples that trainings share. So far what decides: how it is split between forms (`performance_model.py`,
`split_plan.py`), and which of its values serve a batch (`samplers/`)."""
