"""Migrations of the schema `storage`."""
