"""Secrets in lines of source code and in messages: what looks like a secret is masked before the text is recorded.

In code, a value without quotes is a name or an expression, never the secret itself; in a message, and in the text
literals of code, it is the secret. Repetitions are bounded, so that no line takes long: threads of the training
wait for it.
"""

from __future__ import annotations

import re

MASK = "***"
# Names of secrets. What follows may not go on with a letter: `tokenizer` and `author` are no secrets.
_NAMES = (
    r"(?:pass(?:word|wd|phrase|code)|(?:db|user|admin|root|smtp|ftp|mysql|pg)_?pass|pwd|secret"
    r"|(?P<token>token)(?!_(?:class|embed|id|level|mix|pool|type))"
    r"|(?:api|access|private|account|secret|auth|wandb)[_-]?key|auth(?:orization)?|credentials?|bearer|x-amz-signature)"
    r"(?:s|[0-9]{1,4})?(?:(?:[_-]|(?<=[a-z])(?-i:[A-Z]))[\w-]{0,32})?(?![A-Za-z])"
)
_NAME = rf"""\b[\w.-]{{0,32}}?{_NAMES}["']?\]?\s{{0,4}}"""
_QUOTED = r"""(?P<quote>\"\"\"|'''|["'])(?P<value>(?:\\.|(?!(?P=quote)).)*)(?:(?P<close>(?P=quote))|$)"""
# A literal that is assigned to a name, an argument or a key that names a secret.
_ASSIGNED = re.compile(
    rf"""(?P<head>{_NAME}(?::\s{{0,4}}[\w.\[\]|][\w.\[\]| ]{{0,32}})?\s{{0,4}}(?:=|:|,)\s{{0,4}}[rbfuRBFU]{{0,2}}){_QUOTED}""",
    re.IGNORECASE,
)
# A value without quotes ends where the next one begins, or at closing punctuation.
_VALUE = r"""(?P<value>(?:(?![,;)\]}"'.:]{1,8}(?:\s|$)|[;&,|]\s{0,2}[\w.-]{1,32}=)\S)+)"""
_BARE = re.compile(
    rf"(?P<head>{_NAME}=\s{{0,4}}|--[\w-]{{0,32}}?{_NAMES.replace('?P<token>', '?P<option>')}\s{{1,4}}(?!-)"
    rf"|\b(?:pass(?:word|wd|phrase)|pwd|api[ _-]?key)\s{{0,4}}:\s{{0,4}}|[?&]sig=){_VALUE}",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"(?:None|True|False|null|true|false)\b|[\"'<{(\[%$*\\]|\.\.\.|…|\w[\w.]*\(")
_NO_TOKEN = re.compile(r"[<\[{].*[>\]}]|[-+]?[0-9][0-9_.]*|.?")  # of a vocabulary, or how many there are
_LITERAL = re.compile(r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""")
# All arguments of a login, up to a call among them.
_LOGIN = re.compile(
    r"""(?P<head>(?:\w{0,32}(?:log_?in|sign_?in|authenticate|basic_?auth|set_?auth)\w{0,32}\s{0,4}|\bauth\s{0,4}=\s{0,4})\()"""
    r"""(?P<arguments>(?:"(?:\\.|[^"\\])*(?:"|\\?$)|'(?:\\.|[^'\\])*(?:'|\\?$)|[^"'()])*)""",
    re.IGNORECASE,
)
_ARGUMENT = re.compile(
    rf"""(?P<head>(?:(?P<name>[A-Za-z_]\w{{0,64}})\s{{0,4}}=\s{{0,4}})?[rbfuRBFU]{{0,2}}){_QUOTED}"""
)
_BARE_ARGUMENT = re.compile(rf"(?P<head>\b(?:key|pin|otp|code)=){_VALUE}", re.IGNORECASE)
_OPEN_ARGUMENTS = {"host", "url", "entity", "project", "anonymous", "mode", "region", "registry"}
_SCHEME = re.compile(
    r"(?P<head>\bAuthorization[\"']?\]?\s{0,4}[:=,]\s{0,4}(?:[bfr]{0,2}[\"'])?)[A-Za-z][\w-]{0,32}\s{1,4}(?![{%])[^\s\"',;{}]+",
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
    line = _ASSIGNED.sub(_assigned, _LOGIN.sub(_login, _SCHEME.sub(_hidden, line)))
    line = _LITERAL.sub(lambda found: f"{found['quote']}{_BARE.sub(_bare, found['text'])}{found['quote']}", line)
    return _KNOWN.sub(MASK, line)


def masked_message(text: str) -> str:
    """Return a line of an exception's message without what looks like a secret."""
    text = _LOGIN.sub(lambda found: _BARE_ARGUMENT.sub(_hidden, _login(found)), _SCHEME.sub(_hidden, text))
    return _KNOWN.sub(MASK, _BARE.sub(_bare, _ASSIGNED.sub(_assigned, text)))


def _hidden(found: re.Match[str]) -> str:
    quote = found.groupdict().get("quote", "")
    return f"{found['head']}{quote}{MASK}{quote}"


def _assigned(found: re.Match[str]) -> str:
    value = found["value"]
    ends_a_text = not found["close"] and value.lstrip()[:1] in ",+%)]}"  # `print("tokens=", count)`
    is_none = not value or ends_a_text or (found["token"] and _NO_TOKEN.fullmatch(value))
    return found[0] if is_none else _hidden(found)


def _login(found: re.Match[str]) -> str:
    return found["head"] + _ARGUMENT.sub(_argument, found["arguments"])


def _argument(found: re.Match[str]) -> str:
    return found[0] if found["name"] in _OPEN_ARGUMENTS or not found["value"] else _hidden(found)


def _bare(found: re.Match[str]) -> str:
    is_token = found["token"] or found["option"]
    is_none = _NO_SECRET.match(found["value"]) or (is_token and _NO_TOKEN.fullmatch(found["value"]))
    return found[0] if is_none else _hidden(found)
