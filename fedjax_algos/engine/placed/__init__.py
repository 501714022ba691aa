"""Places arrays on devices, in host memory or in files."""
