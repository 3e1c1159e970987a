"""The recordings are those of what is locked, set and done today."""

from __future__ import annotations

from tests.debezium.connect import versions
from tests.debezium.record import SETTINGS
from tests.debezium.recorded import FOLDER, read


def test_there_is_a_recording_of_every_setting_by_the_locked_versions() -> None:
    """A change of the lock or of the settings asks for `make debezium`."""
    assert {path.stem for path in FOLDER.iterdir()} == SETTINGS.keys()
    for name, settings in SETTINGS.items():
        recording = read(FOLDER / f"{name}.jsonl")
        assert recording.settings == settings
        assert versions().items() <= recording.made_by.items()
        assert len(recording.records) >= 50
