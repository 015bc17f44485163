// The comparison of all pairs of fragments of a genome, to be recorded and compared with the built-in workload tiger.
//
// Written anew after Sutton et al. (Genome Science and Technology 1, 1995): a table of all words of ten letters leads to a list of
// the places where each occurs; for each fragment the later ones that share its words are counted, and the diagonal on which
// most words lie is voted for. Fragments, table, entries and counters have the sizes of the built-in workload
// (engine/workloads/src/tiger), and the genome is drawn as its own. Candidates are not sorted or aligned: the comparison of
// 512 MiB is some 10 G instructions.
//
// usage: tiger FRAGMENTS SEED [COMPARED]
//
// Recording begins with the comparison, when the table is there, and ends when so many fragments are compared or all are. Prints
// how many entries were visited, and how many candidates it found.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "flatwalk.h"

static const int LENGTH = 500, COVERAGE = 6, ERRORS = 100, WORD = 10, SHARED = 20, KEPT = 16;
static const uint32_t WORDS = 1u << 2 * WORD;
/// Letters of a piece of the genome; one piece in four is a copy with a tenth of its letters drawn anew.
static const size_t PIECE = 1000;

struct Fragment {
    uint8_t *letters;
    int length, contig, offset, next, last, members;
    char rest[16];
};

struct Entry {
    Entry *before;
    int fragment, place;
};

struct Common {
    uint16_t words, votes;
    int diagonal;
};

struct Candidate {
    uint32_t shared;
    int first, second, diagonal;
};

static_assert(sizeof(Fragment) == 48 && sizeof(Entry) == 16 && sizeof(Common) == 8, "sizes of the workload");

static std::vector<Fragment> fragments;
static std::vector<Entry *> table(WORDS);
static std::vector<Entry> entries;
static std::vector<Common> commons;
static std::vector<int> touched;
static std::vector<Candidate> candidates;

static inline uint32_t shift(uint32_t word, uint8_t letter) { return (word << 2 | letter) & (WORDS - 1); }

static void compare(int number) {
    const Fragment &fragment = fragments[number];
    int count = 0;
    uint32_t word = 0;
    for (int place = 0; place < fragment.length; place++) {
        word = shift(word, fragment.letters[place]);
        if (place + 1 < WORD)
            continue;
        for (const Entry *entry = table[word]; entry && entry->fragment > number; entry = entry->before) {
            Common &common = commons[entry->fragment];
            int diagonal = place + 1 - WORD - entry->place;
            if (!common.words++)
                touched[count++] = entry->fragment;
            if (common.votes == 0) {
                common.diagonal = diagonal;
                common.votes = 1;
            } else if (common.diagonal == diagonal) {
                common.votes++;
            } else {
                common.votes--;
            }
        }
    }
    int kept = 0;
    for (int i = 0; i < count; i++) {
        Common &common = commons[touched[i]];
        if (common.words >= SHARED && kept < KEPT) {
            Candidate candidate = {common.words, number, touched[i], common.diagonal};
            candidates.push_back(candidate);
            kept++;
        }
        common.words = common.votes = 0;
    }
}

/// Entries that `compare` visits for a fragment.
static long visited(int number) {
    long count = 0;
    uint32_t word = 0;
    for (int place = 0; place < LENGTH; place++) {
        word = shift(word, fragments[number].letters[place]);
        if (place + 1 >= WORD)
            for (const Entry *entry = table[word]; entry && entry->fragment > number; entry = entry->before)
                count++;
    }
    return count;
}

static std::vector<uint8_t> genome(size_t length, std::mt19937_64 &random) {
    std::vector<uint8_t> text;
    text.reserve(length + PIECE);
    while (text.size() < length) {
        bool copies = text.size() > PIECE && random() % 4 == 0;
        size_t from = copies ? random() % (text.size() - PIECE) : 0;
        for (size_t i = 0; i < PIECE; i++)
            text.push_back(copies && random() % 10 ? text[from + i] : random() % 4);
    }
    return text;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: tiger FRAGMENTS SEED [COMPARED]\n");
        return 2;
    }
    int count = atoi(argv[1]), compared = argc == 4 ? std::min(atoi(argv[3]), count) : count;
    std::mt19937_64 random(strtoul(argv[2], 0, 10));
    {
        std::vector<uint8_t> text = genome((size_t)count * LENGTH / COVERAGE + 2 * LENGTH, random);
        fragments.resize(count);
        for (int i = 0; i < count; i++) {
            Fragment &fragment = fragments[i];
            fragment.letters = new uint8_t[LENGTH];
            fragment.length = LENGTH;
            size_t from = random() % (text.size() - LENGTH);
            for (int place = 0; place < LENGTH; place++)
                fragment.letters[place] = random() % ERRORS ? text[from + place] : random() % 4;
        }
    }
    entries.resize((size_t)count * (LENGTH + 1 - WORD));
    commons.resize(count);
    touched.resize(count);
    candidates.reserve((size_t)count * KEPT);
    Entry *entry = entries.data();
    for (int i = 0; i < count; i++) {
        uint32_t word = 0;
        for (int place = 0; place < LENGTH; place++) {
            word = shift(word, fragments[i].letters[place]);
            if (place + 1 < WORD)
                continue;
            Entry added = {table[word], i, place + 1 - WORD};
            *entry = added;
            table[word] = entry++;
        }
    }
    flatwalk_start();
    for (int i = 0; i < compared; i++)
        compare(i);
    flatwalk_stop();
    long entries_visited = 0;
    for (int i = 0; i < compared; i++)
        entries_visited += visited(i);
    printf("steps=%d visited=%ld candidates=%zu\n", compared, entries_visited, candidates.size());
    return 0;
}
