"""The system configuration and the pipeline YAML. Modyn checks both once, and then trusts them."""
