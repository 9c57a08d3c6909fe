"""Masks for secrets: no line takes long, and what a mask leaves of a literal holds nothing of it."""

import time

import pytest

from sm_profiler.hook.process_end import line_and_place
from sm_profiler.hook.secrets import MAX_SECRET, masked, masked_message


@pytest.mark.parametrize(
    "text",
    [
        "token:" + " " * MAX_SECRET, "password" * MAX_SECRET, "a-" * MAX_SECRET, "token: a|" * MAX_SECRET,
        "password=" + ",;" * MAX_SECRET, "password=a&a" * MAX_SECRET, "login(" * MAX_SECRET, "login('\\" * MAX_SECRET,
        "auth=(a=" * MAX_SECRET, "--token " * MAX_SECRET, "Authorization: " * MAX_SECRET,
        "://a:" * MAX_SECRET, "mysql -" * MAX_SECRET, "-u a" * MAX_SECRET, "Cookie: a" * MAX_SECRET,
        "password '" * MAX_SECRET, "key=b'" * MAX_SECRET,
    ],
)  # fmt: skip
def test_no_line_takes_long(text):
    begun = time.process_time()
    masked(text)
    masked_message(text)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("mask", [masked, masked_message])
def test_the_text_that_is_searched_is_bounded(mask):
    assert mask("x " * 1_000_000) == ("x " * MAX_SECRET)[:MAX_SECRET]


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
    ("line", "expected"),
    [
        ("KEY = b'0123abcd'", "KEY = b'***'"),
        ("self.signing_key = b'0123abcd'", "self.signing_key = b'***'"),
        ("PW = 'hunter2'", "PW = '***'"),
        ("box = Fernet(b'0123abcd=')", "box = Fernet(b'***')"),
        ('run(["curl", "-u", "bob:hunter2", url])', 'run(["curl", "-u", "***", url])'),
        ('run("mysql -u root -phunter2 -e x")', 'run("mysql -u root -p*** -e x")'),
        ("execute(\"CREATE USER bob PASSWORD 'hunter2'\")", "execute(\"CREATE USER bob PASSWORD '***'\")"),
        ('headers = {"Cookie": "session=0123abcd"}', 'headers = {"Cookie": "***"}'),
        ('connect("redis://:hunter2@host:6379")', 'connect("redis://***@host:6379")'),
    ],
)
def test_secrets_of_keys_commands_and_cookies_are_masked_in_code(line, expected):
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
        ("redis://:hunter2@host:6379", "redis://***@host:6379"),
        ("from 'postgresql://me:p@ss/w0:rd@host/db'", "from 'postgresql://***@host/db'"),
        ("smtp://me@here.org:hunter2@host", "smtp://***@host"),
        ("https://x/y?GoogleAccessId=me&Signature=%2Fab%3D%3D&x=1", "https://x/y?GoogleAccessId=me&Signature=***&x=1"),
        ("https://x/y?X-Goog-Signature=0123abcd", "https://x/y?X-Goog-Signature=***"),
        (
            "https://x/y?Policy=abc&Signature=ab~c-d__&Key-Pair-Id=K1",
            "https://x/y?Policy=abc&Signature=***&Key-Pair-Id=K1",
        ),
        ("Cookie: session=0123abcd; b=c", "Cookie: ***"),
        ("{'Set-Cookie': 'session=0123abcd; Path=/', 'Age': '1'}", "{'Set-Cookie': '***', 'Age': '1'}"),
        ("gsk_0123456789abcdefghij is invalid", "*** is invalid"),
        ("xai-0123456789abcdefghij is invalid", "*** is invalid"),
        ("r8_0123456789abcdefghij is invalid", "*** is invalid"),
        ("nvapi-0123456789abc-defghij is invalid", "*** is invalid"),
        ("sk_live_0123456789abcdef, rk_live_0123456789abcdef", "***, ***"),
        ("SG.0123456789abcdef.0123456789abcdef is invalid", "*** is invalid"),
        ("curl -u bob:hunter2 https://host", "curl -u *** https://host"),
        ("curl --user bob:hunter2 https://host", "curl --user *** https://host"),
        ("['curl', '-u', 'bob:hunter2']", "['curl', '-u', '***']"),
        ("Command '['mysql', '-phunter2', '-e', 'x']' returned", "Command '['mysql', '-p***', '-e', 'x']' returned"),
        ("mysqldump -u root -phunter2 db", "mysqldump -u root -p*** db"),
        ("sshpass -p hunter2 ssh host", "sshpass -p *** ssh host"),
        ("CREATE USER bob WITH PASSWORD 'hunter2'", "CREATE USER bob WITH PASSWORD '***'"),
        ('CREATE USER bob IDENTIFIED BY "hunter2"', 'CREATE USER bob IDENTIFIED BY "***"'),
        ("Fernet(b'0123abcd=')", "Fernet(b'***')"),
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
        "hf_model_of_many_parts(batch)", "r8_attention_of_a_block(x)", 'key = "val_loss"', "docker run --user 1000:1000 x",
        'print("password " + x, "y")', "git+https://github.com/a/b@v1", 'run(f"curl -u {user}:{code} {url}")',
        "password is required", "x[-u :n]", "f(cookie, session=sid)",
    ],
)  # fmt: skip
def test_ordinary_code_and_messages_stay(line):
    assert masked(line) == line
    assert "=password" in line or "key=os" in line or masked_message(line) == line
