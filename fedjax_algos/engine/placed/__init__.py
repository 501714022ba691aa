"""Where arrays are: on which devices, in host memory, or in files."""
