"""The texts from which a reader is given a sample."""

from __future__ import annotations

from tests.sample import Text, sample, texts

SOURCE = '''"""A module."""

# Two lines
# of one comment.
LIMIT: int = 3
"""A constant."""


class Hub(Base):
    """A class."""

    async def read(self, path: str) -> bytes:
        """A method."""
        return path  # type: ignore

    def write(self):
        self.x = 1  # beside code
        # before code
        self.y = 2
'''


def test_each_docstring_and_comment_is_one_text_with_its_code() -> None:
    assert list(texts(SOURCE, "hub.py")) == [
        Text("hub.py:1", "", "A module."),
        Text("hub.py:6", "LIMIT: int = 3", "A constant."),
        Text("hub.py:9", "class Hub(Base)", "A class."),
        Text("hub.py:12", "def read(self, path: str) -> bytes", "A method."),
        Text("hub.py:4", "LIMIT: int = 3", "Two lines of one comment."),
        Text("hub.py:17", "self.x = 1", "beside code"),
        Text("hub.py:18", "self.y = 2", "before code"),
    ]


def test_a_seed_picks_the_same_texts_again_and_another_seed_picks_others() -> None:
    assert sample(1, 40) == sample(1, 40)
    assert len(set(sample(1, 40))) == 40
    assert sample(1, 40) != sample(2, 40)
