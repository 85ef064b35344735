"""The document as text: edits, protected blocks, rewrites and the appendix."""
