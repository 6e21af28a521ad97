from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support_results import gemm_results, hostile_results, many_results, passing_results, results_of

from accuracy_eval.cli import run
from accuracy_eval.errors import FileError, SchemaError
from accuracy_eval.json_data import to_json
from accuracy_eval.records import (
    Attribution,
    Case,
    Diagnosis,
    DumpInfo,
    GateInfo,
    GateResult,
    InputBin,
    NotCompared,
    Pair,
    Results,
    ScaleFacts,
    Side,
    Sketch,
    TensorResult,
    Verdict,
    WorstElement,
)
from accuracy_eval.report import load_results, write_reports

DOCS = Path(__file__).parent.parent / "docs"
RECORDS = {
    "": Results, "case": Case, "diagnosis": Diagnosis, "gate_result": GateResult, "worst_element": WorstElement, "side": Side, "pair": Pair,
    "tensor": TensorResult, "not_compared": NotCompared, "dump": DumpInfo, "gate": GateInfo, "sketch": Sketch,
    "input_bin": InputBin, "scale_facts": ScaleFacts,
}  # fmt: skip


@pytest.mark.parametrize(
    "results", [gemm_results(), hostile_results(), passing_results(), results_of(())], ids=["gemm", "hostile", "passing", "empty"]
)
def test_results_come_back_as_they_were_written(results: Results, tmp_path: Path) -> None:
    write_reports(results, tmp_path, ("json",))
    again = load_results(tmp_path / "results.json")
    assert to_json(again) == to_json(results)  # NaN is not equal to itself, its text is
    assert type(again.tensors) is tuple
    assert again.verdict is results.verdict


def test_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    write_reports(passing_results(), tmp_path, ("json",))
    assert load_results(tmp_path) == passing_results()


def test_every_tensor_is_one_line(tmp_path: Path) -> None:
    (path,) = write_reports(many_results(20), tmp_path, ("json",))
    lines = path.read_text("ascii").split("\n")
    assert sum('"case_id"' in line for line in lines) == 20
    assert json.loads(path.read_text())["verdict"] == "FAIL"


def test_numbers_that_json_cannot_hold_are_named_texts(tmp_path: Path) -> None:
    (path,) = write_reports(gemm_results(), tmp_path, ("json",))
    data = json.loads(path.read_text(), parse_constant=pytest.fail)
    side = next(t for t in data["tensors"] if ".nt.float16." in t["case_id"])["sides"][0]
    assert (side["metrics"]["rel_fro"], side["metrics"]["rmse"], side["metrics"]["bias_sigma"]) == ("NaN", "Inf", "-Inf")


