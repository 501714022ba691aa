"""Where arrays are: on which devices, in host memory, or in files.

`devices.py` has the mesh, `sharded_data.py` which device holds which client's examples,
`cohort_data.py` reads cohorts from files, `client_states.py` takes the rows of all clients out of a
state or gives them to the first one, and `on_disk.py` keeps rows on disk, in `row_files.py`.
"""
