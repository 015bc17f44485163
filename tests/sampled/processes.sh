#!/bin/sh
# Many small processes, one of which does most of the work.
for i in 1 2 3 4 5 6 7 8 9 10; do
    seq 1 2000 | sort -R --random-source=/bin/sh | tail -1
done
seq 1 400000 | sort -k1.2 | md5sum
