/*
 * The daemon's list of address spaces, which keeps none of them alive: one
 * address space, its last tasks, and two rounds of flat_scan(). See README.md.
 */

#include "locks.pml"

/* mm->context.flat_waiting: which list it is in, and whether it points at itself. */
#define WAITING	1
#define ROUND	2
byte list;
bool next_is_self = true;
bool prev_is_self = true;

byte users;	/* mm->mm_users */
bool freed;

hidden byte mm_is_used_after_free, list_is_corrupt;

inline touch() { must(mm_is_used_after_free, !freed) }

/* list_empty(), without the lock */
#define EMPTY (next_is_self)
/* list_empty_careful() */
#ifdef NO_EMPTY_CAREFUL
#define EMPTY_CAREFUL (next_is_self)
#else
#define EMPTY_CAREFUL (next_is_self && prev_is_self)
#endif

/* flat_lists_lock */
#define LIST 0

/* flat_queue() */
inline flat_queue()
{
	bool unlisted;

	atomic { touch(); unlisted = EMPTY };
	if
	:: unlisted ->
		lock(LIST);
#ifndef NO_QUEUE_RECHECK
		atomic { touch(); unlisted = EMPTY };
#endif
		if
		:: unlisted ->
			/* list_add_tail() */
			atomic {
				touch();
				must(list_is_corrupt, list == 0);
				next_is_self = false;
				prev_is_self = false;
				list = WAITING
			}
		:: else
		fi;
		unlock(LIST)
	:: else
	fi;
	unlisted = false
}

/* list_del_init_careful(), or list_del_init(): which pointer is last differs. */
inline unlink()
{
	atomic { touch(); list = 0 };
#ifdef NO_DEL_CAREFUL
	atomic { touch(); next_is_self = true };
	atomic { touch(); prev_is_self = true }
#else
	atomic { touch(); prev_is_self = true };
	atomic { touch(); next_is_self = true }
#endif
}

/* mmput(): the last one brings __mmdrop(), and __flat_exit_mm() */
inline mmput()
{
	bool last;

	atomic { touch(); users--; last = users == 0 };
	if
	:: last ->
#ifndef NO_EXIT_UNLINK
		last = !EMPTY_CAREFUL;
		if
		:: last ->
#ifndef NO_EXIT_LOCK
			lock(LIST);
#endif
			list = 0;
#ifndef NO_EXIT_LOCK
			unlock(LIST)
#endif
		:: else
		fi;
#endif
		/* free_mm() */
		freed = true
	:: else
	fi;
	last = false
}

/* mmget_not_zero() */
inline mmget_not_zero(alive)
{
	atomic {
		touch();
		alive = users > 0;
		if :: alive -> users++ :: else fi
	}
}

/* flat_note(), free_subtable(): a task that uses the address space, and ends */
proctype task()
{
	do
	:: flat_queue()
	:: break
	od;
	mmput()
}

/* flat_scan() */
inline flat_scan()
{
	lock(LIST);
	/* list_splice_init() */
	atomic { if :: list == WAITING -> touch(); list = ROUND :: else fi };
	do
	:: list == ROUND ->
#ifdef NO_GET_BEFORE_UNLINK
		unlink();
		mmget_not_zero(alive);
#else
		mmget_not_zero(alive);
		unlink();
#endif
		if
		:: alive ->
			unlock(LIST);
			/* look_again(): mmap_lock may be taken, or a block missing */
			if
			:: flat_queue()
			:: true
			fi;
			mmput();
			lock(LIST)
		:: else
		fi
	:: list != ROUND -> break
	od;
	unlock(LIST)
}

proctype daemon()
{
	bool alive;

	flat_scan();
	flat_scan()
}

init
{
	atomic {
		users = 2;
		run task();
		run task();
		run daemon()
	};
	_nr_pr == 1;
	/* Who is in the list still is touched by the next round. */
	must(mm_is_used_after_free, list == 0)
}
