"""Modules that run inside a vLLM server's processes, in the server's own environment.

The modules here import vLLM, torch and the standard library alone: `launch` is started by its path, with any interpreter, and
puts this folder on the PYTHONPATH of the server, whose every process then finds the entry point in `skillttrl_side-1.dist-info`
(vLLM's group of general plugins). The other modules have names of their own because they are top-level there.
"""
