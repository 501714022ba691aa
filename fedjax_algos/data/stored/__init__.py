"""Populations in files: read client by client, packed into one folder, and cut into cohorts."""
