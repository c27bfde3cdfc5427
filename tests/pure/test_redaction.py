"""Secrets that programs print, masked by their shape. All of them are made up here."""

import random
import string
import time

import pytest
from builders import receipt
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exporters.redaction import MASK, Prompt, mask, mask_words, redact

LETTERS = string.ascii_letters + string.digits


def made_up(length, alphabet=LETTERS, seed=1):
    """So many characters, the same at every run, with all classes among them."""
    return "aZ7" + "".join(random.Random(seed).choices(alphabet, k=length - 3))


WORD = made_up(36)
SECRETS = {
    "GitHub": f"ghp_{WORD}",
    "GitHub, app": f"ghs_{WORD}",
    "GitHub, fine-grained": f"github_pat_{made_up(22)}_{made_up(59)}",
    "GitLab": f"glpat-{made_up(20)}",
    "AWS key id": "AKIA" + made_up(16, string.ascii_uppercase).upper(),
    "AWS secret key": made_up(40, LETTERS + "/+"),
    "Google API key": f"AIza{made_up(35)}",
    "Google OAuth": f"ya29.{made_up(60)}",
    "Slack": f"xoxb-123456789012-{made_up(24)}",
    "Stripe": f"sk_live_{made_up(24)}",
    "OpenAI": f"sk-proj-{made_up(48)}",
    "Anthropic": f"sk-ant-api03-{made_up(90, LETTERS + '-_')}",
    "npm": f"npm_{WORD}",
    "PyPI": f"pypi-AgEIcHlwaS5vcmc{made_up(60)}",
    "Docker Hub": f"dckr_pat_{made_up(27)}",
    "Hugging Face": f"hf_{made_up(34)}",
    "DigitalOcean": f"dop_v1_{'0a1b' * 16}",
    "Vault": f"hvs.{made_up(90)}",
    "SendGrid": f"SG.{made_up(22)}.{made_up(43)}",
    "age": "AGE-SECRET-KEY-1" + made_up(58, string.ascii_uppercase).upper(),
    "JSON Web Token": f"eyJ{made_up(33)}.eyJ{made_up(60)}.{made_up(43)}",
    "a random word": made_up(44, LETTERS),
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "Use {} for this? [y/N]", "key:\n{}\nContinue?", '"{}"', "id={},x"]
)
def test_secrets_of_every_known_shape_are_masked(name, around):
    """Wherever they stand; what is around them stays."""
    secret = SECRETS[name]
    assert secret not in mask(around.format(secret))
    if len(secret) < 60 or "\n" not in around:  # else the next line may be the rest of it
        assert mask(around.format(secret)) == around.format(MASK)


@pytest.mark.parametrize("columns", [61, 80, 132])
@pytest.mark.parametrize("name", ["GitHub, fine-grained", "Anthropic", "JSON Web Token"])
def test_a_secret_that_the_screen_broke_is_masked_whole(name, columns):
    """A terminal breaks a long line wherever it ends."""
    line = f"The token of this account is {SECRETS[name]}"
    text = "\n".join(line[i : i + columns] for i in range(0, len(line), columns))
    masked = mask(f"{text}\n\nKeep it? [y/N] ")
    for piece in (SECRETS[name][i : i + 8] for i in range(len("github_pat_"), 60, 8)):
        assert piece not in masked.replace("\n", "")
    assert masked.endswith("\nKeep it? [y/N] ")


BESIDE = {
    "password: hunter2": f"password: {MASK}",
    "Password is hunter2.": f"Password is {MASK}",
    "DB_PASSWORD=hunter2 make": f"DB_PASSWORD={MASK} make",
    'export API_KEY="hunter2"': f'export API_KEY="{MASK}"',
    '{"client_secret": "hunter2", "a": 1}': f'{{"client_secret": "{MASK}", "a": 1}}',
    "Secret token [hunter2]: ": f"Secret token [{MASK}]: ",
    "postgres://joe:hunter2@db/x": f"postgres://joe:{MASK}@db/x",
    "https://x-access-token:hunter2@host/r.git": f"https://x-access-token:{MASK}@host/r.git",
    "Authorization: Bearer hunter2hunter2": f"Authorization: Bearer {MASK}",
    "curl -u joe:hunter2 host": f"curl -u joe:{MASK} host",
    "login --password hunter2 joe": f"login --password {MASK} joe",
    "https://hooks.slack.com/services/T0/B0/x1": f"https://hooks.slack.com/services/{MASK}",
}


