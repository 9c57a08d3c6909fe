"""Masks for secrets: no line takes long, and what a mask leaves of a literal holds nothing of it."""

import time

import pytest

from sm_profiler.hook.process_end import line_and_place
from sm_profiler.hook.secrets import masked, masked_message
from sm_profiler.hook.stacks import MAX_SECRET


@pytest.mark.parametrize(
    "text",
    [
        "token:" + " " * MAX_SECRET, "password" * MAX_SECRET, "a-" * MAX_SECRET, "token: a|" * MAX_SECRET,
        "password=" + ",;" * MAX_SECRET, "password=a&a" * MAX_SECRET, "login(" * MAX_SECRET, "login('\\" * MAX_SECRET,
        "auth=(a=" * MAX_SECRET, "--token " * MAX_SECRET, "Authorization: " * MAX_SECRET,
    ],
)  # fmt: skip
def test_no_line_takes_long(text):
    begun = time.process_time()
    masked(text[:MAX_SECRET])
    masked_message(text[: 4 * MAX_SECRET])
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('password = """hunter2"""', 'password = """***"""'),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY=***"),
    ],
)
def test_nothing_of_a_literal_is_left(line, expected):
    assert masked(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('wandb.login(key="0123abcd", host="https://here")', 'wandb.login(key="***", host="https://here")'),
        ('client.login("me", "hunter2")', 'client.login("***", "***")'),
        ('get(url, auth=("me", "hunter2"))', 'get(url, auth=("***", "***"))'),
        ('{"Authorization": "Basic bWU6aHVudGVyMg=="}', '{"Authorization": "***"}'),
        ("run(\"curl -H 'Authorization: Basic bWU6aHVudGVyMg=='\")", "run(\"curl -H 'Authorization: ***'\")"),
        ('connect("host=db password=hunter2 user=me")', 'connect("host=db password=*** user=me")'),
        ('run("mysql --password hunter2 -e x")', 'run("mysql --password *** -e x")'),
    ],
)
def test_secrets_of_logins_headers_and_texts_are_masked(line, expected):
    assert masked(line) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("password=hunter2", "password=***"),
        ("host=db password=hun&ter2 user=me", "host=db password=*** user=me"),
        ("connect(user=me, password=hunter2)", "connect(user=me, password=***)"),
        ("Server=db;PWD=hunter2;", "Server=db;PWD=***;"),
        ("Authorization: Basic bWU6aHVudGVyMg==", "Authorization: ***"),
        ("{'authorization': b'Token 0123abcd'}", "{'authorization': b'***'}"),
        ("https://host/x?token=0123abcd&page=1", "https://host/x?token=***&page=1"),
        ("https://bucket/x?X-Amz-Signature=0123abcd", "https://bucket/x?X-Amz-Signature=***"),
        ("wandb.login(key=0123abcd)", "wandb.login(key=***)"),
        ("['mysql', '--password', 'hunter2']", "['mysql', '--password', '***']"),
    ],
)
def test_secrets_without_quotes_are_masked_in_messages(message, expected):
    assert masked_message(message) == expected
    assert line_and_place(ValueError(message), masked_message)[0] == f"ValueError: {expected}"


def test_a_secret_is_masked_before_its_message_is_cut():
    message = "x" * 280 + " hf_0123456789abcdefghij"
    assert "hf_" not in line_and_place(ValueError(message), masked_message)[0]


@pytest.mark.parametrize(
    "line",
    [
        "tokens = 512", "sorted(found, key=lambda one: one.name)", "connect(password=None)", "password=password",
        "generate(max_tokens=512, pad_token_id=0)", 'tokenizer.pad_token = "[PAD]"', 'eos_token="</s>"',
        'tokenizer="bert-base"', 'author = "me"', 'load(tokenizer, "path")', 'print("tokens=", count)',
        'print(f"password={password}")', 'outcome in ("pass", "fail")', 'token_type = "word"',
        "login(key=os.environ.get('WANDB'))", 'login(user) or print("who are you")', "token=50257 is out of range",
        "unexpected token: }", "login() got an unexpected keyword argument 'token'",
    ],
)  # fmt: skip
def test_ordinary_code_and_messages_stay(line):
    assert masked(line) == line
    assert "=password" in line or "key=os" in line or masked_message(line) == line
