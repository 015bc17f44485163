/*
 * Blocks of flat page tables: promotion, demotion and freeing, with everybody
 * who walks or changes tables meanwhile. The comments name the function of
 * the series, or of Linux, that a step stands for. See README.md.
 *
 * One parent entry, one glue of two entries, each with a table of one entry:
 * for L2+L1 an entry of level 3, a table of level 2, two of level 1. The other
 * pairs of levels are the same code, and the same model.
 */

#include "locks.pml"

/* Pages that are or were tables, and what an entry may hold besides. */
#define NONE		0
#define GLUE		1
#define OLD(i)		(2 + i)	/* ordinary tables of the beginning */
#define BLOCK(i)	(4 + i)	/* the block's tables; BLOCK(0) is its head */
#define NEW(i)		(6 + i)	/* ordinary tables that come later */
#define PAGES		8
#define HUGE		8	/* in an entry of the glue: a large page */

/* An entry that maps a page. */
#define PRESENT		1
#define DIRTY		2

/* The parent holds NONE, GLUE, or BLOCK(0), which means FLAT. */
byte parent;
byte glue[2];
byte leaf[PAGES];	/* each table's only entry */
byte refs[PAGES];	/* page_ref_count() */
bool built[PAGES];	/* its constructor has run: it has a lock */
bool sub[PAGES];	/* pt_flat & FLAT_SUB */
byte shares[PAGES];	/* pt_share_count */
bool head_knows;	/* the head's pt_flat leads to the glue */
bool live;		/* the glue's pt_flat & FLAT_LIVE */
bool was_flat;		/* the glue's pt_flat is not 0 */
byte deposit[2];	/* the table that a large page keeps */

/* What is mapped, and what of it reverse mappings know. */
bool vma[2];
bool linked[2];
bool hugetlb;		/* another process may share these tables */

/* The rest of the truth, which nobody in the system sees. */
bool gone[2];		/* the page was unmapped and flushed: it may be freed */
bool written[2];	/* hardware wrote to the page */

/*
 * A CPU that walks for the address of entry `watched`, and what it may have
 * cached of upper entries and of the translation.
 */
byte watched;
byte cached_parent;
byte cached_glue;
byte tlb;		/* PRESENT: for reading; DIRTY: for writing, too */
bool lazy;		/* it runs a kernel thread with this CR3 */

bool irqs_off;		/* GUP-fast is at work */
#ifdef NO_COUNT_FIRST
bool counts;		/* demotion is about to count a table */
#endif
byte running;		/* actors that have not ended */

/* The properties, each by name: what pan says is violated. */
hidden byte freed_table_is_walked, glue_is_unknown, update_is_lost, translation_survives,
	table_has_no_lock, freed_table_is_counted, hardware_does_not_find, table_is_leaked, block_holds_a_large_page;

/*
 * Linux 6.4 and later: a fault holds the lock of its mapping instead of
 * mmap_lock, and whoever holds mmap_lock for writing takes that by
 * vma_start_write() where faults have to wait.
 */
#ifdef VMA_LOCKS
#define FAULT_LOCK VMA
inline vma_start_write() { write_lock(VMA) }
inline vma_end_write() { write_unlock(VMA) }
#else
#define FAULT_LOCK MMAP
inline vma_start_write() { skip }
inline vma_end_write() { skip }
#endif

/*
 * Linux 6.14 and later: MADV_DONTNEED takes tables that became empty, while
 * others fault in the same range. Who has locked a table looks whether it is
 * still there, since Linux 6.5.
 */
#ifdef PT_RECLAIM
#define STAYED(table, i) (glue[i] == table)
#else
#define STAYED(table, i) true
#endif

#define IS_TABLE(entry)	((entry) != NONE && (entry) != HUGE)

/*
 * flush_tlb_mm_range(): lazy CPUs are spared unless tables were freed; they
 * flush before they run a task of this mm again. Nothing is said of
 * interrupts: a hypervisor, or INVLPGB, flushes without one.
 */
inline flush_tlb(freed_tables)
{
	atomic {
#ifdef FLUSH_BY_IPI
		!irqs_off;
#endif
		if
		:: lazy && !(freed_tables)
		:: else ->
			cached_parent = NONE;
			cached_glue = NONE;
			tlb = 0
		fi
	}
}

