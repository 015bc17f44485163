"""A heap that grows: words are counted in a dictionary, and lists of them kept."""

import random

draw = random.Random(3)
counts: dict[int, int] = {}
kept: list[list[int]] = []
for step in range(400_000):
    word = draw.randrange(1 + step)
    counts[word] = counts.get(word, 0) + 1
    if step % 4 == 0:
        kept.append([word] * 12)
    if step % 16 == 0:
        kept[draw.randrange(len(kept))].append(step)
print(len(counts), sum(map(len, kept)))
