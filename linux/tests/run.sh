#!/bin/sh
# Runs the named tests in a guest, and prints how each ended.
#   run.sh [-t SECONDS] THRESHOLD FAILING UNFLUSHED MM SELFTESTS TEST…
# SECONDS: how long a test may take. THRESHOLD: tables that a range needs to be flattened. FAILING: per cent of the block
# allocations that fail. UNFLUSHED: which flushes Linux leaves out, as bits of flat_page_tables_skip_flush. MM: the compiled mm.c.
# SELFTESTS: where the kernel's own selftests are. A disk /dev/vda becomes swap space. TEST is one of
# mm.c, one of those below, NAME:COMMAND for one of the kernel's, or run=COMMAND for any other.
# Prints, each on a line of its own and the times in seconds since boot,
#   @begin TEST TIME, then the test's output, then @test TEST STATUS TIME, and at the end: counter NAME VALUE
set -u
limit=0
if [ "$1" = -t ]; then
    limit=$2
    shift 2
fi
threshold=$1 failing=$2 unflushed=$3 mm=$4 selftests=$5
shift 5

sysctl=/proc/sys/vm/flat_page_table_threshold
[ -e $sysctl ] && echo "$threshold" >$sysctl
# Tests touch a few pages here and there, and their ranges are to become flat all the same.
percent=/proc/sys/vm/flat_page_table_percent
[ -e $percent ] && echo 1000000 >$percent
if [ -e /dev/vda ]; then
    /sbin/mkswap /dev/vda >/dev/null && /sbin/swapon /dev/vda || exit
fi
injection=/sys/kernel/debug/fail_page_alloc
if [ "$failing" -gt 0 ] || [ -e $injection ]; then
    # Only allocations as large as a block fail, including those that may sleep.
    echo 9 >$injection/min-order || exit
    echo N >$injection/ignore-gfp-wait
    echo 0 >$injection/verbose
    echo -1 >$injection/times
    echo "$failing" >$injection/probability
fi
if [ "$unflushed" -gt 0 ]; then
    echo "$unflushed" >/sys/kernel/debug/x86/flat_page_tables_skip_flush || exit
fi
# A kernel that hangs should report it and stop.
echo 1 >/proc/sys/kernel/panic_on_rcu_stall
# The OOM killer should spare this script.
echo -500 >/proc/self/oom_score_adj

uptime() {
    read -r now _ </proc/uptime
}

# What hangs in the kernel does not end when it is killed. Then the host, which sees no @test, stops the guest.
limited() {
    timeout -k 10 "$limit" "$@"
}

# Sets the number of hugetlb's large pages. They are as large as a block, but their allocation should not fail.
large_pages() {
    [ "$failing" -gt 0 ] && echo 0 >$injection/probability
    if [ "$1" -gt 0 ]; then
        echo 3 >/proc/sys/vm/drop_caches
        echo 1 >/proc/sys/vm/compact_memory
    fi
    echo "$1" >/proc/sys/vm/nr_hugepages
    [ "$failing" -gt 0 ] && echo "$failing" >$injection/probability
}

hugetlb() {
    large_pages 48
    limited "$mm" hugetlb
    set -- $?
    large_pages 0
    return "$1"
}

# Writes to a file of the kernel's, where it has one.
knob() {
    [ ! -e "$1" ] || echo "$2" >"$1"
}

# The test gets each block that it asks for, and may decide itself what fails, how soon the kernel's daemon comes, and so on.
tuned() {
    knob $injection/probability 0
    read -r overcommit </proc/sys/vm/overcommit_memory
    limited "$mm" "$1"
    set -- $?
    knob /proc/sys/vm/overcommit_memory "$overcommit"
    knob $injection/probability "$failing"
    knob $sysctl "$threshold"
    knob $percent 1000000
    knob /proc/sys/vm/flat_page_table_scan_millisecs 10000
    knob /proc/sys/vm/nr_hugepages 0
    knob /sys/kernel/debug/x86/flat_page_tables_delay 0
    knob /sys/kernel/mm/transparent_hugepage/enabled madvise
    knob /sys/kernel/mm/transparent_hugepage/shmem_enabled never
    return "$1"
}

# Two processes that together need all memory, and swap.
pressure() {
    kilobytes=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
    limited stress-ng --vm 2 --vm-bytes $((kilobytes * 11 / 20))k --vm-keep --vm-ops 40000 --verify \
        --timeout 20 --temp-path /tmp
}

# Several stressors at once.
stress() {
    limited stress-ng --verify --temp-path /tmp --timeout 8 \
        --mmap 1 --mmap-bytes 96m --vm 1 --vm-bytes 96m --mremap 1 --mremap-bytes 16m --fork 1 --vforkmany 1 --brk 1
}