/* The flushes of parent entries: flush_tlb_mm() always has freed_tables. */
#ifdef NO_FREED_TABLES
#define FREED_TABLES false
#else
#define FREED_TABLES true
#endif

/* tlb_remove_table_sync_one(): an interrupt on every CPU. */
inline sync_one()
{
	!irqs_off
}

/* The processor's walk of a table's entry: for reading, or for writing. */
inline hardware_reads(t)
{
	must(freed_table_is_walked, refs[t] > 0);
	if
	:: !(leaf[t] & PRESENT)
	:: leaf[t] & PRESENT -> tlb = tlb | PRESENT
	:: leaf[t] & PRESENT && !lazy ->
		/* A locked operation, on the table that the walk has found. */
		must(translation_survives, !gone[watched]);
		leaf[t] = leaf[t] | DIRTY;
		tlb = DIRTY;
		written[watched] = true
	fi
}

/*
 * It walks whenever it likes, speculating, from any entry that it has cached;
 * a walk that is under way is what it has cached so far.
 */
proctype cpu()
{
end:
	do
	:: atomic { parent != NONE && cached_parent != parent -> cached_parent = parent }
	:: atomic {
		cached_parent == GLUE -> must(freed_table_is_walked, refs[GLUE] > 0);
		if
		:: IS_TABLE(glue[watched]) -> cached_glue = glue[watched]
		:: else
		fi
	   }
	:: atomic { cached_parent == BLOCK(0) -> hardware_reads(BLOCK(watched)) }
	:: atomic { cached_glue != NONE -> hardware_reads(cached_glue) }
	:: atomic {
		tlb && !lazy -> must(translation_survives, !gone[watched]);
		written[watched] = written[watched] || tlb == DIRTY
	   }
	od
}

/* p4d_pgtable() and its like, on the value of a parent that was read before. */
inline find_glue(value)
{
	atomic {
		if
		:: value == BLOCK(0) -> must(glue_is_unknown, refs[BLOCK(0)] > 0 && head_knows)
		:: else
		fi;
		must(freed_table_is_walked, refs[GLUE] > 0)
	}
}

/* lockless_pages_from_mm(): gup_pgd_range() with interrupts off. */
proctype gup_fast()
{
	byte entry;

	irqs_off = true;
	entry = parent;
	if
	:: entry != NONE ->
		find_glue(entry);
		entry = glue[watched];
		if
		:: IS_TABLE(entry) -> must(freed_table_is_walked, refs[entry] > 0)
		:: else
		fi
	:: else
	fi;
	atomic { irqs_off = false; running-- }
}

/*
 * An allocation that may sleep: direct reclaim waits for reverse mappings, and
 * flat_oom() and shrink_mm() want mmap_lock and flat_lock, but do not wait.
 */
inline alloc_sleeps()
{
	!writer[RMAP];
#ifdef NO_OOM_TRYLOCK_MMAP
	readers[MMAP] == 0 && !writer[MMAP];
#endif
#if defined(NO_OOM_TRYLOCK_FLAT) || defined(NO_SHRINK_TRYLOCK_FLAT)
	!held[FLAT];
#endif
#ifdef NO_SHRINK_TRYLOCK_MMAP
	!writer[MMAP];
#endif
	skip
}

/* can_flatten() of one entry of the glue. */
#define CAN_HOLD(entry) ((entry) == NONE || ((entry) != HUGE && shares[entry] == 0))

inline move_table(i)
{
	byte old = glue[i];

	if
	:: old != NONE ->
		/* copy_page() */
		leaf[BLOCK(i)] = leaf[old];
		atomic { built[old] = false; refs[old]--; sub[BLOCK(i)] = true };
		/* set_entry() */
		glue[i] = BLOCK(i)
	:: else
	fi;
	old = NONE
}

