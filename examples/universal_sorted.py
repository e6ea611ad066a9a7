"""A control experiment: transformers' universal speculation, before and after one change.

`Plain` is what the library ships; `Sorted` hands it tokenizers whose vocabulary is listed in the
order of the ids, and changes nothing else. See docs/findings/transformers-universal.md.
"""

from conformance.adapters.transformers import TransformersEngine


class Plain(TransformersEngine):
    def __init__(self):
        super().__init__("universal")


class Sorted(Plain):
    def _tokenizer(self, folder):
        tokenizer = super()._tokenizer(folder)
        listed = tokenizer.get_vocab
        tokenizer.get_vocab = lambda: dict(sorted(listed().items(), key=lambda item: item[1]))
        return tokenizer
