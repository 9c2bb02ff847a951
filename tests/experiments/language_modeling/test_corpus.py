"""Corpora from folders: counts, vocabularies, what is said where something is missing."""

from pathlib import Path

import pytest
import torch

from experiments.language_modeling import corpus as corpus_module
from experiments.language_modeling.corpus import EOS, UNK, batchify, load_corpus
from experiments.language_modeling.sections import CorpusConfig

SHARED = Path(__file__).parents[4] / "shared" / "data"
LINES = {"train": " a b <unk> a\n b a\n", "valid": " b b\n", "test": " a q\n"}


def write(folder: Path, pattern: str, lines: dict[str, str]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in lines.items():
        path = folder / pattern.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(folder)


def words(corpus: corpus_module.Corpus, split: str) -> list[str]:
    return [corpus.vocabulary[number] for number in getattr(corpus, split).tolist()]


def test_penn_treebank_has_the_published_numbers_of_tokens():
    if not (SHARED / "ptb").is_dir():
        pytest.skip("Penn Treebank is not at ../shared/data/ptb")
    corpus = load_corpus(CorpusConfig("ptb", str(SHARED / "ptb")))
    assert corpus.tokens() == {"train": 929_589, "valid": 73_760, "test": 82_430}
    assert len(corpus.vocabulary) == 10_000
    counts = corpus.counts()
    assert corpus.vocabulary[0] == "the"
    assert counts[0] == 50_770
    assert counts[corpus.vocabulary.index(EOS)] == 42_068


def test_every_line_ends_in_eos_and_the_frequent_come_first(tmp_path: Path):
    corpus = load_corpus(CorpusConfig("ptb", write(tmp_path, "ptb.{}.txt", LINES)))
    assert corpus.vocabulary == ("a", "b", EOS, UNK)
    assert words(corpus, "train") == ["a", "b", UNK, "a", EOS, "b", "a", EOS]
    assert words(corpus, "valid") == ["b", "b", EOS]
    assert words(corpus, "test") == ["a", UNK, EOS]
    assert corpus.train.dtype == torch.int64
    assert corpus.counts().tolist() == [3, 2, 2, 1]


@pytest.mark.parametrize("pattern", ["wiki.{}.tokens", "{}.txt"])
def test_wikitext_goes_by_both_names_and_keeps_empty_lines(tmp_path: Path, pattern: str):
    lines = {**LINES, "train": " \n = b = \n \n <unk> a \n"}
    corpus = load_corpus(CorpusConfig("wikitext-2", write(tmp_path, pattern, lines)))
    assert words(corpus, "train") == [EOS, "=", "b", "=", EOS, EOS, UNK, "a", EOS]


def test_one_billion_word_reads_its_shards_in_order_and_cuts_the_vocabulary(tmp_path: Path):
    training = "training-monolingual.tokenized.shuffled/news.en-{}-of-00100"
    write(tmp_path, training, {"00002": "c c c\n", "00001": "a a b <S> d\n"})
    held_out = "heldout-monolingual.tokenized.shuffled/news.en.heldout-{}-of-00050"
    write(tmp_path, held_out, {"00000": "c b\n", "00001": "a\n", "00002": "z\n"})
    corpus = load_corpus(CorpusConfig("one-billion-word", str(tmp_path), vocabulary_size=4))
    assert corpus.vocabulary == (EOS, UNK, "c", "a")
    assert words(corpus, "train") == ["a", "a", UNK, UNK, UNK, EOS, "c", "c", "c", EOS]
    assert words(corpus, "valid") == ["a", EOS]
    assert words(corpus, "test") == ["c", UNK, EOS]


def test_text8_is_cut_into_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus_module, "TEXT8_HELD_OUT", 3)
    write(tmp_path, "{}", {"text8": " aaab b aab"})
    corpus = load_corpus(CorpusConfig("text8", str(tmp_path)))
    assert corpus.vocabulary == ("a", " ", "b")
    assert "".join(words(corpus, "train")) == " aaab"
    assert "".join(words(corpus, "valid")) == " b "
    assert "".join(words(corpus, "test")) == "aab"
    write(tmp_path, "{}", {"text8": " aaab b aaz"})
    with pytest.raises(ValueError, match="'z' is not in the training split"):
        load_corpus(CorpusConfig("text8", str(tmp_path)))


def test_the_hub_is_asked_where_there_is_no_folder(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def load_dataset(name: str, part: str | None, split: str, revision: str | None):
        asked.append((name, part, split))
        return {"text": ["", " = a = \n", "<unk> a\n"]}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    corpus = load_corpus(CorpusConfig("wikitext-2"))
    assert asked == [
        ("Salesforce/wikitext", "wikitext-2-v1", split) for split in ("train", "validation", "test")
    ]
    assert words(corpus, "test") == [EOS, "=", "a", "=", EOS, UNK, "a", EOS]


def test_a_hub_that_does_not_answer_names_the_way_out(monkeypatch: pytest.MonkeyPatch):
    def load_dataset(*_: object, **__: object):
        raise ConnectionError("offline")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(OSError, match=r"ptb-text-only.*offline.*--corpus.data_dir"):
        load_corpus(CorpusConfig("ptb"))


def test_batchify_trims_the_remainder():
    assert batchify(torch.arange(11), 3).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
