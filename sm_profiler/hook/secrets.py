"""Secrets in lines of source code: what looks like one is masked before the line is recorded."""

from __future__ import annotations

import re

MASK = "***"
_NAMES = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|auth|credentials?|bearer)"
)
_QUOTED = r"""(?P<quote>\"\"\"|'''|["'])(?P<value>(?:\\.|(?!(?P=quote)).)*)(?:(?P=quote)|$)"""
# A literal that is assigned to a name, an argument or a key that names a secret. Repetitions are bounded, so that no line
# takes long: threads of the training wait meanwhile.
_ASSIGNED = re.compile(
    rf"""(?P<head>\b[\w.-]{{0,32}}?{_NAMES}[\w-]{{0,32}}["']?\]?\s{{0,4}}(?::\s{{0,4}}[\w.\[\]|][\w.\[\]| ]{{0,32}})?\s{{0,4}}(?:=|:|,)\s{{0,4}}[rbfuRBFU]{{0,2}}){_QUOTED}""",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}"  # AWS
    r"|\bsk-[\w-]{16,}"  # OpenAI, Anthropic
    r"|\b(?:ghp|gho|ghu|ghs|ghr)_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bhf_\w{16,}"
    r"|\bxox[a-z]-[\w-]{10,}"  # Slack
    r"|\bAIza[\w-]{30,}"  # Google
    r"|\bpypi-[\w-]{16,}|\bnpm_\w{16,}|\bdapi[0-9a-f]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # JWT
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|\bBearer\s+[\w.~+/=-]{8,}"
    r"|(?<=://)[^\s/:@\"']+:[^\s/@\"']+(?=@)"  # user and password of a URL
    r"|(?<![\w/+.-])(?=[A-Za-z0-9/+]*\d)(?=[A-Za-z0-9/+]*[a-z])(?=[A-Za-z0-9/+]*[A-Z])[A-Za-z0-9/+]{40}(?![\w/+=.-])"  # AWS
)


def masked(line: str) -> str:
    """Return a line of source code without what looks like a secret."""
    line = _ASSIGNED.sub(lambda found: f"{found['head']}{found['quote']}{MASK}{found['quote']}", line)
    return _KNOWN.sub(MASK, line)
