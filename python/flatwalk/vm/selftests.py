"""Linux's own tests: which are built, and how each is called in a guest."""

from __future__ import annotations

#: Those of memory management that need large pages, files in memory, or arguments: names and calls.
_MM = {
    "map_fixed_noreplace": "map_fixed_noreplace",
    "map_populate": "map_populate",
    "map_hugetlb": "map_hugetlb",
    "hugepage-mmap": "hugepage-mmap",
    "hugepage-shm": "hugepage-shm",
    "hugepage-mremap": "hugepage-mremap",
    "hugetlb-madvise": "hugetlb-madvise",
    "hugetlb-fault-after-madvise": "hugetlb_fault_after_madv",
    "hugetlb-madvise-against-map": "hugetlb_madv_vs_map",
    "hugetlb-direct-io": "hugetlb_dio",
    "gup-fast": "gup_test -u",
    "pin-fast": "gup_test -a",
    "pin-dump": "gup_test -ct -F 0x1 0 19 0x1000",
    "gup-longterm": "gup_longterm",
    "copy-on-write": "cow",
    "userfaultfd-anon": "uffd-stress anon 20 4",
    "userfaultfd-hugetlb": "uffd-stress hugetlb 32 4",
    "userfaultfd-hugetlb-private": "uffd-stress hugetlb-private 32 4",
    "userfaultfd-shmem": "uffd-stress shmem 20 4",
    "userfaultfd-shmem-private": "uffd-stress shmem-private 20 4",
    "userfaultfd-units": "uffd-unit-tests",
    "compaction": "compaction_test",
    "madv_populate": "madv_populate",
    "mlock2": "mlock2-tests",
    "mlock-random": "mlock-random-test",
    "on-fault-limit": "on-fault-limit",
    "mrelease": "mrelease_test",
    "mremap-move": "mremap_test",
    "mremap-dontunmap": "mremap_dontunmap",
    "thuge-gen": "thuge-gen",
    "khugepaged": "khugepaged",
    "split-huge-page": "split_huge_page_test",
    "transhuge-stress": "transhuge-stress -d 20",
    "soft-dirty": "soft-dirty",
    "pagemap-ioctl": "pagemap_ioctl",
    "mkdirty": "mkdirty",
    "ksm-functional": "ksm_functional_tests",
    "memfd-secret": "memfd_secret",
    "droppable": "droppable",
    "memory-deny-write-execute": "mdwe_test",
    "mseal": "mseal_test",
    "mseal-elf": "seal_elf",
    "virtual-address-range": "virtual_address_range",
    "va-high-addr-switch": "va_high_addr_switch",
    "protection-keys": "protection_keys_64",
    "protection-keys-signals": "pkey_sighandler_tests_64",
}
#: By directory of tools/testing/selftests: programs that need nothing else, and whose tests have their names.
_PLAIN = {
    "x86": (
        *("check_initial_reg_state_64", "corrupt_xstate_header_64", "fsgsbase_64", "fsgsbase_restore_64"),
        *("nx_stack_64", "sigaltstack_64", "sigreturn_64", "sigtrap_loop_64", "single_step_syscall_64"),
        *("syscall_arg_fault_64", "syscall_nt_64", "syscall_numbering_64", "sysret_rip_64"),
        *("test_mremap_vdso_64", "test_vsyscall_64"),
    ),
    "proc": (
        *("fd-001-lookup", "fd-002-posix-eq", "fd-003-kthread", "proc-2-is-kthread", "proc-empty-vm"),
        *("proc-fsconfig-hidepid", "proc-multiple-procfs", "proc-pid-vm", "proc-self-isnt-kthread"),
        *("proc-self-map-files-001", "proc-self-map-files-002", "proc-self-syscall", "proc-self-wchan"),
        *("proc-subset-pid", "proc-tid0", "read", "self", "thread-self"),
    ),
    "exec": (
        *("load_address.0x1000", "load_address.0x200000", "load_address.0x1000000"),
        *("load_address.static.0x1000", "load_address.static.0x200000", "load_address.static.0x1000000"),
        *("null-argv", "recursion-depth"),
    ),
    "clone3": ("clone3_clear_sighand",),
    "core": ("close_range_test", "unshare_test"),
    "futex/functional": (
        *("futex_requeue", "futex_requeue_pi", "futex_requeue_pi_mismatched_ops"),
        *("futex_requeue_pi_signal_restart", "futex_wait", "futex_wait_private_mapped_file"),
        *("futex_wait_timeout", "futex_wait_uninitialized_heap", "futex_wait_wouldblock", "futex_waitv"),
    ),
    "membarrier": ("membarrier_test_multi_thread", "membarrier_test_single_thread"),
    "memfd": ("memfd_test",),
    "perf_events": ("mmap", "sigtrap_threads", "watermark_signal"),
    "pidfd": ("pidfd_getfd_test", "pidfd_open_test", "pidfd_poll_test", "pidfd_wait"),
    "ptrace": ("get_set_sud", "get_syscall_info", "peeksiginfo"),
    "sigaltstack": ("sas",),
    "syscall_user_dispatch": ("sud_test",),
    "vDSO": (
        *("vdso_standalone_test_x86", "vdso_test_abi", "vdso_test_chacha", "vdso_test_clock_getres"),
        *("vdso_test_correctness", "vdso_test_getcpu", "vdso_test_gettimeofday"),
    ),
}
#: Those of the kernel itself: names and calls. A call with a directory is made there.
SELFTESTS = _MM | {
    f"{directory}/{program}": f"{directory}/{program}"
    for directory, programs in _PLAIN.items()
    for program in programs
}
#: KVM's own tests of how it maps guests' memory, for guests of several processors that have little.
KVM_SELFTESTS = {
    "kvm-slots": "set_memory_region_test",
    "kvm-demand": "demand_paging_test -b 16M -v 4",
    "kvm-demand-missing": "demand_paging_test -b 16M -v 4 -u MISSING",
    "kvm-demand-minor": "demand_paging_test -b 16M -v 4 -u MINOR -s shmem",
    "kvm-tables": "kvm_page_table_test -b 16M -v 4",
    "kvm-tables-thp": "kvm_page_table_test -b 32M -v 4 -s anonymous_thp",
    "kvm-log": "dirty_log_test -M dirty-log -i 3 -I 10",
    "kvm-log-large": "dirty_log_perf_test -b 16M -v 4 -i 3 -s anonymous_thp",
    "kvm-log-split": "x86_64/dirty_log_page_splitting_test -b 16M -s anonymous_hugetlb",
    "kvm-access": "access_tracking_perf_test -b 16M -v 4",
    "kvm-move-slots": "memslot_modification_stress_test -b 8M -v 4 -i 50",
    # Without the part in which the host waits two seconds at most for a virtual CPU.
    "kvm-many-slots": "memslot_perf_test -s 64 -l 1 -f 2 -e 4",
    "kvm-pre-fault": "pre_fault_memory_test",
}


def _called(calls: dict[str, str]) -> tuple[str, ...]:
    """The programs of calls: their first words."""
    return tuple(dict.fromkeys(call.split()[0] for call in calls.values()))


#: By directory of tools/testing/selftests: the programs that are built.
PROGRAMS = {"mm": _called(_MM), **_PLAIN, "kvm": _called(KVM_SELFTESTS)}
