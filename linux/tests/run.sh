#!/bin/sh
# Runs in a guest: the tests that are named, and says how each ended.
#   run.sh THRESHOLD FAILING MM TEST…
# THRESHOLD: tables that a range needs to be flattened. FAILING: per cent of the blocks that cannot be had.
# MM: the compiled mm.c. A disk /dev/vda becomes swap space.
set -u
threshold=$1 failing=$2 mm=$3
shift 3

sysctl=/proc/sys/vm/flat_page_table_threshold
[ -e $sysctl ] && echo "$threshold" >$sysctl
if [ -e /dev/vda ]; then
    /sbin/mkswap /dev/vda >/dev/null && /sbin/swapon /dev/vda || exit
fi
if [ "$failing" -gt 0 ]; then
    cd /sys/kernel/debug/fail_page_alloc || exit
    # Only what is as large as a block fails; what may sleep fails, too.
    echo 9 >min-order
    echo N >ignore-gfp-wait
    echo 0 >verbose
    echo -1 >times
    echo "$failing" >probability
    cd /
fi

# Two processes that want all memory between them, and swap.
pressure() {
    kilobytes=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
    stress-ng --quiet --vm 2 --vm-bytes $((kilobytes * 11 / 20))k --vm-keep --vm-ops 40000 --verify \
        --timeout 60 --temp-path /tmp
}

stress() {
    stress-ng --quiet --verify --temp-path /tmp --timeout 8 \
        --mmap 1 --mmap-bytes 96m --vm 1 --vm-bytes 96m --mremap 1 --mremap-bytes 16m --fork 1 --vforkmany 1 --brk 1
}

for name; do
    case $name in
    pressure | stress) $name >&2 ;;
    *) "$mm" "$name" >&2 ;;
    esac
    echo "test $name $?"
done
sed -n 's/^flat_table/counter &/p' /proc/vmstat