@pytest.mark.parametrize("text", BESIDE)
def test_a_word_beside_the_name_of_a_secret_is_masked(text):
    """It has no shape of its own; the rest stays."""
    assert mask(text) == BESIDE[text]


def test_a_private_key_is_masked_whole_even_without_its_end():
    """A screen shows the first part of it at times."""
    lines = "\n".join(made_up(64, LETTERS + "+/", seed) for seed in range(8))
    begin, end = "-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"
    assert mask(f"Save?\n{begin}\n{lines}\n{end}\n[y/N]") == f"Save?\n{MASK}\n[y/N]"
    assert mask(f"Save?\n{begin}\n{lines}") == f"Save?\n{MASK}"


@pytest.mark.parametrize(
    "question",
    [
        "rm: remove regular file 'notes'? ",
        "[sudo] password for joe: ",
        "Enter passphrase (empty for no passphrase): ",
        "Enter passphrase for key '/home/joe/.ssh/id_ed25519': ",
        "Password: ",
        "Username for 'https://host': ",
        "Do you want to continue? [Y/n] ",
        "Drop commit 9f2c1e7ab34d5566778899aabbccddeeff001122? [y/N]",
        "Remove image sha256:" + "0123456789abcdef" * 4 + "? [y/N] ",
        "Overwrite /usr/lib/python3/dist-packages/some_Package_2/module/file.py? ",
        "Are you sure you want to continue connecting (yes/no/[fingerprint])? ",
        "Proceed with tokenization? ",
    ],
)
def test_a_plain_question_is_left_as_it_is(question):
    """Also one that asks for a secret, and one about a digest or a long path."""
    assert mask(question) == question


def test_a_command_line_is_masked_word_by_word():
    """The word after an option that is named like a secret, too."""
    words = (
        "curl", "-u", "joe:hunter2", "--token", "hunter2", "--api-key=hunter2", "-H",
        "Authorization: Bearer hunter2", "--token", "-v", "https://joe:hunter2@host/",
    )  # fmt: skip
    assert mask_words(words) == (
        "curl", "-u", f"joe:{MASK}", "--token", MASK, f"--api-key={MASK}", "-H",
        f"Authorization: Bearer {MASK}", "--token", "-v", f"https://joe:{MASK}@host/",
    )  # fmt: skip


def test_a_receipt_says_whether_anything_is_missing():
    """``full`` is the receipt itself; ``off`` has no question, and no secret in its commands."""
    plain = receipt(1, b"Go on? ")
    secret = receipt(1, b"token: abcdefgh ok? ", argv=("login", "--password", "hunter2"))
    assert redact(secret, Prompt.FULL) is secret
    assert redact(plain, Prompt.REDACTED) == plain
    masked = redact(secret, Prompt.REDACTED)
    assert masked.prompt.text == f"token: {MASK} ok?"
    assert masked.program.argv == ("login", "--password", MASK)
    assert masked.prompt.redacted
    off = redact(secret, Prompt.OFF)
    assert (off.prompt.text, off.prompt.redacted) == ("", True)
    assert "hunter2" not in off.to_json()
    assert not redact(plain, Prompt.OFF).prompt.text


@settings(deadline=None)  # it is measured elsewhere
@given(st.text(max_size=300))
@example("password:" * 50)
def test_any_text_can_be_masked_and_masking_twice_changes_nothing_more(text):
    """Programs print anything."""
    once = mask(text)
    assert mask(once) == once


@pytest.mark.parametrize(
    "hostile",
    ["a" * 2048, "password" * 256, "-" * 2048, "a:" * 1024, "eyJ" + "a." * 1000, "--a" * 700,
     "x://" * 512, "-----BEGIN PRIVATE KEY-----" * 70, "token [" * 290, "A1b" * 680, " " * 2048],
)  # fmt: skip
def test_no_text_takes_long(hostile):
    """A prompt has at most 2 KiB; a pattern that goes back and forth would need minutes for one."""
    began = time.process_time()
    mask(hostile)
    assert time.process_time() - began < 5
