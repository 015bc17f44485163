/*
 * A flat root whose last user has gone, while CPUs still have it loaded, leave
 * it, come back to it, and go. See README.md.
 */

#include "locks.pml"

#define NONE		0	/* another root */
#define FLAT_ROOT	1
#define NEW_ROOT	2

byte pgd = FLAT_ROOT;		/* mm->pgd */
bool in_use[3];

#define CPUS 2
bool online[CPUS];
byte cr3[CPUS];
bool in_mask[CPUS];		/* mm_cpumask() */
bool irqs_off[CPUS];

/* cpu_hotplug_lock */
#define CPU_HOTPLUG	0

hidden byte freed_root_is_walked;

inline hardware_walks(c) { must(freed_root_is_walked, in_use[cr3[c]]) }

proctype cpu(byte c)
{
	byte root;
end:
	do
	/* Hardware walks through what CR3 holds, speculating. */
	:: atomic { cr3[c] != NONE -> hardware_walks(c) }
	/* switch_mm_irqs_off(), to another: out of the mask first, and then CR3 */
	:: atomic { online[c] && cr3[c] != NONE -> irqs_off[c] = true; in_mask[c] = false };
		atomic { hardware_walks(c); cr3[c] = NONE; irqs_off[c] = false }
	/* efi_leave_mm(), back: the mask first, and then mm->pgd */
	:: atomic { online[c] && cr3[c] == NONE -> irqs_off[c] = true; in_mask[c] = true };
		root = pgd;
		atomic { cr3[c] = root; root = NONE; irqs_off[c] = false }
	/* host_pfn_mapping_level(): lockless, with interrupts off */
	:: atomic { online[c] -> irqs_off[c] = true; root = pgd };
		atomic { must(freed_root_is_walked, in_use[root]); root = NONE; irqs_off[c] = false }
	/* _cpu_down(): take_cpu_down(), idle_task_exit() */
	:: atomic { online[c] && !writer[CPU_HOTPLUG] && readers[CPU_HOTPLUG] == 0 -> writer[CPU_HOTPLUG] = true };
		online[c] = false;
		hardware_walks(c);
		in_mask[c] = false;
		cr3[c] = NONE;
		write_unlock(CPU_HOTPLUG)
	od
}

/* on_each_cpu_mask(leave_root) */
inline leave_root(c)
{
	if
	:: in_mask[c] && online[c] ->
		atomic {
			!irqs_off[c];
			if :: in_mask[c] && online[c] -> in_mask[c] = false; cr3[c] = NONE :: else fi
		}
	:: else
	fi
}

/* on_each_cpu_mask(take_exit_root) */
inline take_root(c)
{
	if
	:: in_mask[c] && online[c] ->
		atomic {
			!irqs_off[c];
			if :: in_mask[c] && online[c] -> cr3[c] = pgd :: else fi
		}
	:: else
	fi
}

/* __flat_exit_root() */
proctype exit_root()
{
	bool got;

#ifdef NO_CPUS_LOCK
	got = true;
#else
	read_trylock(CPU_HOTPLUG, got);
#endif
	if
	:: got ->
		in_use[NEW_ROOT] = true;
#ifndef NO_LEAVE_ROOT
		leave_root(0);
		leave_root(1);
#endif
		pgd = NEW_ROOT;
#ifndef NO_TAKE_ROOT
		take_root(0);
		take_root(1);
#endif
#ifndef NO_SYNC
		/* smp_call_function() */
		!irqs_off[0];
		!irqs_off[1];
#endif
		in_use[FLAT_ROOT] = false;
#ifndef NO_CPUS_LOCK
		read_unlock(CPU_HOTPLUG)
#endif
	:: else
	fi
}

init
{
	atomic {
		in_use[NONE] = true;
		in_use[FLAT_ROOT] = true;
		online[0] = true;
		online[1] = true;
		/* One went idle in it. */
		cr3[0] = FLAT_ROOT;
		in_mask[0] = true;
		run cpu(0);
		run cpu(1);
		run exit_root()
	}
}
