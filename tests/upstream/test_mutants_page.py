"""The published page is what the record says."""

from sm120.integration.common.checkout import find_checkout
from sm120.integration.upstream.mutants_page import load_scores, page, page_path


def test_the_page_is_made_of_the_record():
    checkout = find_checkout()
    assert load_scores(checkout), "there is a record"
    published = page_path(checkout).read_text()
    assert published.replace(" (of an earlier text)", "") == page(checkout).replace(" (of an earlier text)", "")
