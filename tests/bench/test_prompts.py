"""A workload is anybody's file: every line is checked, and a message names the line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conformance.bench import prompts as module
from conformance.bench.models import models_for
from conformance.bench.prompts import Prompts, read_prompts, tokenizer_of
from conformance.contract import Capabilities
from conformance.errors import PlanError


def written(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def no_tokenizer() -> module.Tokenizer:
    raise AssertionError("no line has text")


def test_ids_are_read_and_empty_lines_are_not(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": [1, 2]}', "", "  ", '{"prompt": [31]}', "")
    assert read_prompts(path, 32, 10, no_tokenizer) == ((1, 2), (31,))


def test_text_goes_through_the_models_tokenizer(tmp_path: Path, probe_cache: Path) -> None:
    models = models_for(Capabilities(), None, "mid")
    path = written(tmp_path, '{"text": "w3 w17"}', '{"text": "w1\u2028w2"}')
    read = read_prompts(path, 32, 10, lambda: tokenizer_of(models.pair.target))
    assert read == ((3, 17), (1, 2))  # a line separator inside a string ends no line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1, 2]", "must be an object"),
        ('{"prompt": [1], "text": "a"}', "must be an object"),
        ('{"prompt": [1], "seed": 1}', "must be an object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"prompt": []}', "has no token"),
        ('{"prompt": "12"}', "list of whole numbers"),
        ('{"prompt": [1.0]}', "list of whole numbers"),
        ('{"prompt": [true]}', "list of whole numbers"),
        ('{"prompt": [-1]}', "outside the vocabulary"),
        ('{"prompt": [32]}', "outside the vocabulary"),
        ('{"prompt": [1,1,1,1,1,1]}', "at most 5 fit"),
        ('{"text": 5}', "text must be a string"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path, '{"prompt": [1]}', line)
    with pytest.raises(PlanError, match=said) as caught:
        read_prompts(path, 32, 5, no_tokenizer)
    assert "line 2" in str(caught.value)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, *['{"prompt": [1]}'] * 5)
    monkeypatch.setattr(module, "MOST_PROMPTS", 4)
    with pytest.raises(PlanError, match="line 5: more than 4 prompts"):
        read_prompts(path, 32, 5, no_tokenizer)
    monkeypatch.setattr(module, "LARGEST_FILE", 10)
    with pytest.raises(PlanError, match="give fewer prompts"):
        read_prompts(path, 32, 5, no_tokenizer)
    monkeypatch.setattr(module, "LARGEST_FILE", 10**6)
    monkeypatch.setattr(module, "LONGEST_LINE", 10)
    with pytest.raises(PlanError, match="line 1 has more than 10 characters"):
        read_prompts(path, 32, 5, no_tokenizer)


def test_what_is_no_workload_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="has no prompts"):
        read_prompts(written(tmp_path, ""), 32, 5, no_tokenizer)
    with pytest.raises(PlanError, match="cannot read"):
        read_prompts(tmp_path / "none", 32, 5, no_tokenizer)
    path = tmp_path / "latin"
    path.write_bytes(b'{"text": "\xe9"}')
    with pytest.raises(PlanError, match="not UTF-8"):
        read_prompts(path, 32, 5, no_tokenizer)


def test_a_missing_tokenizer_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match=r"tokenizer\.json"):
        tokenizer_of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PlanError, match="cannot read"):
        tokenizer_of(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(PlanError, match="pip install tokenizers"):
        tokenizer_of(tmp_path)


def test_random_prompts_are_never_asked_twice() -> None:
    prompts = Prompts((), 16, 32, seed=0)
    drawn = [p for number in range(50) for p in prompts.batch(number, 4)]
    assert {len(p) for p in drawn} == {16}
    assert len(set(drawn)) == len(drawn)
    assert prompts.batch(3, 4) == prompts.batch(3, 4)
    short = prompts.alike(drawn[:4], 0)
    assert [len(p) for p in short] == [16] * 4
    assert not set(short) & set(drawn)


def test_a_workload_is_asked_in_turn() -> None:
    prompts = Prompts(((1,), (2,), (3,)), None, 32, seed=0)
    assert prompts.batch(0, 2) == ((1,), (2,))
    assert prompts.batch(1, 2) == ((3,), (1,))
