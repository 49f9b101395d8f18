"""Model files, export, the service, and Ray."""
