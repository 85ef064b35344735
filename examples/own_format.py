"""A format of one's own for files of skills: a list with one line for each, `- title: text`.

Run it: python examples/own_format.py. A command names it:
skillttrl skills export my-bank --format own_format:bullets --output skills.txt (and import: FILE --format own_format:bullets).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from skill_ttrl import Skill, SkillBank
from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.formats.files import read_file, write_skills
from skill_ttrl.skills.formats.records import FileFormat, SkillFile, record_at
from skill_ttrl.skills.snapshot import Snapshot


def read(text: str, where: str) -> SkillFile:
    skills: list[Skill] = []
    for number, line in enumerate(text.splitlines(), start=1):
        title, colon, advice = line.removeprefix("- ").partition(": ")
        if not (line.startswith("- ") and colon):
            raise SkillBankError(f"{where}:{number}: expected '- title: text'. Nothing was imported.")
        skills.append(record_at({"title": title, "text": advice}, f"{where}:{number}", len(skills)))  # gives an id, too
    return SkillFile(skills)


def write(snapshot: Snapshot) -> str:
    return "".join(f"- {skill.title}: {' '.join(skill.text.split())}\n" for skill in snapshot)


bullets = FileFormat("bullets", read, write)

if __name__ == "__main__":
    with TemporaryDirectory() as scratch, SkillBank() as bank:
        bank.add(Skill("fermat", "Fermat", "For a prime p, a^(p-1) = 1 mod p."))
        write_skills(file := Path(scratch) / "skills.txt", bank.snapshot(), "own_format:bullets")
        print(file.read_text().strip(), "|", [skill.title for skill in read_file(file, "own_format:bullets").skills])
