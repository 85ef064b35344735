"""Our environments and votes inside other libraries: verifiers, OpenEnv. Each module needs the library that it is named after."""
