//! Texts that come from programs, of any length.

/// Cuts a text behind its last whole character within `most_bytes`. True if something was cut off.
pub fn cut(text: &mut String, most_bytes: usize) -> bool {
    if text.len() <= most_bytes {
        return false;
    }
    let end = (0..=most_bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text.truncate(end);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let cut = |text: &str, most_bytes| {
            let mut text = text.to_owned();
            let was_cut = cut(&mut text, most_bytes);
            (text, was_cut)
        };
        assert_eq!(cut("aé", 3), ("aé".to_owned(), false));
        assert_eq!(cut("aéb", 3), ("aé".to_owned(), true));
        assert_eq!(cut("aéb", 2), ("a".to_owned(), true));
        assert_eq!(cut("é", 0), (String::new(), true));
    }
}