/* flatten_mm(), consider(), promote() */
proctype promote()
{
	bool fits;

#ifdef NO_MMAP_WRITE_LOCK
	read_lock(MMAP);
#else
	write_lock(MMAP);
#endif
#ifndef NO_START_WRITE
	vma_start_write();
#endif
	atomic { fits = parent == GLUE && !was_flat && CAN_HOLD(glue[0]) && CAN_HOLD(glue[1]) };
	if
	:: fits ->
		/*
		 * block_alloc(), and subtable_ctor() of what is in use. A task gets the block before it
		 * waits for the locks of mappings; the daemon, which only tries these, after it has them.
		 * Nobody else knows of the block yet.
		 */
		atomic {
			refs[BLOCK(0)] = 1;
			refs[BLOCK(1)] = 1;
			leaf[BLOCK(0)] = 0;
			leaf[BLOCK(1)] = 0;
			built[BLOCK(0)] = glue[0] != NONE;
			built[BLOCK(1)] = glue[1] != NONE
		};
#ifndef NO_CTOR_BEFORE_LOCKS
		alloc_sleeps();
#endif
#ifndef NO_ALL_RMAP_LOCKS
		/* mm_take_all_locks() */
#ifdef NO_START_WRITE
		vma_start_write();
#endif
		write_lock(RMAP);
#endif
#ifdef NO_CTOR_BEFORE_LOCKS
		alloc_sleeps();
#endif
#ifndef NO_PROMOTE_RECHECK
		fits = CAN_HOLD(glue[0]) && CAN_HOLD(glue[1]);
#endif
		if
		:: fits ->
#ifndef NO_CLEAR_PARENT
			/* set_parent(0) */
			parent = NONE;
#endif
#ifndef NO_FLUSH_PROMOTE
			flush_tlb(FREED_TABLES);
#endif
#ifndef NO_SYNC_PROMOTE
			sync_one();
#endif
			move_table(0);
			move_table(1);
#ifdef NO_WMB_PROMOTE
			/* The store behind the barrier is seen first. */
			parent = BLOCK(0);
#endif
			head_knows = true;
			atomic { live = true; was_flat = true };
			/* smp_wmb(), set_parent() */
			parent = BLOCK(0);
		:: else ->
			/* undo, block_free() */
			atomic {
				built[BLOCK(0)] = false;
				built[BLOCK(1)] = false;
				refs[BLOCK(0)] = 0;
				refs[BLOCK(1)] = 0
			}
		fi;
#ifndef NO_ALL_RMAP_LOCKS
		/* mm_drop_all_locks() */
		write_unlock(RMAP);
#endif
#ifdef NO_START_WRITE
		vma_end_write()
#endif
	:: else
	fi;
#ifndef NO_START_WRITE
	vma_end_write();
#endif
#ifdef NO_MMAP_WRITE_LOCK
	read_unlock(MMAP);
#else
	write_unlock(MMAP);
#endif
	running--
}

/* demote_locked(), one table of the block after split_page() */
inline split_table(i)
{
	atomic {
		if
		:: sub[BLOCK(i)] ->
			sub[BLOCK(i)] = false;
#ifdef NO_COUNT_FIRST
			counts = true
#endif
		:: else -> refs[BLOCK(i)]--
		fi
	}
#ifdef NO_COUNT_FIRST
	/* account_table() */
	atomic { must(freed_table_is_counted, !counts || refs[BLOCK(i)] > 0); counts = false }
#endif
}

/* demote_locked() */
inline demote_locked()
{
	if
	:: live ->
#ifdef NO_LIVE_UNTIL_FLUSH
		live = false;
#endif
		/* set_parent(glue) */
		parent = GLUE;
#ifndef NO_FLUSH_DEMOTE
		flush_tlb(FREED_TABLES);
#endif
#ifndef NO_SYNC_DEMOTE
		sync_one();
#endif
#ifndef NO_HEAD_KEPT
		/* The glue keeps the head: get_page(), or it is not freed. */
		refs[BLOCK(0)]++;
#endif
		split_table(0);
		split_table(1);
		live = false
	:: else
	fi
}

/* create_huge_pmd() for entry 1, for which __flat_takes_huge_pmd() gives way */
proctype large_fault()
{
	read_lock(FAULT_LOCK);
	/* flat_entry(), without a lock */
	if
#ifndef NO_HUGE_GUARD
	:: live ->
#ifndef NO_FLAT_LOCK_DEMOTE
		lock(FLAT);
#endif
		demote_locked();
#ifndef NO_FLAT_LOCK_DEMOTE
		unlock(FLAT)
#endif
#endif
	:: else
	fi;
	/* set_huge_pmd() */
	lock(PMD);
	atomic {
		if
		:: vma[1] && glue[1] == NONE ->
			glue[1] = HUGE;
			must(hardware_does_not_find, parent == GLUE)
		:: else
		fi
	};
	unlock(PMD);
	read_unlock(FAULT_LOCK);
	running--
}

