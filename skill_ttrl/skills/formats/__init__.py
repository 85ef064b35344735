"""File formats of skills: JSON, Markdown, Agent Skills, SkillRL's banks and memories."""
