"""No download goes through a link shortener, and none without a published size goes on without end."""

import io
from urllib.parse import urlsplit

from fedlgd.data.fetch import download
from fedlgd.data.fetch.download import DATASETS, Original
from fedlgd.data.fetch.prepare import fetch


def test_no_address_is_a_link_shortener(tmp_path):
    hosts = {urlsplit(url).netloc for source in DATASETS.values() for file in source.files for url in file.urls}
    assert not hosts & {"bit.ly", "goo.gl", "t.co", "tinyurl.com", "is.gd", "ow.ly"}
    outcome = fetch(DATASETS["rim_one"], tmp_path)
    assert outcome.state == "by hand"
    assert "fedlgd data fetch rim_one --from DIR" in outcome.note


def test_a_file_of_unknown_size_ends_somewhere(monkeypatch):
    monkeypatch.setattr(download, "MAX_BYTES", 100)

    class Endless:
        headers: dict[str, str] = {}
        raw = None

        def stream(self, size, decode_content):
            while True:
                yield b"x" * 30

    class File(io.BytesIO):
        def fileno(self):
            return 0

    answer = Endless()
    answer.raw = answer
    monkeypatch.setattr("os.fsync", lambda _: None)
    file = File()
    download._append(answer, file, 0, Original(name="a"))
    assert len(file.getvalue()) == 120
