"""The tensor engine: one C library for the host and every VM. `import engine.numpy as np` computes; this file imports nothing."""
