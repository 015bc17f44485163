/* Locks, and how a property is named. */

/* Read-write locks: mmap_lock, all locks of reverse mappings as one, and all of mappings. */
#define MMAP	0
#define RMAP	1
#define VMA	2
byte readers[3];
bool writer[3];

inline read_lock(which)		{ atomic { !writer[which]; readers[which]++ } }
inline read_unlock(which)	{ readers[which]-- }
inline write_lock(which)	{ atomic { !writer[which] && readers[which] == 0; writer[which] = true } }
inline write_unlock(which)	{ writer[which] = false }
inline downgrade(which)		{ atomic { writer[which] = false; readers[which]++ } }

inline read_trylock(which, got)
{
	atomic {
		got = !writer[which];
		if :: got -> readers[which]++ :: else fi
	}
}

inline write_trylock(which, got)
{
	atomic {
		got = !writer[which] && readers[which] == 0;
		if :: got -> writer[which] = true :: else fi
	}
}

/* Others: mm->context.flat_lock, the glue's lock, each table's lock. */
#define FLAT		0
#define PMD		1
#define PTL(table)	(2 + table)
bool held[10];

inline lock(which)	{ atomic { !held[which]; held[which] = true } }
inline unlock(which)	{ held[which] = false }
inline trylock(which, got)
{
	atomic {
		got = !held[which];
		if :: got -> held[which] = true :: else fi
	}
}

/* A property by its name, which pan prints where it does not hold. */
inline must(name, holds)
{
	atomic {
		if
		:: holds
		:: else -> name = 1; assert(!name)
		fi
	}
}
