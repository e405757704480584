"""What is refused is said in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ipusim.errors import IpuSimError


@contextmanager
def refused(words: str, error: type[Exception] = IpuSimError) -> Iterator[None]:
    """Expect an error of one sentence with these words."""
    with pytest.raises(error) as caught:
        yield
    text = str(caught.value)
    assert words in text
    assert text.endswith((".", "?")) and "\n" not in text
