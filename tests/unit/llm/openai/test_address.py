"""Where a model is found, and what is said when a key or an address is missing."""

from __future__ import annotations

import sys

import pytest

from skill_ttrl.config import EndpointConfig, EndpointsConfig, load_config
from skill_ttrl.config.section import read_mapping
from skill_ttrl.errors import ConfigError, MissingDependencyError
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.llm.openai.replies import NO_KEY, find_address

KEY = "sk-test-1234567890"
VARIABLES = (
    "OPENAI_API_KEY", "OPENAI_BASE_URL", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION",
    "MY_KEY",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def endpoint(**fields: object) -> EndpointConfig:
    return EndpointConfig.model_validate({"model": "m", **fields})


AZURE = {"AZURE_OPENAI_ENDPOINT": "https://name.openai.azure.com/", "OPENAI_API_VERSION": "2024-10-21"}
OWN = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("fields", "variables", "missing"),
    [
        ({}, {}, "OPENAI_API_KEY"),
        ({"base_url": OWN, "api_key_env": "MY_KEY"}, {}, "MY_KEY"),
        ({"provider": "azure"}, {}, "AZURE_OPENAI_ENDPOINT"),
        ({"provider": "azure"}, AZURE, "AZURE_OPENAI_API_KEY"),
    ],
)
def test_what_is_missing_is_named_with_its_variable(
    fields: dict[str, str], variables: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=missing):
        find_address(endpoint(**fields), "teacher")


def test_address_key_and_version_come_from_the_config_and_the_usual_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_address(endpoint(base_url=OWN), "policy")
    assert (found.key, found.host, found.is_open) == (NO_KEY, "127.0.0.1:8000", True)
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://proxy.example/v1/")
    found = find_address(endpoint(), "policy")
    assert (found.base_url, found.key) == ("https://proxy.example/v1", KEY)
    assert find_address(endpoint(base_url="https://other.example/v1"), "policy").host == "other.example"
    for name, value in {**AZURE, "AZURE_OPENAI_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    found = find_address(endpoint(provider="azure"), "policy")
    assert (found.host, found.api_version, found.key) == ("name.openai.azure.com", "2024-10-21", KEY)


@pytest.mark.parametrize("value", ["two words", "sk-\x07bell", "schlüssel"])
def test_what_is_no_key_is_refused_without_being_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(ConfigError) as caught:
        find_address(endpoint(), "policy")
    assert value not in str(caught.value)


def test_an_address_in_the_environment_must_be_one_and_hold_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:secret@host.example/v1")
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL") as caught:
        find_address(endpoint(), "policy")
    assert "secret" not in str(caught.value)


def test_no_repr_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    config = EndpointsConfig(roles={"policy": endpoint()})
    client = make_client(config, "policy")
    assert KEY not in f"{find_address(endpoint(), 'policy')!r} {client!r} {client!s} {config!r}"
    client.shut()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingDependencyError, match=r"endpoints\.roles\.policy needs .*\.\[openai\]"):
        make_client(EndpointsConfig(roles={"policy": endpoint(base_url="http://127.0.0.1:1/v1")}), "policy")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("api_key_env", KEY, "environment variable"),
        *(
            ("base_url", f"https://{secret}", "environment variable")
            for secret in (f"user:{KEY}@host.example/v1", f"host.example/v1?api-key={KEY}", f"host.example/v1#{KEY}")
        ),
        *(
            ("base_url", f"http://{host}", "")
            for host in ("localhost:abc/v1", "localhost:99999/v1", "ho st/v1", "[::1")
        ),
    ],
)
def test_an_address_that_nobody_could_ask_or_a_key_in_the_config_is_refused_without_being_shown(
    field: str, value: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"endpoints\.roles\.policy\.{field}: .*{says}") as caught:
        load_config("quickstart", ["endpoints.model=m", f"endpoints.roles.policy.{field}={value}"])
    assert KEY not in str(caught.value)


def test_a_role_takes_what_it_does_not_say_from_the_settings_of_all() -> None:
    shared = {"model": "m", "base_url": OWN, "max_retries": 1, "extra_body": {"a": 1}}
    roles = {"teacher": {"model": "o3", "base_url": None, "max_retries": 6}, "merger": {}}
    config = load_config({"endpoints": {**shared, "roles": roles}})
    assert config.endpoints.of("policy") == config.endpoints.of("merger") == endpoint(**shared)
    assert config.endpoints.of("teacher") == endpoint(model="o3", extra_body={"a": 1})
    assert config.endpoints.of("embeddings") is None, "a model that chats embeds nothing"
    assert load_config({"endpoints": config.endpoints.model_dump(mode="json")}) == config
    assert load_config(read_mapping(config.to_yaml(), "")) == load_config(config.stated()) == config


@pytest.mark.parametrize("proxy", ["socks4://host:1", "http://host:port"])
def test_a_proxy_that_cannot_be_used_is_said(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ConfigError, match="proxy"):
        make_client(
            EndpointsConfig(roles={"policy": endpoint(base_url="https://host.example/v1", api_key_env=None)}), "policy"
        )