/* flat_oom(), from a task that holds none of these locks */
proctype oom()
{
	bool got;

	write_trylock(MMAP, got);
	if
	:: got ->
		trylock(FLAT, got);
		if
		:: got -> demote_locked(); unlock(FLAT)
		:: else
		fi;
		write_unlock(MMAP)
	:: else
	fi;
	running--
}

/* shrink_mm(), demote_idle(), in somebody's reclaim; ranges with mappings only */
proctype shrink()
{
	bool got;

	read_trylock(MMAP, got);
	if
	:: got ->
		trylock(FLAT, got);
		if
		:: got && (vma[0] || vma[1]) -> demote_locked(); unlock(FLAT)
		:: got && !vma[0] && !vma[1] -> unlock(FLAT)
		:: else
		fi;
		read_unlock(MMAP)
	:: else
	fi;
	running--
}

/* flat_alloc(): has is whether the entry has a table then. */
inline flat_alloc(i, has)
{
#ifndef NO_FLAT_LOCK_ALLOC
	lock(FLAT);
#endif
	if
#ifndef NO_LIVE_RECHECK
	:: !live -> has = false
	:: live && glue[i] != NONE -> has = true
	:: live && glue[i] == NONE ->
#else
	:: glue[i] != NONE -> has = true
	:: glue[i] == NONE ->
#endif
		/* subtable_ctor() */
		alloc_sleeps();
#ifdef NO_WMB_ALLOC
		/* The store behind the barrier is seen first. */
		glue[i] = BLOCK(i);
#endif
		atomic { built[BLOCK(i)] = true; sub[BLOCK(i)] = true };
		/* smp_wmb(), glue_lock() */
#ifndef NO_GLUE_LOCK
		lock(PMD);
#endif
		glue[i] = BLOCK(i);
#ifndef NO_GLUE_LOCK
		unlock(PMD);
#endif
		has = true
	fi;
#ifndef NO_FLAT_LOCK_ALLOC
	unlock(FLAT)
#endif
}

/* __pte_alloc() */
inline pte_alloc(i)
{
	bool has = false;

	/* flat_pte_alloc(): flat_entry(), without a lock */
	if
	:: live -> flat_alloc(i, has)
	:: else
	fi;
	if
	:: !has ->
		/* pte_alloc_one(), pmd_install() */
		alloc_sleeps();
#ifdef PT_RECLAIM
		/* There is one such page here. */
		refs[NEW(i)] == 0 || glue[i] != NONE;
#endif
		lock(PMD);
		atomic {
			if
			:: glue[i] == NONE ->
				refs[NEW(i)] = 1;
				built[NEW(i)] = true;
				leaf[NEW(i)] = 0;
				glue[i] = NEW(i);
			:: else
			fi
		};
		unlock(PMD)
	:: else
	fi;
	has = false
}

/* pte_offset_map_lock(): a table that may go is looked at again later. */
inline lock_table(t)
{
#ifndef PT_RECLAIM
	must(table_has_no_lock, built[t]);
#endif
	lock(PTL(t))
}

/* Where a walk by hardware, from the root on, ends for entry i. */
#define HARDWARE_FINDS(t, i) \
	(parent == BLOCK(0) && t == BLOCK(i) || parent == GLUE && glue[i] == t)

