"""Our environments and votes inside other libraries: verifiers, OpenEnv, TRL and verl, a module for each. `game` and `votes` are their common parts."""
