"""Results of one kind beside each other in a run folder."""

from fedlgd.rundir.results import results_of, unused_file


def test_the_first_result_has_no_number_and_others_follow_the_last(tmp_path):
    names = []
    for _ in range(11):
        file = unused_file(tmp_path, "audit")
        file.write_text("{}")
        names.append(file.name)
    assert names[:2] == ["audit.json", "audit-2.json"]
    assert [file.name for file in results_of(tmp_path, "audit")] == names  # 10 after 9
    (tmp_path / "audit.json").unlink()
    assert unused_file(tmp_path, "audit").name == "audit-12.json"


def test_files_of_other_kinds_are_left_alone(tmp_path):
    for name in ("auditor.json", "audit-x.json", "audit-0.json", "audit-2.txt", "invert.json"):
        (tmp_path / name).write_text("{}")
    assert results_of(tmp_path, "audit") == []
    assert unused_file(tmp_path, "audit").name == "audit.json"