/* handle_mm_fault(), do_anonymous_page() */
proctype fault(byte i)
{
	byte entry;

	read_lock(FAULT_LOCK);
	if
	:: vma[i] ->
		entry = parent;
		find_glue(entry);
		if
		:: glue[i] == NONE -> pte_alloc(i)
		:: else
		fi;
		entry = glue[i];
		if
		:: IS_TABLE(entry) ->
			/* pte_offset_map_lock() */
			lock_table(entry);
			atomic {
				if
				:: STAYED(entry, i) ->
					must(table_has_no_lock, built[entry]);
					must(freed_table_is_walked, refs[entry] > 0);
					if
					:: leaf[entry] == 0 ->
						gone[i] = false;
						written[i] = false;
						leaf[entry] = PRESENT;
					:: else
					fi;
					must(hardware_does_not_find, HARDWARE_FINDS(entry, i))
				:: else
				fi
			};
			unlock(PTL(entry))
		:: else
		fi
	:: else
	fi;
	read_unlock(FAULT_LOCK);
	entry = NONE;
	running--
}

/* The page of an entry that was `old` may be freed: its TLB entries are. */
inline drop_page(old, i)
{
	atomic {
		if
		:: old & PRESENT ->
			must(update_is_lost, !written[i] || (old & DIRTY));
			gone[i] = true;
			written[i] = false
		:: else
		fi;
		old = 0
	}
}

/* try_to_unmap_one(): nothing but a lock of the reverse mapping is held. */
proctype reclaim(byte i)
{
	byte entry, old;

	read_lock(RMAP);
	if
	:: linked[i] ->
		/* page_vma_mapped_walk() */
		entry = parent;
		if
		:: entry != NONE ->
			find_glue(entry);
			entry = glue[i];
			if
			:: IS_TABLE(entry) ->
				lock_table(entry);
				/* ptep_clear_flush(), before the lock is dropped */
				atomic {
					if
					:: STAYED(entry, i) ->
						must(table_has_no_lock, built[entry]);
						must(freed_table_is_walked, refs[entry] > 0);
						old = leaf[entry];
						leaf[entry] = 0
					:: else
					fi
				};
				flush_tlb(false);
				drop_page(old, i);
				unlock(PTL(entry))
			:: else
			fi
		:: else
		fi
	:: else
	fi;
	read_unlock(RMAP);
	entry = NONE;
	running--
}

/* free_subtable(): stays is whether the table is still part of its block. */
inline free_subtable(t, stays)
{
#ifndef NO_FLAT_LOCK_FREE
	lock(FLAT);
#endif
#ifdef NO_SUB_RECHECK
	stays = true;
#else
	stays = sub[t];
#endif
	if
	:: stays ->
		atomic {
			built[t] = false;
			sub[t] = false;
#ifdef NO_GLUE_IN_HEAD
			head_knows = head_knows && t != BLOCK(0)
#endif
		}
	:: else
	fi;
#ifndef NO_FLAT_LOCK_FREE
	unlock(FLAT)
#endif
}

/* free_glue(); an ordinary table of this level goes the way of all tables. */
inline free_glue()
{
	if
	:: was_flat ->
#ifndef NO_FLUSH_FREE
		/* tlb_flush_mmu(), with tlb->freed_tables from pmd_free_tlb() */
		flush_tlb(FREED_TABLES);
#endif
#ifndef NO_SYNC_FREE
		sync_one();
#endif
		atomic {
			if
			:: live -> refs[BLOCK(0)] = 0; refs[BLOCK(1)] = 0
#ifdef NO_HEAD_KEPT
			:: else
#else
			:: else -> refs[BLOCK(0)]--
#endif
			fi;
			live = false;
			was_flat = false;
			head_knows = false;
			refs[GLUE]--
		}
	:: else -> glue_waits = true
	fi
}

