//! The ways of a set: finding a tag among them, and the one to replace.
//!
//! Several ways are looked at together: where among them a search ends, a processor cannot predict.
//! Its vector units compare them: whole words, or bytes of tags.

use crate::memory::simulator_prefetch::prefetch;

/// Ways that are compared together, as many as a vector register holds.
const TOGETHER: usize = 4;
/// Ways whose words are a line of the simulator's machine, as most caches' are. They are looked at without
/// a branch.
const EIGHT: usize = 8;

/// The way whose word is `wanted` where `mask` has ones. No two are.
#[inline]
pub fn find_masked(words: &[u64], mask: u64, wanted: u64) -> Option<usize> {
    if let Ok(words) = <&[u64; EIGHT]>::try_from(words) {
        let equal = vectors::equal(words, mask, wanted);
        return (equal != 0).then(|| equal.trailing_zeros() as usize);
    }
    let (fours, rest) = words.as_chunks::<TOGETHER>();
    for (number, four) in fours.iter().enumerate() {
        let mut equal = 0;
        for (way, word) in four.iter().enumerate() {
            equal |= u32::from(word & mask == wanted) << way;
        }
        if equal != 0 {
            return Some(number * TOGETHER + equal.trailing_zeros() as usize);
        }
    }
    let way = rest.iter().position(|word| word & mask == wanted)?;
    Some(fours.len() * TOGETHER + way)
}

/// Puts `word` in front. The words before `at` go one place back, the last of them over what is there.
#[inline]
pub fn put_in_front(words: &mut [u64], at: usize, word: u64) {
    if let Ok(words) = <&mut [u64; EIGHT]>::try_from(&mut *words) {
        vectors::put_in_front(words, at, word);
        return;
    }
    words.copy_within(0..at, 1);
    words[0] = word;
}

/// The same with the last place's word, which is returned.
#[inline]
pub fn push_in_front(words: &mut [u64], word: u64) -> u64 {
    if let Ok(words) = <&mut [u64; EIGHT]>::try_from(&mut *words) {
        // Moved in registers, which `copy_within` would call a function for.
        let [first, second, third, fourth, fifth, sixth, seventh, last] = *words;
        *words = [word, first, second, third, fourth, fifth, sixth, seventh];
        return last;
    }
    let at = words.len() - 1;
    let last = words[at];
    put_in_front(words, at, word);
    last
}

/// Eight ways in two vector registers.
#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
#[expect(unsafe_code, reason = "the compiler alone takes twice as many instructions")]
mod vectors {
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_blendv_epi8, _mm256_castsi256_pd, _mm256_cmpeq_epi64,
        _mm256_cmpgt_epi64, _mm256_loadu_si256, _mm256_movemask_pd, _mm256_permute4x64_epi64,
        _mm256_set1_epi64x, _mm256_setr_epi64x, _mm256_storeu_si256,
    };

    use super::EIGHT;

    /// A bit for each word that is `wanted` where `mask` has ones.
    #[inline]
    pub fn equal(words: &[u64; EIGHT], mask: u64, wanted: u64) -> u32 {
        // SAFETY: the processor has AVX2, or this is not compiled, and all eight words are read.
        unsafe {
            let mask = _mm256_set1_epi64x(mask.cast_signed());
            let wanted = _mm256_set1_epi64x(wanted.cast_signed());
            let bits = |four: *const u64| {
                let word = _mm256_and_si256(_mm256_loadu_si256(four.cast::<__m256i>()), mask);
                _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(word, wanted)))
            };
            let (low, high) = (bits(words.as_ptr()), bits(words.as_ptr().add(4)));
            (low | high << 4).cast_unsigned()
        }
    }

    /// See [`super::put_in_front`].
    #[inline]
    pub fn put_in_front(words: &mut [u64; EIGHT], at: usize, word: u64) {
        // SAFETY: as above; all eight words are read, and all are written.
        unsafe {
            let place = words.as_mut_ptr();
            let low = _mm256_loadu_si256(place.cast_const().cast::<__m256i>());
            let high = _mm256_loadu_si256(place.cast_const().add(4).cast::<__m256i>());
            // What stands one place before.
            let low_before = _mm256_permute4x64_epi64::<0b10_01_00_00>(low);
            let high_before = _mm256_loadu_si256(place.cast_const().add(3).cast::<__m256i>());
            let at = _mm256_set1_epi64x(at as i64);
            let low_stays = _mm256_cmpgt_epi64(_mm256_setr_epi64x(0, 1, 2, 3), at);
            let high_stays = _mm256_cmpgt_epi64(_mm256_setr_epi64x(4, 5, 6, 7), at);
            let low = _mm256_blendv_epi8(low_before, low, low_stays);
            let high = _mm256_blendv_epi8(high_before, high, high_stays);
            _mm256_storeu_si256(place.cast::<__m256i>(), low);
            _mm256_storeu_si256(place.add(4).cast::<__m256i>(), high);
        }
        words[0] = word;
    }
}

