"""Arrays in files of other programs (.npy, .npz, .safetensors, .pt), old dumps among them. Nothing a file says is executed."""