/* do_mas_align_munmap(), unmap_region() */
proctype munmap(byte i)
{
	byte entry, old, freed;
	bool last, stays, glue_waits;

	write_lock(MMAP);
	if
	:: vma[i] ->
		vma_start_write();
		atomic { vma[i] = false; last = !vma[1 - i] };
		vma_end_write();
		downgrade(MMAP);
		entry = glue[i];
		if
		:: hugetlb && IS_TABLE(entry) ->
			/* __unmap_hugepage_range() under i_mmap_rwsem */
			write_lock(RMAP);
			linked[i] = false;
			if
			:: shares[entry] > 0 ->
				/* huge_pmd_unshare(), huge_pmd_unshare_flush() */
				glue[i] = NONE;
				sync_one();
				flush_tlb(true);
				atomic {
					shares[entry]--;
					gone[i] = true;
					written[i] = false;
					entry = NONE
				}
			:: else
			fi;
			write_unlock(RMAP)
		:: else
		fi;
		/* unmap_vmas(): zap_pte_range(), and zap_huge_pmd() */
		if
		:: IS_TABLE(entry) ->
			lock_table(entry);
			atomic { old = leaf[entry]; leaf[entry] = 0 };
			unlock(PTL(entry))
		:: entry == HUGE ->
			atomic {
				glue[i] = NONE;
				entry = NONE;
				/* zap_deposited_table(), pte_free() */
				if :: deposit[i] != NONE -> refs[deposit[i]]-- :: else fi;
				deposit[i] = NONE
			}
		:: else
		fi;
		/* free_pgtables(): unlink_anon_vmas(), unlink_file_vma() */
		write_lock(RMAP);
		linked[i] = false;
		write_unlock(RMAP);
		/* free_pte_range(): pmd_clear(), pte_free_tlb() */
		if
		:: entry != NONE ->
			glue[i] = NONE;
			/* __flat_free_table(), without a lock */
			if
			:: sub[entry] -> free_subtable(entry, stays)
			:: else
			fi;
			if
			:: !stays -> atomic { built[entry] = false; freed = entry }
			:: else
			fi
		:: else
		fi;
		/* free_pmd_range(): pud_clear(), pmd_free_tlb() */
		if
		:: last && parent != NONE -> parent = NONE; free_glue()
		:: else
		fi;
		/* tlb_finish_mmu() */
		flush_tlb(freed != NONE || glue_waits);
		drop_page(old, i);
		/* tlb_remove_table(): after a grace period */
		sync_one();
		atomic {
			if :: freed != NONE -> refs[freed]-- :: else fi;
			if :: glue_waits -> refs[GLUE]-- :: else fi;
			freed = NONE;
			entry = NONE;
			glue_waits = false;
			stays = false;
			last = false
		};
		read_unlock(MMAP)
	:: else -> write_unlock(MMAP)
	fi;
	running--
}

#ifdef PT_RECLAIM
/* zap_pte_range() for MADV_DONTNEED, try_to_free_pte() */
proctype dontneed(byte i)
{
	byte entry, old, freed;
	bool took, stays;

	read_lock(MMAP);
	entry = glue[i];
	if
	:: vma[i] && IS_TABLE(entry) ->
		lock_table(entry);
		atomic {
			if
			:: STAYED(entry, i) -> old = leaf[entry]; leaf[entry] = 0
			:: else
			fi
		};
		unlock(PTL(entry));
		lock(PMD);
		lock(PTL(entry));
		atomic {
			took = glue[i] == entry && leaf[entry] == 0;
#ifndef NO_RECLAIM_GUARD
			took = took && !live;
#endif
			if :: took -> glue[i] = NONE :: else fi
		};
		unlock(PTL(entry));
		unlock(PMD);
		/* pte_free_tlb() */
		if
		:: took && sub[entry] -> free_subtable(entry, stays)
		:: else
		fi;
		if
		:: took && !stays -> atomic { built[entry] = false; freed = entry }
		:: else
		fi;
		flush_tlb(freed != NONE);
		drop_page(old, i);
		sync_one();
		atomic {
			if :: freed != NONE -> refs[freed]-- :: else fi;
			freed = NONE;
			took = false;
			stays = false
		}
	:: else
	fi;
	read_unlock(MMAP);
	entry = NONE;
	running--
}
#endif

