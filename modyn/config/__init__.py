"""The system configuration and the pipeline YAML: checked once, then trusted."""