@pytest.fixture
def broken(tmp_path: Path) -> Any:
    """Writes results.json with a change and returns its path."""
    write_reports(gemm_results(), tmp_path, ("json",))
    path = tmp_path / "results.json"

    def change(edit: Any) -> Path:
        data = json.loads(path.read_text())
        edit(data)
        path.write_text(json.dumps(data))
        return path

    return change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r": not JSON \(Expecting value"),
        ("{", r": not JSON \("),
        ('{"schema": "accuracy-eval-results/1.0", "verdict": NaN}', "the bare token NaN; accuracy-eval writes it as a string"),
        ("[1]", 'JSON without a "schema" key'),
        ('{"a": 1}', 'JSON without a "schema" key, so not a results.json; expected schema accuracy-eval-results/1.2'),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": "accuracy-eval-results/1.0"}', "key 'producer' is missing; the file is not whole"),
    ],
    ids=["empty", "cut off", "bare NaN", "array", "other JSON", "deep", "keys missing"],
)
def test_what_is_no_results_file_is_said_to_be_none(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(FileError, match=message) as caught:
        load_results(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(b"\x89HDF\r\n\x1a\n\xff")
    with pytest.raises(FileError, match="not JSON"):
        load_results(path)


def test_absent_file_names_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.json: cannot be read: No such file or directory; expected a results\.json"):
        load_results(tmp_path / "none.json")


@pytest.mark.parametrize("found", ["accuracy-eval-dump/1.0", 1, None, "accuracy-eval-results/one", "accuracy-eval-results/1"])
def test_other_schema_is_refused(found: Any, broken: Any) -> None:
    path = broken(lambda data: data.update(schema=found))
    with pytest.raises(SchemaError) as caught:
        load_results(path)
    assert (
        str(caught.value) == f"{path}: schema is {found!r}, expected accuracy-eval-results/1.2; write it again with accuracy-eval compare"
    )


def test_newer_major_schema_asks_for_a_newer_program(broken: Any) -> None:
    path = broken(lambda data: data.update(schema="accuracy-eval-results/2.0"))
    with pytest.raises(SchemaError) as caught:
        load_results(path)
    expected = "schema is accuracy-eval-results/2.0, this version reads accuracy-eval-results/1.x; install a newer accuracy-eval"
    assert str(caught.value) == f"{path}: {expected}"


def test_newer_minor_schema_with_unknown_keys_is_read(broken: Any) -> None:
    def edit(data: Any) -> None:
        data.update(schema="accuracy-eval-results/1.7", novelty={"a": [1]})
        data["tensors"][0]["novelty"] = 1
        data["tensors"][0]["sides"][0]["novelty"] = [2]

    assert len(load_results(broken(edit)).tensors) == len(gemm_results().tensors)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda d: d["tensors"][3].update(verdict="GOOD"),
            r"tensors\[3\] cannot be read \(ValueError: verdict: 'GOOD' is not a valid Verdict\)",
        ),
        (
            lambda d: d["tensors"][2].pop("case"),
            r"tensors\[2\] cannot be read \(TypeError: missing 1 required positional argument: 'case'\)",
        ),
        (
            lambda d: d["tensors"][0]["sides"][0].update(contract=7),
            r"tensors\[0\] cannot be read \(TypeError: sides: contract: expected a text, found 7\)",
        ),
        (
            lambda d: d["tensors"][0]["sides"][0]["worst"][0].update(actual_code=1.5),
            r"tensors\[0\] cannot be read \(TypeError: sides: worst: actual_code: expected an integer, found 1.5\)",
        ),
        (
            lambda d: d["tensors"][0]["sides"][0]["gates"][0].update(value="much"),
            r"tensors\[0\] cannot be read \(TypeError: sides: gates: value: expected a number, found 'much'\)",
        ),
        (
            lambda d: d["tensors"][0]["case"].update(shape="m"),
            r"tensors\[0\] cannot be read \(TypeError: case: shape: expected an array, found 'm'\)",
        ),
        (lambda d: d["dumps"][0].update(platform=[1]), r"dumps\[0\] cannot be read \(TypeError: platform: expected an object, found"),
        (lambda d: d["tensors"].__setitem__(1, 5), r"tensors\[1\] cannot be read"),
        (lambda d: d["dumps"].__setitem__(0, None), r"dumps\[0\] cannot be read"),
        (lambda d: d.update(tensors={}), "tensors is dict, expected an array"),
        (lambda d: d.update(verdict="x"), "the top level cannot be read"),
    ],
    ids=["verdict", "case missing", "text", "integer", "number in text", "array", "facts", "number", "null", "object", "top level"],
)
def test_damaged_record_is_named_by_its_place(edit: Any, message: str, broken: Any) -> None:
    path = broken(edit)
    with pytest.raises(FileError, match=f"^{re.escape(str(path))}: {message}"):
        load_results(path)


def validate(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str = "$") -> list[str]:
    """The subset of JSON Schema that docs/results.schema.json uses; returns every violation as 'place: what'."""
    if "$ref" in schema:
        return validate(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
    if "anyOf" in schema:
        return [] if any(not validate(value, s, root, where) for s in schema["anyOf"]) else [f"{where}: fits none of {schema['anyOf']}"]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{where}: {value!r} is not in {schema['enum']}"]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted

    def fits(kind: str) -> bool:
        if kind in ("integer", "number"):
            return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
        return isinstance(value, kinds[kind])

    if wanted and not any(map(fits, wanted)):
        return [f"{where}: {value!r} is no {wanted}"]
    problems: list[str] = []
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        problems.append(f"{where}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, dict):
        problems += [f"{where}: {key} is missing" for key in schema.get("required", []) if key not in value]
        for key, inner in schema.get("properties", {}).items():
            problems += validate(value[key], inner, root, f"{where}.{key}") if key in value else []
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            problems.append(f"{where}: {len(value)} items")
        for i, item in enumerate(value):
            prefix = schema.get("prefixItems", [])
            inner = prefix[i] if i < len(prefix) else schema.get("items", {})
            problems += validate(item, inner, root, f"{where}[{i}]")
    return problems


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCS / "results.schema.json").read_text())
    return loaded


