import gc

import pytest

from rankscope.core.collection import without_collection


@pytest.mark.parametrize("collects", [True, False])
def test_collection_is_off_inside_and_as_before_afterwards_whatever_happens(collects):
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with without_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is collects
        with pytest.raises(LookupError), without_collection():
            raise LookupError
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()
