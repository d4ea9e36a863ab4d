"""Other block sizes: no reuse is invented, and sizes go back and forth."""

from __future__ import annotations

import numpy as np
import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.reblock import reblocked
from tanren_dsl.trace.table import RequestTable


def shared_tokens(table: RequestTable) -> dict[tuple[int, int], int]:
    """Tokens of full blocks that two requests share at their front."""
    found = {}
    rows = [table.ids[table.offsets[r] : table.offsets[r + 1]] for r in range(len(table))]
    for one in range(len(rows)):
        for other in range(one):
            length = min(len(rows[one]), len(rows[other]))
            same = rows[one][:length] == rows[other][:length]
            count = length if same.all() else int(np.argmin(same))
            full = min(table.prompt_tokens[one], table.prompt_tokens[other]) // table.block_tokens
            found[one, other] = min(count, int(full)) * table.block_tokens
    return found


@pytest.mark.parametrize("block_tokens", [4, 8, 16, 32, 64])
def test_a_table_in_other_blocks_is_valid_and_shares_what_it_did(block_tokens: int) -> None:
    table = generate_chat(5, 60)
    other = reblocked(table, block_tokens)
    other.check()
    assert other.block_tokens == block_tokens
    before, after = shared_tokens(table), shared_tokens(other)
    for pair, tokens in before.items():
        if block_tokens <= table.block_tokens:
            assert after[pair] == tokens
        else:
            assert after[pair] == tokens // block_tokens * block_tokens


@pytest.mark.parametrize("block_tokens", [4, 8])
def test_smaller_blocks_and_back_are_the_same_table(block_tokens: int) -> None:
    table = generate_chat(2, 80)
    again = reblocked(reblocked(table, block_tokens), 16)
    assert again.ids.tolist() == table.ids.tolist()
    assert again.offsets.tolist() == table.offsets.tolist()


@pytest.mark.parametrize("block_tokens", [0, -16, 12, 24])
def test_a_size_that_does_not_divide_is_refused(block_tokens: int) -> None:
    with pytest.raises(TanrenError, match="expected a block size that divides 16 tokens or is a multiple"):
        reblocked(generate_chat(0, 10), block_tokens)
