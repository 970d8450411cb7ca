"""What users may write: JSON schema, `modyn explain`, generated pages."""
