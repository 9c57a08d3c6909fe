"""Secrets in lines of source code and in messages: what looks like a secret is masked before the text is recorded.

In code, a value without quotes is a name or an expression, never the secret itself; in a message, and in the text
literals of code, it is the secret. Repetitions and the text that is searched are bounded, so that no line takes
long: threads of the training wait for it.

The patterns are sm-profiler's own: what searches repositories for secrets brings dependencies into every training
process, and looks for files to report rather than for a part of a line to hide.
"""

from __future__ import annotations

import re

MASK = "***"
MAX_SECRET = 1000  # characters that are searched for secrets; the others are left out
# Names of secrets. What follows may not go on with a letter: `tokenizer` and `author` are no secrets.
_NAMES = (
    r"(?:pass(?:word|wd|phrase|code)|(?:db|user|admin|root|smtp|ftp|mysql|pg)_?pass|pwd|(?<![A-Za-z])pw(?![\w-])|secret"
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
# Most keys are those of a mapping, but few of these are bytes.
_BYTES = re.compile(rf"""(?P<head>\b(?:\w{{0,32}}_)?key\s{{0,4}}[=:]\s{{0,4}}(?:rb|br?)){_QUOTED}""", re.IGNORECASE)
# A value without quotes ends where the next one begins, or at closing punctuation.
_VALUE = r"""(?P<value>(?:(?![,;)\]}"'.:]{1,8}(?:\s|$)|[;&,|]\s{0,2}[\w.-]{1,32}=)\S)+)"""
_BARE = re.compile(
    rf"(?P<head>{_NAME}=\s{{0,4}}|--[\w-]{{0,32}}?{_NAMES.replace('?P<token>', '?P<option>')}\s{{1,4}}(?!-)"
    rf"|\b(?:pass(?:word|wd|phrase)|pwd|api[ _-]?key)\s{{0,4}}:\s{{0,4}}|[?&](?:x-(?:amz|goog)-)?sig(?:nature)?=){_VALUE}",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"(?:None|True|False|null|true|false)\b|[\"'<{(\[$*\\]|%(?![0-9A-Fa-f]{2})|\.\.\.|…|\w[\w.]*\(")
# As SQL and people write it.
_SPOKEN = re.compile(
    r"""(?P<head>\b(?:(?:pass(?:word|wd|phrase)|pwd)(?:\s{1,4}(?:is|as|by))?|identified\s{1,4}by)\s{1,4})"""
    r"""(?P<quote>\\?["'])(?P<value>(?!\s)(?:(?!(?P=quote)).)+)(?P=quote)""",
    re.IGNORECASE,
)
# Arguments of commands, in a line or a list of words.
_COMMANDS = (
    re.compile(  # curl; not the numbers of a user and a group
        r"""(?P<head>(?<![\w-])(?:-u|--(?:proxy-)?user)["']?(?:=|\s{1,4}|\s{0,4},\s{0,4})["']?)"""
        r"""(?!\d{1,9}:\d{1,9}\b|[{%$])[^\s"':]{1,64}:(?![{%$])[^\s"']+"""
    ),
    re.compile(r"""(?P<head>\b(?:mysql\w{0,16}|mariadb[\w-]{0,16}|sshpass)\b.{0,200}?[\s"']-p)(?![{%$])[^\s"',]+"""),
    re.compile(r"""(?P<head>\bsshpass\b.{0,200}?[\s"']-p["']?[\s,]{1,4}["']?)(?![{%$])[^\s"',]+"""),
)
_NO_TOKEN = re.compile(r"[<\[{].*[>\]}]|[-+]?[0-9][0-9_.]*|.?")  # of a vocabulary, or how many there are
_LITERAL = re.compile(r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""")
# All arguments of a login, up to a call among them.
_LOGIN = re.compile(
    r"""(?P<head>(?:\w{0,32}(?:log_?in|sign_?in|authenticate|basic_?auth|set_?auth)\w{0,32}\s{0,4}|fernet\s{0,4}|\bauth\s{0,4}=\s{0,4})\()"""
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
_COOKIE = re.compile(
    r"""(?P<head>\b(?:set-)?cookie["']?\]?\s{0,4}(?::\s{0,4}(?:[bfru]{0,2}["'])?|[=,]\s{0,4}[bfru]{0,2}["']))"""
    r"""[\w!#$%&*+.^|~-]{1,64}=(?![{%])[^"']+""",
    re.IGNORECASE,
)
# What no name has to announce: the beginnings of tokens, and other forms. Names of code have an underscore or a
# hyphen sooner than a token does.
_KNOWN = re.compile(
    r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}"  # AWS
    r"|\b(?:"
    r"sk-[\w-]{16,}"  # OpenAI, Anthropic
    r"|gsk_[^\W_]{16,}|xai-[^\W_]{16,}|r8_[^\W_]{16,}|nvapi-[\w-]{16,}"  # Groq, xAI, Replicate, NVIDIA
    r"|hf_[^\W_]{16,}"  # Hugging Face
    r"|gh[pousr]_[^\W_]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"  # GitHub, GitLab
    r"|xox[a-z]-[\w-]{10,}"  # Slack
    r"|[sr]k_(?:live|test)_[^\W_]{8,}|whsec_[^\W_]{16,}"  # Stripe
    r"|SG\.[\w-]{8,}\.[\w-]{8,}"  # SendGrid
    r"|AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}"  # Google
    r"|pypi-[\w-]{16,}|npm_[^\W_]{16,}|dckr_pat_[\w-]{16,}|dapi[0-9a-f]{16,}"  # PyPI, npm, Docker, Databricks
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # JWT
    r"|Bearer\s+[\w.~+/=-]{8,}"
    r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    # User and password of a URL. The password may have any characters, so it ends at the last @.
    r"|(?<=://)[^\s/:\"']*:[^\s\"']+(?=@)"
    r"|(?<![\w/+.-])(?=[A-Za-z0-9/+]*\d)(?=[A-Za-z0-9/+]*[a-z])(?=[A-Za-z0-9/+]*[A-Z])[A-Za-z0-9/+]{40}(?![\w/+=.-])"  # AWS
)


def masked(line: str) -> str:
    """Return a line of source code without what looks like a secret; its first `MAX_SECRET` characters at most."""
    line = _BYTES.sub(_hidden, _assignments(_LOGIN.sub(_login, _headers(line[:MAX_SECRET]))))
    line = _LITERAL.sub(lambda found: f"{found['quote']}{_texts(found['text'])}{found['quote']}", line)
    return _known(line)


def masked_message(text: str) -> str:
    """Return a line of an exception's message without what looks like a secret; its first `MAX_SECRET` characters."""
    text = _LOGIN.sub(lambda found: _BARE_ARGUMENT.sub(_hidden, _login(found)), _headers(text[:MAX_SECRET]))
    return _known(_texts(_assignments(text)))


def _headers(text: str) -> str:
    return _COOKIE.sub(_hidden, _SCHEME.sub(_hidden, text))


def _assignments(text: str) -> str:
    return _ASSIGNED.sub(_assigned, text)


def _texts(text: str) -> str:
    """Return what is no code without values that have no quotes, or no sign before these."""
    return _SPOKEN.sub(_hidden, _BARE.sub(_bare, text))


def _known(text: str) -> str:
    """Return a text without what is a secret in any place."""
    for command in _COMMANDS:
        text = command.sub(_hidden, text)
    return _KNOWN.sub(MASK, text)


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