/* collapse_huge_page() of anonymous memory */
proctype collapse(byte i)
{
	byte entry, old;
	bool fits;

	/* find_pmd_to_collapse(): not in a block, unless the user asked for it */
	read_lock(MMAP);
	atomic { entry = glue[i]; fits = vma[i] && IS_TABLE(entry) && !live && !hugetlb };
	read_unlock(MMAP);
	if
	:: fits ->
		write_lock(MMAP);
		vma_start_write();
		/* hugepage_vma_revalidate(), check_pmd_still_valid(): what it holds may differ */
		entry = glue[i];
		fits = vma[i] && IS_TABLE(entry);
#ifndef NO_COLLAPSE_RECHECK
		fits = fits && !live;
#endif
		if
		:: fits ->
			/* anon_vma_lock_write(), pmdp_collapse_flush() */
			write_lock(RMAP);
			lock(PMD);
			glue[i] = NONE;
			unlock(PMD);
			flush_tlb(true);
			sync_one();
			/* __collapse_huge_page_isolate(), __collapse_huge_page_copy() */
			lock_table(entry);
			atomic { old = leaf[entry]; leaf[entry] = 0 };
			unlock(PTL(entry));
			write_unlock(RMAP);
			atomic {
				if
				:: old & PRESENT -> gone[i] = true; written[i] = false
				:: else
				fi;
				old = 0
			};
			/* pgtable_trans_huge_deposit(), set_pmd_at() */
			lock(PMD);
			atomic { deposit[i] = entry; glue[i] = HUGE };
			must(block_holds_a_large_page, !live);
			unlock(PMD)
		:: else
		fi;
		vma_end_write();
		write_unlock(MMAP)
	:: else
	fi;
	entry = NONE;
	running--
}

/* retract_page_tables() of a file; its small pages are unmapped already. */
proctype retract(byte i)
{
	byte entry;
	bool got;

	/* i_mmap_lock_write() */
	write_lock(RMAP);
	atomic { entry = glue[i]; got = linked[i] && IS_TABLE(entry) && !hugetlb };
	if
	:: got && !live && leaf[entry] == 0 ->
		write_trylock(MMAP, got);
		if :: got -> vma_start_write() :: else fi;
		entry = glue[i];
		if
#ifdef NO_RETRACT_RECHECK
		:: got && vma[i] && IS_TABLE(entry) && leaf[entry] == 0 ->
#else
		:: got && vma[i] && IS_TABLE(entry) && leaf[entry] == 0 && !live ->
#endif
			/* collapse_and_free_pmd() */
			lock(PMD);
			glue[i] = NONE;
			unlock(PMD);
			flush_tlb(true);
			sync_one();
			/* pte_free() */
			atomic { built[entry] = false; refs[entry]--; entry = NONE }
		:: else
		fi;
		if :: got -> vma_end_write(); write_unlock(MMAP) :: else fi
#ifdef NO_DEMOTE_OUTSIDE_RMAP
	:: got && live ->
		lock(FLAT);
		demote_locked();
		unlock(FLAT)
#endif
	:: else
	fi;
	write_unlock(RMAP);
	entry = NONE;
	got = false;
	running--
}

/* shrink_mm() in the reclaim of a task that holds mmap_lock for writing: changes_own_mm() */
inline shrinks_own()
{
	bool own;

	if
	:: true ->
		trylock(FLAT, own);
		if :: own -> demote_locked(); unlock(FLAT) :: else fi
	:: true
	fi;
	own = false
}

/* move_page_tables(), from address 0 to address 1, which has no table yet */
proctype mremap()
{
	byte entry, old;

	write_lock(MMAP);
	vma_start_write();
	entry = glue[0];
	if
	:: vma[0] && vma[1] && IS_TABLE(entry) && glue[1] == NONE && !hugetlb ->
		if
#ifdef NO_MREMAP_GUARD
		:: !sub[entry] || sub[entry] ->
#else
		:: !live && !sub[entry] ->
#endif
			/* move_normal_pmd() */
			write_lock(RMAP);
			lock(PMD);
			glue[0] = NONE;
			atomic { glue[1] = entry; gone[1] = gone[0] };
			flush_tlb(true);
			unlock(PMD);
			write_unlock(RMAP)
		:: true ->
			/* move_ptes() */
			shrinks_own();
			pte_alloc(1);
			write_lock(RMAP);
			atomic { old = leaf[entry]; leaf[entry] = 0 };
			entry = glue[1];
			atomic { leaf[entry] = old; gone[1] = gone[0] };
			flush_tlb(true);
			write_unlock(RMAP)
		fi;
		atomic {
			written[1] = written[1] || written[0];
			gone[0] = true;
			written[0] = false;
			old = 0
		}
	:: else
	fi;
	vma_end_write();
	write_unlock(MMAP);
	entry = NONE;
	running--
}

