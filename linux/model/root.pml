/*
 * A root that becomes flat, while CPUs use it, leave it, come back to it by
 * its PCID, and come online; and those who write to the root, or keep CPUs
 * from coming. See README.md.
 */

#include "locks.pml"

/* Roots, and what their entry for user space leads to. */
#define NONE		0
#define OLD_ROOT	1
#define OLD_TABLE	2	/* an ordinary table of level 3 */
#define FLAT_ROOT	3	/* the block: its glue, and the tables beside it */
#define PAGES		4

byte pgd = OLD_ROOT;		/* mm->pgd */
byte user_entry[PAGES];		/* of a root */
bool kernel_entry[PAGES];	/* what sync_global_pgds() gives every root */
bool ldt_entry[PAGES];		/* what map_ldt_struct() gives this one */
bool listed[PAGES];		/* the root is in pgd_list */
bool in_use[PAGES];

/* Two CPUs; a third has the task that flattens, and walks nothing that counts. */
#define CPUS 2
bool online[CPUS];
byte cr3[CPUS];			/* NONE: another root */
bool in_mask[CPUS];		/* mm_cpumask() */
byte cached[CPUS];		/* the table of level 3, by PCID */
bool current[CPUS];		/* no flush of this PCID was missed: its tlb_gen */
bool irqs_off[CPUS];
bool stopped[CPUS];		/* the stopper thread has it */
bool stopping;

byte running;
bool synced, ldt_written, returned;

/*
 * Locks: mmap_lock, that of the LDT, those of reverse mappings, those of mappings and cpu_hotplug_lock (which are tried),
 * mm_all_locks_mutex, pgd_lock.
 */
#define CPU_HOTPLUG	0
#define RMAP		1
#define VMA		2
#define MMAP_LOCK	0
#define LDT		1
#define PGD		2
#define ALL_LOCKS	3

hidden byte freed_table_is_walked, freed_root_is_walked, update_is_lost, kernel_entry_is_missing;

/* What hardware does on a CPU, from the root that CR3 holds. */
inline hardware_walks(c)
{
	must(freed_root_is_walked, in_use[cr3[c]]);
	if
	:: user_entry[cr3[c]] != NONE -> cached[c] = user_entry[cr3[c]]
	:: else
	fi
}

/* flush_tlb_mm(): a new tlb_gen, and an interrupt to those in the mask. */
inline flush_cpu(c)
{
	current[c] = false;
	atomic {
		if
		:: in_mask[c] -> cached[c] = NONE; current[c] = true
		:: else
		fi
	}
}

inline flush_tlb_mm() { flush_cpu(0); flush_cpu(1) }

/* load_new_mm_cr3() with need_flush, in flat_take_root() */
inline take_root(c)
{
	atomic {
		if
		:: in_mask[c] ->
#ifndef NO_TAKE_ROOT
			cr3[c] = pgd;
			cached[c] = NONE;
			current[c] = true
#endif
		:: else
		fi
	}
}

proctype cpu(byte c)
{
	byte root;
end:
	do
	:: atomic { cr3[c] != NONE && !stopped[c] -> hardware_walks(c) }
	:: atomic { cr3[c] != NONE && cached[c] != NONE && !stopped[c] ->
		must(freed_table_is_walked, in_use[cached[c]]) }
	/* gup_pgd_range(): lockless, with interrupts off */
	:: atomic { cr3[c] != NONE && !stopped[c] -> irqs_off[c] = true; root = pgd };
		atomic { must(freed_root_is_walked, in_use[root]); root = user_entry[root] };
		atomic {
			must(freed_table_is_walked, root == NONE || in_use[root]);
			root = NONE;
			irqs_off[c] = false
		}
	/* switch_mm_irqs_off(), to another */
	:: atomic { cr3[c] != NONE && !stopped[c] -> cr3[c] = NONE; in_mask[c] = false }
	/* ... and back: the mask first, then tlb_gen, then mm->pgd */
	:: atomic { online[c] && cr3[c] == NONE && !stopped[c] -> irqs_off[c] = true };
		in_mask[c] = true;
		atomic {
			if :: !current[c] -> cached[c] = NONE; current[c] = true :: else fi
		};
		root = pgd;
		atomic { cr3[c] = root; root = NONE; irqs_off[c] = false }
	/* multi_cpu_stop() */
	:: atomic { stopping && online[c] && !stopped[c] -> stopped[c] = true };
		!stopping;
		stopped[c] = false
	/* cpu_up(), bringup_cpu(): not while somebody reads the lock */
	:: atomic {
		!online[c] && readers[CPU_HOTPLUG] == 0 && !writer[CPU_HOTPLUG] -> online[c] = true
	   }
	od
}

