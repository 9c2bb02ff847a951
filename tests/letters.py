"""A tokenizer of letters, for tiny models."""

from transformers import BertTokenizerFast


def letter_tokenizer() -> BertTokenizerFast:
    """Lower-case letters, digits and a few marks, each a token."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'\""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *letters, *("##" + letter for letter in letters)]
    return BertTokenizerFast(vocab={word: index for index, word in enumerate(vocabulary)})
