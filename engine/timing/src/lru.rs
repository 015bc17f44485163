//! Least recently used replacement by time stamps, for the small sets of TLBs and page-walk caches.

/// The way of a set that holds `tag`, or else the least recently used one. Ways that hold nothing
/// have stamp 0, and so go first; `tags` is not empty and as long as `stamps`.
#[inline]
pub fn place(tags: &[u64], stamps: &[u64], tag: u64) -> usize {
    let (mut oldest, mut stamp) = (0, u64::MAX);
    for (way, (&held, &used)) in tags.iter().zip(stamps).enumerate() {
        if held == tag {
            return way;
        }
        if used < stamp {
            (oldest, stamp) = (way, used);
        }
    }
    oldest
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn what_is_there_stays_and_what_is_empty_goes_first() {
        assert_eq!(place(&[5, 6, 7], &[3, 1, 2], 7), 2);
        assert_eq!(place(&[5, 6, 7], &[3, 1, 2], 8), 1);
        assert_eq!(place(&[5, 6, 0], &[3, 1, 0], 8), 2);
    }
}