# What the kernel's selftests expect: a directory `huge` with large pages, and enough of them.
selftest() {
    if ! [ -d /tmp/selftests/huge ]; then
        mkdir -p /tmp/selftests/huge && mount -t hugetlbfs none /tmp/selftests/huge || return 126
        echo 268435456 >/proc/sys/kernel/shmmax
        echo 4194304 >/proc/sys/kernel/shmall
        # Some map more memory than the machine has.
        echo 1 >/proc/sys/vm/overcommit_memory
    fi
    # One of them needs two thirds of memory for large pages of its own.
    case $1 in
    khugepaged) large_pages 0 ;;
    # Two threads are to want the same page.
    hugetlb_fault_after_madv | hugetlb_madv_vs_map) large_pages 1 ;;
    *) large_pages 160 ;;
    esac
    # One has a page in each of 131,072 GiB. Elsewhere a range may have a block however little it maps; not here.
    [ "$1" = virtual_address_range ] && knob $percent 10
    # One is about locking memory without the right to lock any amount.
    without=
    [ "$1" = on-fault-limit ] && without='setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock'
    # One reads the file that it is, by the path that it was called by.
    (cd /tmp/selftests && eval "limited $without \"\$selftests/mm/\"$1")
    set -- $?
    knob $percent 1000000
    rm -f /tmp/selftests/huge/*
    large_pages 0
    return "$1"
}

# One that needs nothing, in its own directory.
plain_selftest() {
    (cd "$selftests/${1%/*}" && limited "./${1##*/}")
}

kvm=/sys/kernel/debug/kvm

# KVM counts the blocks of guests that there are; keeps in /tmp/blocks the most that a test had of each count.
watch_blocks() {
    while :; do
        for name in alloc refused demote; do
            read -r value <$kvm/flat_table_$name
            read -r most 2>/dev/null </tmp/blocks/$name || most=0
            [ "$value" -le "$most" ] || echo "$value" >/tmp/blocks/$name
        done
        sleep 0.1
    done
}

# One of the kernel's selftests of KVM. Adds what it had of each count of blocks to those before.
kvm_selftest() {
    mkdir -p /tmp/blocks
    watch_blocks &
    watcher=$!
    case $1 in *anonymous_hugetlb) large_pages 64 ;; esac
    # It loads itself into its guests, from where its name says that it is.
    (cd "$selftests/kvm" && eval "limited ./$1")
    set -- $?
    large_pages 0
    kill $watcher
    wait $watcher
    for name in alloc refused demote; do
        read -r most 2>/dev/null </tmp/blocks/$name || most=0
        eval "sum_$name=\$((\${sum_$name:-0} + most))"
        rm -f /tmp/blocks/$name
    done
    return "$1"
}

# The watched thread has its CPU to itself: switches to other processes might flush everything there.
flush() {
    for process in /proc/[0-9]*; do
        taskset --pid 1 "${process#/proc/}" >/dev/null 2>&1
    done
    limited "$mm" "$1"
}

for name; do
    test=${name%%:*}
    case $name in run=*)
        # Not a test: its output is the result.
        eval "${name#run=}" || exit
        continue
        ;;
    esac
    uptime
    # Some tests do not end their last line, or leave children that print more.
    printf '\n@begin %s %s\n' "$test" "$now"
    # Marks the kernel's log: what follows is about this test.
    echo "flatwalk: test $test" >/dev/kmsg
    case $name in
    flush*) flush "$name" ;;
    hugetlb | pressure | stress) $name ;;
    later | large | fits | cgroup | merge | counted | cap | exits | idle | poisoned | halfway | asked | policy | passes | limit | \
        unshare | leader | found | waiters)
        tuned "$name"
        ;;
    stressor-*) limited stress-ng --verify --temp-path /tmp --timeout 2 --"${name#stressor-}" 2 ;;
    kvm-*:*) kvm_selftest "${name#*:}" ;;
    */*:*) plain_selftest "${name#*:}" ;;
    *:*) selftest "${name#*:}" ;;
    *) limited "$mm" "$name" ;;
    esac 2>&1
    status=$?
    uptime
    printf '\n@test %s %s %s\n' "$test" "$status" "$now"
done
echo
if [ -d $kvm ]; then
    # As the kernel's own counters of the same are called.
    printf 'counter %s %s\n' flat_table_alloc "${sum_alloc:-0}" flat_table_alloc_failed "${sum_refused:-0}" \
        flat_table_demote "${sum_demote:-0}"
else
    sed -n 's/^flat_table/counter &/p' /proc/vmstat
fi
