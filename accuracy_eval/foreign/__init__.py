"""Arrays in files of other programs: safetensors. Nothing here executes what a file says."""
