"""What set-up gives to the programs that fetch for it."""

from __future__ import annotations

import ssl
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup" / "setup.py"
CHOICES = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")


@pytest.fixture
def setting_up(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    spec = spec_from_file_location("setting_up", SETUP)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def certificates_at(
    monkeypatch: pytest.MonkeyPatch, *, file: Path | None = None, folder: Path | None = None
) -> None:
    found = SimpleNamespace(cafile=file and str(file), capath=folder and str(folder))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: found)


def test_regression_uv_takes_the_certificates_of_the_machine_where_it_has_some(
    setting_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A company's proxy signs with a certificate that only the machine knows."""
    certificates_at(monkeypatch, file=tmp_path / "ca.pem")
    assert [setting_up.environment()[name] for name in CHOICES] == ["true", "true"]
    (tmp_path / "certs").mkdir()
    certificates_at(monkeypatch, folder=tmp_path / "certs")
    assert not set(CHOICES) & setting_up.environment().keys()
    (tmp_path / "certs" / "ca.pem").touch()
    assert [setting_up.environment()[name] for name in CHOICES] == ["true", "true"]


def test_uv_keeps_its_own_certificates_where_the_machine_has_none(
    setting_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small container may have none at all; nothing could be fetched with those."""
    certificates_at(monkeypatch)
    assert not set(CHOICES) & setting_up.environment().keys()


def test_who_has_chosen_certificates_keeps_them(
    setting_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates_at(monkeypatch, file=tmp_path / "ca.pem")
    monkeypatch.setenv("UV_SYSTEM_CERTS", "false")
    monkeypatch.setenv("UV_NATIVE_TLS", "false")
    assert [setting_up.environment()[name] for name in CHOICES] == ["false", "false"]
