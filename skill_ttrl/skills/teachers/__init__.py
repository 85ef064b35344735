"""Teachers: skills from won and lost episodes, by heuristics or a language model."""
