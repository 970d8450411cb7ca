"""Test support for Modyn and for authors of plug-ins: in-memory fakes of all clients, checks that every policy must pass, and a real local stack."""