/// The same for other processors.
#[cfg(not(all(target_arch = "x86_64", target_feature = "avx2")))]
mod vectors {
    use super::EIGHT;

    #[inline]
    pub fn equal(words: &[u64; EIGHT], mask: u64, wanted: u64) -> u32 {
        let bits = words.iter().enumerate();
        bits.fold(0, |bits, (way, word)| bits | u32::from(word & mask == wanted) << way)
    }

    #[inline]
    pub fn put_in_front(words: &mut [u64; EIGHT], at: usize, word: u64) {
        words.copy_within(0..at, 1);
        words[0] = word;
    }
}

/// Hints that are compared together, as many as a vector register of any x86-64 processor has bytes.
const HINTS: usize = 16;
type Hints = [u8; HINTS];
/// The hint of a way that holds nothing, which no tag has.
const NONE: u8 = u8::MAX;

/// Seven bits of a tag: where they differ, so do the tags.
#[inline]
fn hint(tag: u64) -> u8 {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as u8
}

/// A bit for each of `hints` that is `wanted`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "the compiler alone compares them one after the other")]
fn places(hints: &Hints, wanted: u8) -> u32 {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: every x86-64 processor has SSE2, and sixteen bytes of any value are a vector.
    unsafe {
        let hints = std::mem::transmute::<Hints, __m128i>(*hints);
        let equal = _mm_cmpeq_epi8(hints, _mm_set1_epi8(wanted.cast_signed()));
        _mm_movemask_epi8(equal).cast_unsigned()
    }
}

/// The same for other processors.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn places(hints: &Hints, wanted: u8) -> u32 {
    let places = hints.iter().enumerate();
    places.fold(0, |places, (place, &hint)| places | u32::from(hint == wanted) << place)
}

/// A place in [`Sets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    set: u32,
    place: u32,
}

impl Slot {
    /// The first place of the first set.
    pub const FIRST: Self = Self { set: 0, place: 0 };
}

/// A place's neighbours in the ring of its set, in which places stand in the order of their last uses;
/// the one used last is followed by the one that was not used for longest.
#[derive(Clone, Copy, Debug)]
struct Links {
    older: u32,
    newer: u32,
}

/// Sets of tagged values with least-recently-used replacement: what TLBs and page-walk caches are made
/// of. No tag is 0: that is what places have that hold nothing, and which are filled first.
///
/// Most look-ups of a large structure find nothing, and a byte of each tag shows that, sixteen ways at a
/// time. What was not used for longest is known without a search, however many ways there are.
#[derive(Clone, Debug)]
pub struct Sets<V> {
    ways: usize,
    set_mask: u64,
    /// Hints by set, each of which has so many groups of them.
    hints: Vec<Hints>,
    groups: usize,
    entries: Vec<(u64, V)>,
    links: Vec<Links>,
    /// The place used last, by set.
    newest: Vec<u32>,
}

impl<V: Copy> Sets<V> {
    /// `entries` of them, `ways` to a set, which hold nothing: `none` stands there instead. There may
    /// be no entries; sets are a power of two.
    pub fn new(entries: u32, ways: u32, none: V) -> Self {
        let sets = entries / ways.max(1);
        let groups = (ways as usize).div_ceil(HINTS);
        let links = (0..entries).map(|place| {
            let first = place - place % ways;
            let at = |way: u32| first + way % ways;
            Links { older: at(place - first + ways - 1), newer: at(place - first + 1) }
        });
        Self {
            ways: ways as usize,
            set_mask: u64::from(sets.saturating_sub(1)),
            hints: vec![[NONE; HINTS]; sets as usize * groups],
            groups,
            entries: vec![(0, none); entries as usize],
            links: links.collect(),
            newest: (0..sets).map(|set| set * ways).collect(),
        }
    }

    /// Where `tag` is, in the set that `index` selects.
    #[inline]
    pub fn find(&self, index: u64, tag: u64) -> Option<Slot> {
        let set = (index & self.set_mask) as usize;
        let groups = &self.hints[set * self.groups..][..self.groups];
        let wanted = hint(tag);
        for (number, hints) in groups.iter().enumerate() {
            let mut left = places(hints, wanted);
            while left != 0 {
                let place = set * self.ways + number * HINTS + left.trailing_zeros() as usize;
                if self.entries[place].0 == tag {
                    return Some(Slot { set: set as u32, place: place as u32 });
                }
                left &= left - 1;
            }
        }
        None
    }