/* tlb_remove_table_sync_one() */
inline sync_one() { !irqs_off[0]; !irqs_off[1] }

/* stop_machine_cpuslocked(take_root): the CPUs that were online when it began */
inline stop_machine()
{
	atomic { stops[0] = online[0]; stops[1] = online[1]; stopping = true };
	(!stops[0] || stopped[0]) && (!stops[1] || stopped[1]);
	pgd = FLAT_ROOT;
	if :: stops[0] -> take_root(0) :: else fi;
	if :: stops[1] -> take_root(1) :: else fi;
	atomic { stopping = false; stops[0] = false; stops[1] = false }
}

/* The same without stopping: an interrupt to the CPUs in the mask. */
inline interrupt_cpu(c)
{
	if
	:: in_mask[c] -> atomic { !irqs_off[c] -> take_root(c) }
	:: else
	fi
}

/* promote_root() */
proctype promote_root()
{
	bool stops[CPUS], vmas, locked, got;

#ifdef NO_CPUS_LOCK_LATE
	read_lock(CPU_HOTPLUG);
#endif
	lock(MMAP_LOCK);
	/* lock_vmas(): that it tries for a while is the same as trying later */
#ifdef NO_START_WRITE
	vmas = true;
#elif defined(NO_VMAS_TRYLOCK)
	write_lock(VMA);
	vmas = true;
#else
	write_trylock(VMA, vmas);
#endif
	/* lock_ldt() */
	if
	:: vmas ->
#ifdef NO_LDT_LOCK
		locked = true
#elif defined(NO_LDT_TRYLOCK)
		lock(LDT);
		locked = true
#else
		trylock(LDT, locked)
#endif
	:: else
	fi;
	if
	:: locked ->
		/* mm_take_all_locks() */
		lock(ALL_LOCKS);
#ifdef NO_START_WRITE
		write_lock(VMA);
#endif
		write_lock(RMAP);
#if defined(NO_CPUS_LOCK) || defined(NO_CPUS_LOCK_LATE)
		got = true
#elif defined(NO_CPUS_TRYLOCK)
		read_lock(CPU_HOTPLUG);
		got = true
#else
		read_trylock(CPU_HOTPLUG, got)
#endif
	:: else
	fi;
	if
	:: got ->
		in_use[FLAT_ROOT] = true;
#ifndef NO_CLEAR_ENTRY
		/* set_pgd(old, 0) */
		user_entry[OLD_ROOT] = NONE;
#endif
#ifndef NO_FLUSH_BEFORE
		flush_tlb_mm();
#endif
#ifndef NO_SYNC
		sync_one();
#endif
		/* move_table() */
		in_use[OLD_TABLE] = false;
		user_entry[FLAT_ROOT] = FLAT_ROOT;
		/* flat_pgd_ctor() */
#ifndef NO_PGD_LOCK
		lock(PGD);
#endif
		atomic {
			kernel_entry[FLAT_ROOT] = kernel_entry[pgd];
			ldt_entry[FLAT_ROOT] = ldt_entry[pgd]
		};
		listed[FLAT_ROOT] = true;
#ifndef NO_PGD_LOCK
		unlock(PGD);
#endif
#ifdef NO_STOP_MACHINE
		pgd = FLAT_ROOT;
		interrupt_cpu(0);
		interrupt_cpu(1);
#else
		stop_machine();
#endif
#ifndef NO_FLUSH_AFTER
		flush_tlb_mm();
#endif
#if !defined(NO_CPUS_LOCK) && !defined(NO_CPUS_LOCK_LATE)
		read_unlock(CPU_HOTPLUG)
#endif
	:: else
	fi;
	if
	:: locked ->
		/* mm_drop_all_locks(), unlock_ldt() */
		write_unlock(RMAP);
#ifdef NO_START_WRITE
		write_unlock(VMA);
#endif
		unlock(ALL_LOCKS);
#ifndef NO_LDT_LOCK
		unlock(LDT)
#endif
	:: else
	fi;
	if
	:: got ->
		/* flat_pgd_free() */
		lock(PGD);
		atomic { listed[OLD_ROOT] = false; in_use[OLD_ROOT] = false };
		unlock(PGD)
	:: else
	fi;
#ifndef NO_START_WRITE
	/* With mmap_lock, as vma_end_write_all() does */
	if
	:: vmas -> write_unlock(VMA)
	:: else
	fi;
#endif
	unlock(MMAP_LOCK);
#ifdef NO_CPUS_LOCK_LATE
	read_unlock(CPU_HOTPLUG);
#endif
	returned = true;
	running--
}

