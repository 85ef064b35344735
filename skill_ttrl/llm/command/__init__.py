"""A command-line program as the policy: a prompt on stdin, the answer on stdout."""