    /// What is there.
    #[inline]
    pub fn value(&self, slot: Slot) -> &V {
        &self.entries[slot.place as usize].1
    }

    /// True if `tag` is there.
    #[inline]
    pub fn holds(&self, slot: Slot, tag: u64) -> bool {
        self.entries[slot.place as usize].0 == tag
    }

    /// Makes it the most recently used of its set.
    #[inline]
    pub fn touch(&mut self, slot: Slot) {
        let newest = self.newest[slot.set as usize];
        if slot.place != newest {
            self.follow(newest, slot.place);
            self.newest[slot.set as usize] = slot.place;
        }
    }

    /// Lets `place` follow the newest place of its set in the ring.
    #[inline(never)]
    fn follow(&mut self, newest: u32, place: u32) {
        let oldest = self.links[newest as usize].newer;
        if place != oldest {
            let Links { older, newer } = self.links[place as usize];
            self.links[older as usize].newer = newer;
            self.links[newer as usize].older = older;
            self.links[newest as usize].newer = place;
            self.links[oldest as usize].older = place;
            self.links[place as usize] = Links { older: newest, newer: oldest };
        }
    }

    /// Puts a value in the set that `index` selects, where `tag` is already or in the place of what
    /// was not used for longest. Returns where, and the tag that was there, 0 for none. There are
    /// entries.
    #[inline]
    pub fn insert(&mut self, index: u64, tag: u64, value: V) -> (Slot, u64) {
        if let Some(slot) = self.find(index, tag) {
            self.entries[slot.place as usize].1 = value;
            self.touch(slot);
            return (slot, tag);
        }
        let set = (index & self.set_mask) as u32;
        let newest = &mut self.newest[set as usize];
        // Nothing moves in the ring: the oldest place is the one behind the newest.
        let slot = Slot { set, place: self.links[*newest as usize].newer };
        *newest = slot.place;
        let (old, _) = std::mem::replace(&mut self.entries[slot.place as usize], (tag, value));
        self.set_hint(slot, hint(tag));
        (slot, old)
    }

    /// What [`Sets::insert`] would take the place of: another tag and its value.
    pub fn victim(&self, index: u64, tag: u64) -> Option<(u64, &V)> {
        if self.find(index, tag).is_some() {
            return None;
        }
        let (old, value) = self.oldest(index);
        (*old != 0).then_some((*old, value))
    }

    /// An insertion into the set that `index` selects is soon to come: prefetches the entry that it
    /// will take the place of. There are entries.
    #[inline]
    pub fn prefetch_victim(&self, index: u64) {
        prefetch(self.oldest(index));
    }

    /// The entry that was not used for longest in the set that `index` selects.
    #[inline]
    fn oldest(&self, index: u64) -> &(u64, V) {
        let newest = self.newest[(index & self.set_mask) as usize];
        &self.entries[self.links[newest as usize].newer as usize]
    }

    #[inline]
    fn set_hint(&mut self, Slot { set, place }: Slot, hint: u8) {
        let way = place as usize - set as usize * self.ways;
        self.hints[set as usize * self.groups + way / HINTS][way % HINTS] = hint;
    }

    /// Drops what has a tag for which `gone` says so.
    pub fn drop_where(&mut self, mut gone: impl FnMut(u64) -> bool) {
        for place in 0..self.entries.len() {
            let tag = &mut self.entries[place].0;
            if *tag == 0 || !gone(*tag) {
                continue;
            }
            *tag = 0;
            let slot = Slot { set: (place / self.ways) as u32, place: place as u32 };
            self.set_hint(slot, NONE);
            // It is the next to be filled.
            let newest = &mut self.newest[place / self.ways];
            if *newest == slot.place {
                *newest = self.links[place].older;
            } else {
                let newest = *newest;
                self.follow(newest, slot.place);
            }
        }
    }