@pytest.mark.parametrize("results", [gemm_results(), passing_results(), results_of(())], ids=["gemm", "passing", "empty"])
def test_written_files_keep_the_published_schema(results: Results, schema: dict[str, Any], tmp_path: Path) -> None:
    (path,) = write_reports(results, tmp_path, ("json",))
    assert validate(json.loads(path.read_text()), schema, schema) == []


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda d: d.update(schema="accuracy-eval-results/2.0"), "$.schema"),
        (lambda d: d["tensors"][0].update(verdict="OK"), "$.tensors[0].verdict"),
        (lambda d: d["tensors"][0]["sides"][0]["gates"][0].update(limit="many"), "$.tensors[0].sides[0].gates[0].limit"),
        (lambda d: d["tensors"][0]["sides"][0].pop("format"), "$.tensors[0].sides[0]"),
        (lambda d: d["tensors"][0]["case"]["shape"][0].append(1), "$.tensors[0].case.shape[0]"),
        (lambda d: d["dumps"][0].update(platform=[]), "$.dumps[0].platform"),
    ],
)
def test_schema_refuses_what_it_should(edit: Any, place: str, schema: dict[str, Any]) -> None:
    data = json.loads(json.dumps(to_json(gemm_results())))
    edit(data)
    assert [p.split(": ")[0] for p in validate(data, schema, schema)] == [place]


@pytest.mark.parametrize("name", RECORDS)
def test_schema_and_page_name_every_field_of_every_record(name: str, schema: dict[str, Any]) -> None:
    part = schema["$defs"][name] if name else schema
    fields = [f.name for f in dataclasses.fields(RECORDS[name])]
    assert list(part["properties"]) == fields
    assert part["required"] == fields
    page = (DOCS / "results.md").read_text()
    assert [f for f in fields if f"`{f}`" not in page] == []


def test_schema_knows_every_verdict_and_attribution(schema: dict[str, Any]) -> None:
    assert set(schema["$defs"]["verdict"]["enum"]) == {str(v) for v in Verdict}
    assert set(schema["$defs"]["attribution"]["enum"]) == {str(a) for a in Attribution}


def first_failure(data: Any) -> Any:
    return next(t for t in data["tensors"] if t["verdict"] == "FAIL")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(exit_code=0), "exit_code is 0, what the file holds gives 2"),
        (lambda d: d.update(verdict="PASS"), "verdict is PASS, what the file holds gives FAIL"),
        (lambda d: first_failure(d).update(verdict="PASS"), r"tensors\[7\].verdict is PASS, its sides and pairs give FAIL"),
        (
            lambda d: [part.update(verdict="PASS") for part in (*first_failure(d)["sides"], *first_failure(d)["pairs"])],
            r"tensors\[7\].sides\[0\].verdict is PASS, and a gate of it is broken",
        ),
        (
            lambda d: first_failure(d)["sides"][0]["gates"][0].update(passed=True),
            r"tensors\[7\].sides\[0\].gates\[0\].passed is True, its value and limit give False",
        ),
        (
            lambda d: first_failure(d)["sides"][0]["gates"][0].update(value=None),
            r"tensors\[7\].sides\[0\].gates\[0\].passed is False, its value and limit give None",
        ),
        (lambda d: d.update(tensors=[]), "verdict is FAIL, what the file holds gives INCONCLUSIVE"),
    ],
    ids=["exit code", "verdict", "tensor", "side", "gate", "gate without value", "tensors removed"],
)
def test_an_edited_verdict_is_refused_by_its_place(
    edit: Any, message: str, broken: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken(edit)
    with pytest.raises(FileError, match=f"^{re.escape(str(path))}: {message}; the file was changed by hand or is damaged: write it again"):
        load_results(path)
    assert run(["report", str(path), "--to", "none"]) == 2
    assert capsys.readouterr().out == ""


def test_without_a_reference_a_tensor_has_the_verdict_of_its_pairs(tmp_path: Path) -> None:
    base = passing_results().tensors[0]
    sides = tuple(dataclasses.replace(s, verdict=Verdict.INCONCLUSIVE, gates=()) for s in base.sides)
    results = results_of((dataclasses.replace(base, sides=sides),))
    write_reports(results, tmp_path, ("json",))
    assert load_results(tmp_path).tensors[0].verdict is Verdict.PASS


def test_a_metric_that_cannot_be_shown_is_one_clear_error_of_the_command(
    broken: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken(lambda d: d["tensors"][0]["sides"][0]["metrics"].update(nan_actual={"a": 1}, mismatch_count=[1], rel_fro={}))
    assert run(["report", str(path), "--to", "csv,md,html,xlsx", "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"{path}: a value in it cannot be shown (" in error
    assert "was it changed by hand? Write it again with accuracy-eval compare" in error
    assert "Traceback" not in error
