"""What no simulation needs to know of: errors, files, limits of size, and readable texts."""
