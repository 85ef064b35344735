"""Prompt templates: Markdown files, and how they are found and filled."""