/* sync_global_pgds() */
proctype sync_roots()
{
	lock(PGD);
	if :: listed[OLD_ROOT] -> kernel_entry[OLD_ROOT] = true :: else fi;
	if :: listed[FLAT_ROOT] -> kernel_entry[FLAT_ROOT] = true :: else fi;
	synced = true;
	unlock(PGD);
	running--
}

/* write_ldt(): map_ldt_struct() without mmap_lock */
proctype write_ldt()
{
	byte root;

	lock(LDT);
	root = pgd;
	atomic {
		must(freed_root_is_walked, in_use[root]);
		ldt_entry[root] = true;
		ldt_written = true
	};
	unlock(LDT);
	running--
}

/* read_ldt(): copy_to_user() may fault */
proctype read_ldt()
{
	lock(LDT);
	lock(MMAP_LOCK);
	unlock(MMAP_LOCK);
	unlock(LDT);
	running--
}

/* cpus_write_lock() in _cpu_up(), which allocates: reclaim takes rmap locks */
proctype hotplug()
{
	write_lock(CPU_HOTPLUG);
	read_lock(RMAP);
	read_unlock(RMAP);
	write_unlock(CPU_HOTPLUG);
	running--
}

/* A fault on a file that a process serves, which does not answer before a CPU has come */
proctype fault_is_served()
{
	lock(MMAP_LOCK);
	write_lock(CPU_HOTPLUG);
	write_unlock(CPU_HOTPLUG);
	unlock(MMAP_LOCK);
	running--
}

/*
 * The same with the lock of its mapping, and who serves it takes all locks of its own address space first, as
 * mmu_notifier_register() does, and promote_root()
 */
proctype fault_waits_for_all_locks()
{
	read_lock(VMA);
	lock(ALL_LOCKS);
	unlock(ALL_LOCKS);
	read_unlock(VMA);
	running--
}

/* The same, and who serves it is the task that flattens here: it answers when it is back in user space. */
proctype fault_waits_for_this_task()
{
	read_lock(VMA);
	returned;
	read_unlock(VMA);
	running--
}

inline run_cpus()
{
	online[0] = true;
	cr3[0] = OLD_ROOT;
	in_mask[0] = true;
	current[0] = true;
	run cpu(0);
	run cpu(1)
}

init
{
	atomic {
		in_use[OLD_ROOT] = true;
		in_use[OLD_TABLE] = true;
		user_entry[OLD_ROOT] = OLD_TABLE;
		listed[OLD_ROOT] = true;
		running = 2;
		run promote_root();
		/* One more at a time: none of these needs another. */
		if
		:: run sync_roots(); run_cpus()
		:: run write_ldt(); run_cpus()
		/* Without CPUs that always have something to do: these may come to a stop. */
		:: run read_ldt()
		:: run hotplug()
		:: run fault_is_served()
		:: run fault_waits_for_all_locks()
		:: run fault_waits_for_this_task()
		fi
	};
	running == 0;
	must(update_is_lost, !ldt_written || ldt_entry[pgd]);
	must(kernel_entry_is_missing, !synced || kernel_entry[pgd])
}
