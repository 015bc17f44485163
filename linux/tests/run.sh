#!/bin/sh
# Runs in a guest: the tests that are named, and says how each ended.
#   run.sh THRESHOLD FAILING UNFLUSHED MM SELFTESTS TEST…
# THRESHOLD: tables that a range needs to be flattened. FAILING: per cent of the blocks that cannot be had.
# UNFLUSHED: which flushes Linux leaves out, as bits of flat_page_tables_skip_flush. MM: the compiled mm.c.
# SELFTESTS: where the kernel's own selftests of its memory management are. A disk /dev/vda becomes swap space.
# TEST is one of mm.c, one of those below, NAME:COMMAND for one of the kernel's, or run=COMMAND for any other.
set -u
threshold=$1 failing=$2 unflushed=$3 mm=$4 selftests=$5
shift 5

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
if [ "$unflushed" -gt 0 ]; then
    echo "$unflushed" >/sys/kernel/debug/x86/flat_page_tables_skip_flush || exit
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

# What the kernel's selftests expect: a directory `huge` with large pages, and enough of them.
selftest() {
    if ! [ -d /tmp/selftests/huge ]; then
        mkdir -p /tmp/selftests/huge && mount -t hugetlbfs none /tmp/selftests/huge || return
        echo 268435456 >/proc/sys/kernel/shmmax
        echo 4194304 >/proc/sys/kernel/shmall
    fi
    echo 160 >/proc/sys/vm/nr_hugepages
    (cd /tmp/selftests && eval "timeout 300 $selftests/$1")
    set -- $?
    rm -f /tmp/selftests/huge/*
    echo 0 >/proc/sys/vm/nr_hugepages
    return "$1"
}

# The reader has its CPU for itself: were another process to run there, its address space would flush everything.
flush() {
    for process in /proc/[0-9]*; do
        taskset --pid 1 "${process#/proc/}" >/dev/null 2>&1
    done
    "$mm" flush
}

for name; do
    case $name in
    flush | pressure | stress) $name >&2 ;;
    run=*)
        # Not a test: its output is the result.
        eval "${name#run=}" || exit
        continue
        ;;
    *:*) selftest "${name#*:}" >&2 ;;
    *) "$mm" "$name" >&2 ;;
    esac
    echo "test ${name%%:*} $?"
done
sed -n 's/^flat_table/counter &/p' /proc/vmstat
