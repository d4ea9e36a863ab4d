"""The table `[models]`, and where a server is found."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.settings import Address, Caps, ModelSettings, address_of, read_models
from tanren_dsl.evolve.reader import Reader

FULL = """
dialect = "vllm"
notation = "lark"
base_url = "http://localhost:8000/v1/"
model = "m"
key = false
temperature = 1
top_p = 0.95
max_tokens = 2000
seed = true
reasoning_effort = "low"
attempts = 3
timeout_s = 60
longest_wait_s = 10
prompt_chars = 20000
price_in = 0.5
price_out = 2
[caps]
calls = 100
tokens = 1000000
usd = 2.5
wall_s = 3600
"""


def read(text: str) -> ModelSettings | None:
    return read_models(Reader("p.toml", "models", tomllib.loads(text)))


def test_an_empty_table_names_no_model() -> None:
    assert read("") is None


def test_everything_can_be_set() -> None:
    assert read(FULL) == ModelSettings(
        dialect="vllm",
        notation="lark",
        base_url="http://localhost:8000/v1/",
        model="m",
        needs_key=False,
        temperature=1.0,
        top_p=0.95,
        max_tokens=2000,
        seed=True,
        reasoning_effort="low",
        attempts=3,
        timeout_s=60.0,
        longest_wait_s=10.0,
        prompt_chars=20_000,
        price_in=0.5,
        price_out=2.0,
        caps=Caps(100, 1_000_000, 2.5, 3600.0),
    )


def test_one_key_is_enough() -> None:
    assert read('model = "m"') == ModelSettings(model="m")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('key = "sk-1"', r"models\.key: expected false"),
        ("key = true", "a key never stands in the file"),
        ('dialect = "vlm"', r"models\.dialect: expected one of auto, openai-responses, .*, found 'vlm'"),
        ('notation = "gbnf"', r"models\.notation: expected one of default, lark, ebnf"),
        ("temperature = 3", r"models\.temperature: expected a number of at least 0 and at most 2, found 3"),
        ("top_p = 0", r"models\.top_p: expected a number above 0"),
        ("max_tokens = 1", r"models\.max_tokens: expected a whole number from 16"),
        ("timeout_s = 0", r"models\.timeout_s: expected a number above 0"),
        ("seed = 3", r"models\.seed: expected true or false"),
        ('base_url = "localhost:8000"', r"models\.base_url: expected an http or https address"),
        ('base_url = "http://me:secret@host/v1"', "without a key in it"),
        ('modle = "m"', r"models\.modle: unknown key"),
        ("[caps]\ncall = 1", r"models\.caps\.call: unknown key"),
        ("[caps]\ncalls = -1", r"models\.caps\.calls: expected a whole number from 0"),
        ("[caps]\nusd = 1", r"expected models\.price_in and models\.price_out"),
        ("price_in = 1\n[caps]\nusd = 1", r"expected models\.price_out"),
    ],
)
def test_a_wrong_table_names_the_key(text: str, words: str) -> None:
    with pytest.raises(TanrenError, match=words):
        read(text)


ENVIRONMENT = {
    "OPENAI_BASE_URL": "https://api.example.com/v1/",
    "TANREN_MODEL": "big",
    "OPENAI_API_KEY": "sk-1",
    "MY_URL": "http://10.0.0.7/v1",
    "MY_MODEL": "mine",
    "MY_KEY": "sk-2",
}


def test_the_environment_names_the_server() -> None:
    assert address_of(ModelSettings(), ENVIRONMENT) == Address("https://api.example.com/v1", "big", "sk-1")
    named = ModelSettings(base_url_env="MY_URL", model_env="MY_MODEL", key_env="MY_KEY")
    assert address_of(named, ENVIRONMENT) == Address("http://10.0.0.7/v1", "mine", "sk-2")


def test_the_file_goes_before_the_environment() -> None:
    settings = ModelSettings(base_url="http://127.0.0.1:1/v1", model="small")
    assert address_of(settings, ENVIRONMENT) == Address("http://127.0.0.1:1/v1", "small", "sk-1")


@pytest.mark.parametrize("url", ["http://localhost:1/v1", "http://127.0.0.5/v1", "http://[::1]:80/v1"])
def test_a_server_on_this_machine_needs_no_key(url: str) -> None:
    assert address_of(ModelSettings(base_url=url, model="m"), {}).key == "none"


@pytest.mark.parametrize(
    ("changes", "missing", "words"),
    [
        ({}, "OPENAI_BASE_URL", "expected OPENAI_BASE_URL in the environment"),
        ({}, "TANREN_MODEL", "expected TANREN_MODEL in the environment"),
        ({}, "OPENAI_API_KEY", "expected OPENAI_API_KEY in the environment"),
        ({"base_url_env": "NOT_THERE"}, "", "expected NOT_THERE in the environment"),
        ({"base_url_env": "MY_KEY"}, "", "MY_KEY: expected an http or https address, found 'sk-2'"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, str], missing: str, words: str) -> None:
    environment = {name: value for name, value in ENVIRONMENT.items() if name != missing}
    with pytest.raises(TanrenError) as caught:
        address_of(replace(ModelSettings(), **changes), environment)
    assert words in str(caught.value)


def test_a_server_elsewhere_may_want_no_key() -> None:
    settings = ModelSettings(needs_key=False, base_url="http://10.0.0.7/v1", model="m")
    assert address_of(settings, ENVIRONMENT).key == "none"