/* huge_pmd_share() by another process, which then walks the table as its own */
proctype share(byte i)
{
	byte entry;

	/* i_mmap_lock_read() */
	read_lock(RMAP);
	if
	:: linked[i] && parent != NONE ->
		entry = glue[i];
		if
#ifdef NO_SHARE_CHECK
		:: IS_TABLE(entry) -> shares[entry]++
#else
		:: IS_TABLE(entry) && !sub[entry] -> shares[entry]++
#endif
		:: else -> entry = NONE
		fi
	:: else
	fi;
	read_unlock(RMAP);
	if
	:: entry != NONE ->
		must(freed_table_is_walked, refs[entry] > 0);
		/* huge_pmd_unshare(), or it is the last, and frees the table */
		write_lock(RMAP);
		atomic {
			must(freed_table_is_walked, refs[entry] > 0);
			if
			:: shares[entry] > 0 -> shares[entry]--
			:: else -> refs[entry]--; built[entry] = false
			fi
		};
		write_unlock(RMAP)
	:: else
	fi;
	entry = NONE;
	running--
}

#ifdef PT_RECLAIM
#define ACTORS 15
#else
#define ACTORS 14
#endif

inline start(which)
{
	if
	:: which == 0 -> run shrink()
	:: which == 1 -> run promote()
	:: which == 2 -> run large_fault()
	:: which == 3 -> run oom()
	:: which == 4 -> run fault(0)
	:: which == 5 -> run fault(1)
	:: which == 6 -> run reclaim(0)
	:: which == 7 -> run reclaim(1)
	:: which == 8 -> run munmap(0)
	:: which == 9 -> run munmap(1)
	:: which == 10 -> run collapse(0)
	:: which == 11 -> run retract(1)
	:: which == 12 -> run mremap()
	:: which == 13 -> hugetlb = true; run share(0)
#ifdef PT_RECLAIM
	:: which == 14 -> run dontneed(1)
#endif
	fi
}

/* exit_mmap(), when all have ended: what is left is unmapped. */
inline finish(i)
{
	running = 1;
	run munmap(i);
	running == 0
}

/*
 * Any range, flat or not, with a table in use or two; any two actors, or
 * three; and somebody who only reads. No two of these need each other to find
 * something: a CPU that runs the process, one that is lazy, GUP-fast.
 */
init
{
	byte a, b, c;

	atomic {
		select(a : 0 .. ACTORS - 1);
		select(b : a .. ACTORS - 1);
		running = 2;
#if TOGETHER == 3
		select(c : b .. ACTORS - 1);
		running = 3;
#endif
		vma[0] = true;
		vma[1] = true;
		linked[0] = true;
		linked[1] = true;
		gone[0] = true;
		gone[1] = true;
		refs[GLUE] = 1;
		if
		:: parent = GLUE;
			glue[0] = OLD(0);
			refs[OLD(0)] = 1;
			if
			:: glue[1] = OLD(1); refs[OLD(1)] = 1
			:: true
			fi
		:: parent = BLOCK(0);
			refs[BLOCK(0)] = 1;
			refs[BLOCK(1)] = 1;
			live = true;
			was_flat = true;
			head_knows = true;
			if
			:: glue[0] = BLOCK(0)
			:: glue[1] = BLOCK(1)
			:: glue[0] = BLOCK(0); glue[1] = BLOCK(1)
			fi;
			sub[glue[0]] = true;
			sub[glue[1]] = true;
			sub[NONE] = false
		fi;
		built[glue[0]] = true;
		built[glue[1]] = true;
		built[NONE] = false;
		if :: glue[0] != NONE -> leaf[glue[0]] = PRESENT; gone[0] = false :: else fi;
		if :: watched = 0 :: watched = 1 fi;
		if
		:: run cpu()
		:: lazy = true; run cpu()
		:: running++; run gup_fast()
		fi;
		start(a);
		start(b);
#if TOGETHER == 3
		start(c);
#endif
		a = 0;
		b = 0;
		c = 0
	};
	running == 0;
	finish(0);
	finish(1);
	must(table_is_leaked, refs[GLUE] == 0 && refs[OLD(0)] == 0 && refs[OLD(1)] == 0 &&
	     refs[BLOCK(0)] == 0 && refs[BLOCK(1)] == 0 && refs[NEW(0)] == 0 && refs[NEW(1)] == 0)
}