    /// Tags of all places, 0 where nothing is.
    pub fn tags(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|&(tag, _)| tag)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn any_way_of_any_number_is_found() {
        for ways in 0..=70 {
            let words: Vec<u64> = (0..ways).map(|way| way << 8 | 0x3f).collect();
            for way in 0..ways {
                assert_eq!(find_masked(&words, !0xff, way << 8), Some(way as usize));
            }
            assert_eq!(find_masked(&words, !0xff, ways << 8), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_put_in_front_moves_the_others_back(
            words in prop::collection::vec(any::<u64>(), 1..20),
            at in any::<prop::sample::Index>(),
            word in any::<u64>(),
        ) {
            let at = at.index(words.len());
            let mut moved = words.clone();
            put_in_front(&mut moved, at, word);
            let mut expected = words;
            expected.remove(at);
            expected.insert(0, word);
            prop_assert_eq!(&moved, &expected);
            let last = push_in_front(&mut moved, !word);
            prop_assert_eq!(Some(last), expected.pop());
            expected.insert(0, !word);
            prop_assert_eq!(moved, expected);
        }

        #[test]
        fn every_place_is_found(hints in prop::array::uniform16(0u8..4), wanted in 0u8..4) {
            let found = places(&hints, wanted);
            prop_assert!((0..HINTS).all(|at| (found >> at & 1 == 1) == (hints[at] == wanted)));
            prop_assert_eq!(found >> HINTS, 0);
        }
    }

    #[test]
    fn what_is_empty_goes_first_and_then_what_is_oldest() {
        for ways in 1..20 {
            let mut sets = Sets::new(2 * ways, ways, 0);
            // Odd tags go to the second set.
            let tags: Vec<u64> = (0..ways).map(|n| 2 * u64::from(n) + 101).collect();
            for &tag in &tags {
                assert_eq!(sets.insert(tag, tag, tag).1, 0, "there is room");
            }
            let first = sets.find(tags[0], tags[0]).unwrap();
            assert_eq!(*sets.value(first), tags[0]);
            sets.touch(first);
            assert_eq!(sets.insert(tags[0], tags[0], 7).1, tags[0], "it is replaced");
            for &tag in tags[1..].iter().chain(&tags[..1]) {
                assert_eq!(sets.insert(1, tag + 1000, 0).1, tag, "the oldest goes");
            }
            sets.drop_where(|tag| tag == tags[0] + 1000);
            assert_eq!(sets.find(1, tags[0] + 1000), None);
            assert_eq!(sets.insert(1, 1, 0).1, 0, "what is empty goes first");
            assert!(sets.tags().take(ways as usize).all(|tag| tag == 0), "the other set");
        }
    }

    /// One set, most recently used first.
    #[derive(Default)]
    struct Model(Vec<(u64, u64)>);

    impl Model {
        fn look_up(&mut self, tag: u64) -> Option<u64> {
            let at = self.0.iter().position(|&(there, _)| there == tag)?;
            self.0[..=at].rotate_right(1);
            Some(self.0[0].1)
        }

        fn insert(&mut self, ways: usize, tag: u64, value: u64) -> u64 {
            let there = self.0.iter().position(|&(there, _)| there == tag);
            let full = (self.0.len() == ways).then_some(ways - 1);
            let old = there.or(full).map_or(0, |at| self.0.remove(at).0);
            self.0.insert(0, (tag, value));
            old
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_lists_of_the_last_uses_do(
            ways in 1u32..26,
            set_bits in 0u32..3,
            spread in prop::sample::select(vec![1_u64, 128, 0x9e37_79b9]),
            steps in prop::collection::vec((0u8..20, 0u64..100), 1..600),
        ) {
            let sets_there = 1_u32 << set_bits;
            let mut sets = Sets::new(ways * sets_there, ways, 0);
            let mut models: Vec<Model> = Vec::new();
            models.resize_with(sets_there as usize, Model::default);
            for (value, (what, n)) in (0..).zip(steps) {
                let tag = (n << set_bits) * spread + 1 + n % u64::from(sets_there);
                let index = n % u64::from(sets_there);
                let model = &mut models[index as usize];
                match what {
                    0 => {
                        let gone = |tag: u64| tag.is_multiple_of(3);
                        sets.drop_where(gone);
                        for model in &mut models {
                            model.0.retain(|&(tag, _)| !gone(tag));
                        }
                    }
                    1..10 => {
                        let (slot, old) = sets.insert(index, tag, value);
                        prop_assert_eq!(old, model.insert(ways as usize, tag, value));
                        prop_assert_eq!(*sets.value(slot), value);
                    }
                    _ => {
                        let found = sets.find(index, tag);
                        prop_assert_eq!(found.map(|slot| *sets.value(slot)), model.look_up(tag));
                        if let Some(slot) = found {
                            sets.touch(slot);
                        }
                    }
                }
                let held = models.iter().map(|model| model.0.len()).sum::<usize>();
                prop_assert_eq!(sets.tags().filter(|&tag| tag != 0).count(), held);
            }
        }
    }
}
