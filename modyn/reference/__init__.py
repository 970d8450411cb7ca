"""The reference of the configuration: JSON schema, `modyn explain`, and generated pages."""
