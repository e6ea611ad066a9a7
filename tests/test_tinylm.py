"""The probes and their numpy forward pass."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from conformance.contract import ModelPair
from conformance.errors import ProbeError
from conformance.probes import CACHE_VARIABLE, MIN_PREFIX_TV, load_probe
from conformance.recipes import RECIPES, Recipe
from conformance.tinylm import TinyLlama

SMALL = Recipe("small", 0.25, seed=7, hidden=32, intermediate=48, context=64)


@pytest.fixture(scope="module")
def mid(probe_cache):
    return load_probe("mid", probe_cache)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return load_probe(SMALL, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def tokens():
    return np.random.default_rng(0).integers(0, 32, (8, 48))


# --- the forward pass -----------------------------------------------------------------------------


def theirs(folder, tokens, layers=None):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    model = library.LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float64).eval()
    if layers is not None:
        model.config.num_hidden_layers = layers
    with torch.inference_mode():
        return model(torch.tensor(tokens)).logits.numpy()


@pytest.mark.parametrize("which", ["target", "draft"])
def test_same_logits_as_transformers(mid, tokens, which):
    ours = getattr(mid, which).logits(tokens)
    # transformers keeps its rotary angles in float32 whatever the model's type is
    assert np.abs(ours - theirs(mid.folder / which, tokens)).max() < 1e-4
    assert ours.std() > 0.5


def test_same_logits_as_transformers_to_the_last_digits(mid, tokens, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    model = library.LlamaForCausalLM.from_pretrained(
        str(mid.folder / "target"), dtype=torch.float64
    ).eval()
    exact = mid.target
    cos, sin = torch.tensor(exact._cos[None, :48]), torch.tensor(exact._sin[None, :48])
    monkeypatch.setattr(model.model.rotary_emb, "forward", lambda *_, **__: (cos, sin))
    for layer in (*model.model.layers, model.model):
        for name, norm in layer.named_children():
            if "norm" in name:
                monkeypatch.setattr(norm, "forward", float64_norm(norm))
    with torch.inference_mode():
        logits = model(torch.tensor(tokens)).logits.numpy()
    assert np.abs(exact.logits(tokens) - logits).max() < 1e-9


def float64_norm(norm):
    """RMS norm as the library writes it, without its detour through float32."""

    def forward(x):
        return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    return forward


def test_early_exit_is_the_truncated_model(mid, tokens):
    ours = mid.target.logits(tokens, layers=1)
    assert np.abs(ours - theirs(mid.folder / "target", tokens, layers=1)).max() < 1e-4
    assert np.abs(ours - mid.target.logits(tokens)).max() > 1


def test_float32_and_float64_differ_by_the_measured_noise(mid):
    assert 1e-6 < mid.float_noise < 1e-3
    assert mid.tolerance > 2 * mid.float_noise
    torch_noise = np.random.default_rng(4).integers(0, 32, (32, 48))
    low = TinyLlama.load(mid.folder / "target", dtype=np.float32).logits(torch_noise)
    assert low.dtype == np.float32
    assert 0 < np.abs(low - mid.target.logits(torch_noise)).max() < mid.tolerance


def test_ragged_advance_equals_teacher_forcing(mid, tokens):
    rng = np.random.default_rng(1)
    whole = mid.target.logits(tokens)
    model, size = mid.target, len(tokens)
    cache = model.new_cache(size, tokens.shape[1])
    at = np.zeros(size, dtype=np.int64)
    seen = np.zeros(tokens.shape, dtype=bool)
    while (at < 44).any():
        rows = np.flatnonzero(at < 44)
        m = int(rng.integers(1, 5))
        fed = tokens[rows[:, None], at[rows, None] + np.arange(m)]
        # rejected proposals were written here first; rolling back is to write again
        model.advance((fed + 1) % 32, cache, at[rows], rows=rows)
        out = model.advance(fed, cache, at[rows], rows=rows)
        where = rows[:, None], at[rows, None] + np.arange(m)
        assert np.abs(out - whole[where]).max() < 1e-10
        seen[where] = True
        at[rows] += rng.integers(1, m + 1, len(rows))  # some go back, each by its own amount
    assert seen[:, :44].all()


def test_a_repeated_cache_is_a_copy(small):
    tokens = np.random.default_rng(2).integers(0, 32, (2, 6))
    cache = small.target.new_cache(2, 8)
    small.target.advance(tokens, cache, np.zeros(2, np.int64))
    copy = cache.repeat(np.array([1, 0, 1]))
    step = np.array([[3], [3], [4]])
    out = small.target.advance(step, copy, np.full(3, 6))[:, 0]
    for row, source in enumerate((1, 0, 1)):
        whole = np.concatenate([tokens[source], step[row]])[None]
        assert np.abs(out[row] - small.target.logits(whole)[0, -1]).max() < 1e-10
    assert not cache.keys[:, :, 6:].any()


# --- the probes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_probe_is_what_its_recipe_says(name, probe_cache):
    probe = load_probe(name, probe_cache)
    assert probe.mean_entropy == pytest.approx(probe.recipe.entropy, rel=0.02)
    if probe.recipe.draft_vocab == "same":
        assert probe.mean_draft_tv == pytest.approx(probe.recipe.draft_tv, rel=0.06, abs=1e-12)
    else:
        assert probe.mean_draft_tv is None
        assert probe.draft.shape.vocab_size > probe.target.shape.vocab_size
    pair = probe.pair
    size = {"worked-example": 2, "small": 6}.get(name, 32)
    context = {"horizon": 1024, "long": 1280}.get(name, 512)
    assert pair == ModelPair(name, probe.folder / "target", probe.folder / "draft", size, context)
    assert probe.target.shape.vocab_size == size


@pytest.mark.parametrize("lag", range(1, 41))
def test_the_law_depends_on_every_earlier_token(mid, lag):
    assert mid.prefix_dependence(lag) > MIN_PREFIX_TV


def test_the_same_seed_makes_the_same_files(small, tmp_path):
    again = load_probe(SMALL, tmp_path)
    assert again.checksums() == small.checksums()
    assert len(again.checksums()) > 8
    other = load_probe(replace(SMALL, seed=8), tmp_path)
    weights = "target/model.safetensors"
    assert other.folder != again.folder
    assert other.checksums()[weights] != again.checksums()[weights]


def make_in_child(cache, queue):
    probe = load_probe(SMALL, cache)
    queue.put(probe.checksums())


def test_two_processes_may_make_one_probe_at_once(small, tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=make_in_child, args=(tmp_path, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert answers[0] == answers[1] == small.checksums()


def test_an_unfinished_probe_is_made_anew(small, tmp_path):
    folder = tmp_path / small.folder.name
    shutil.copytree(small.folder, folder)
    (folder / "probe.json").unlink()  # as if the process had died while writing
    (folder / "target" / "model.safetensors").write_bytes(b"half")
    assert load_probe(SMALL, tmp_path).checksums() == small.checksums()


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ProbeError, match=r"nearby.*twin, near, mid"):
        load_probe("nearby", tmp_path)


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(ProbeError, match=CACHE_VARIABLE):
        load_probe(SMALL, file / "cache")
    monkeypatch.setenv(CACHE_VARIABLE, str(file / "cache"))
    with pytest.raises(ProbeError, match=CACHE_VARIABLE):
        load_probe(SMALL)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_a_probe_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ProbeError, match=CACHE_VARIABLE):
        load_probe(SMALL, tmp_path)


def test_a_recipe_that_forgets_its_prefix_is_refused(tmp_path):
    # tiny weights: attention is nearly uniform and a token far back moves nothing
    with pytest.raises(ProbeError):
        load_probe(replace(SMALL, init=0.001, entropy=3.4), tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "missing", "no config"])
def test_damaged_weights_are_a_probe_error(small, tmp_path, damage):
    folder = tmp_path / "copy"
    shutil.copytree(small.folder / "target", folder)
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "garbage":
        weights.write_bytes(b"\xff" * 4096)
    elif damage == "empty":
        weights.write_bytes(b"")
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / "config.json").write_text("{}")
    with pytest.raises(ProbeError, match="delete the folder"):
        TinyLlama.load(folder)


@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("name", ["mid", "other-vocabulary"])
def test_text_and_ids_map_one_to_one(name, which, probe_cache):
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    probe = load_probe(name, probe_cache)
    tokenizer = library.AutoTokenizer.from_pretrained(str(probe.folder / which))
    size = getattr(probe, which).shape.vocab_size
    assert len(tokenizer) == size
    ids = np.random.default_rng(3).integers(0, size, 200).tolist()
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids


def test_a_probe_that_was_changed_is_refused(tmp_path):
    probe = load_probe("worked-example", tmp_path)
    draft, target = (probe.folder / m / "model.safetensors" for m in ("draft", "target"))
    target.write_bytes(draft.read_bytes())  # what an engine would do that wants q to be the law
    with pytest.raises(ProbeError, match="changed after it was made"):
        load_probe("worked-example", tmp_path)
