"""Configurations lie once beside the history, and records name them by their hash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.helpers import binding
from tidemark.core.binding import Binding, Configuration
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import Txn
from tidemark.core.ledger import UPPER, Committed, Put
from tidemark.delta.control import DeltaControl
from tidemark.delta.store import Store
from tidemark.pipeline.history import losses

SHARDS = [{"name": f"shard_{number}", "route": {"equals": number}} for number in range(300)]
BIG = Configuration.of(json.dumps({"generation": 2, "shards": SHARDS}))


def bind(control: DeltaControl, txn: int, settings: Configuration) -> None:
    """Bind one transaction with these settings."""
    base = binding(txn, {"p": txn - 1}, {"p": txn})
    bound = Binding(base.txn, base.lower, base.upper, base.owner, settings)
    put = Put({UPPER: txn + 1}, (bound,), None)
    assert isinstance(control.bindings.commit(control.bindings.head(), put), Committed)


def bound(control: DeltaControl, txn: int = 1) -> Binding:
    control.bindings.head()
    (found,) = control.bindings.read(Txn(txn), Txn(txn + 1))
    assert isinstance(found, Binding)
    return found


def settings_file(root: Path) -> Path:
    (found,) = (root / "p" / "_control" / "settings").iterdir()
    return found


def test_bindings_name_their_configuration_and_do_not_hold_it(tmp_path: Path) -> None:
    control = DeltaControl(str(tmp_path), "p")
    for txn in (1, 2, 3):
        bind(control, txn, BIG)
    assert settings_file(tmp_path).name == f"{BIG.fingerprint}.json"
    records = [file.stat().st_size for file in (tmp_path / "p/_control/history").glob("r-*.parquet")]
    assert max(records) < len(BIG.text) / 4
    found = bound(DeltaControl(str(tmp_path), "p"), 3).configuration
    assert (found, found.text, found.generation) == (BIG, BIG.text, 2)


def test_a_binding_is_not_put_before_its_settings_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, put_if_absent = DeltaControl(str(tmp_path), "p"), Store.put_if_absent

    def full(store: Store, path: str, data: bytes) -> bool:
        if "settings" in store.uri:
            raise OSError("no space")
        return put_if_absent(store, path, data)

    monkeypatch.setattr(Store, "put_if_absent", full)
    with pytest.raises(Determinate, match="no space"):
        bind(control, 1, BIG)
    assert DeltaControl(str(tmp_path), "p").bindings.head().upper == 1


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_lost_settings_are_named_by_readers_and_by_the_next_writer(tmp_path: Path, damage: str) -> None:
    bind(DeltaControl(str(tmp_path), "p"), 1, BIG)
    file = settings_file(tmp_path)
    if damage == "gone":
        file.unlink()
    else:
        file.write_text(file.read_text().replace("shard_7", "shard_8"))
    expected = "are gone" if damage == "gone" else "are damaged"
    with pytest.raises(InvariantViolation, match=f"{BIG.fingerprint}.json {expected}"):
        _ = bound(DeltaControl(str(tmp_path), "p")).configuration.text
    assert expected in losses(DeltaControl(str(tmp_path), "p"), ())[0]
    writer = DeltaControl(str(tmp_path), "p")
    if damage == "changed":
        with pytest.raises(InvariantViolation, match="are damaged"):
            bind(writer, 2, BIG)
        file.unlink()
    # A writer that has the text puts it there again; one that has only its name can't.
    with pytest.raises(InvariantViolation, match="are gone"):
        bind(writer, 2, bound(writer).configuration)
    bind(writer, 2, BIG)
    assert bound(DeltaControl(str(tmp_path), "p")).configuration.text == BIG.text
