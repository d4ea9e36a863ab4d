policy planted : evict
"The rule that wins on the planted trace: the longest chain goes first, of equal ones the youngest."

# Source: tanren_dsl/trace/planted.py, which makes a trace on which it hits what Belady hits.
order by -chain, age
candidates all
