"""Names of published systems over this project's own: Skill-TTRL's trainer and engine, skillrl's SkillOpt, two converters of configs."""
