"""accuracy-eval: does AMD match NVIDIA and the CPU on this math, and if not, who is off, where, and why?"""
