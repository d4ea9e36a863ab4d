policy slru : evict
"Segmented LRU: blocks used at least twice are protected, each segment is LRU."

# Source: https://github.com/sgl-project/sglang/issues/18843
# Formula: priority = (hits >= 2, last access).
order by 1 if uses >= 2 else 0, last_use
