//! `v2p.textproto`, which says where the pages of a drmemtrace lie in physical memory, as page tables.
//!
//! The text is a protocol buffer's: fields `name: value` and messages `name { … }`. Of it we read,
//! in each `address_mapping_group`, `page_size` and the `address_mapping`s with a `virtual_address`
//! (0 if there is none) and a `physical_address`. Other fields are ignored.
//!
//! The mapping becomes the entries of an ordinary x86-64 table, which the scheme `recorded` walks.
//! Its tables are not in the file: they follow the last page in physical memory, in order of
//! address.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::disk::open_file;
use crate::error::TraceError;
use crate::model::Event;

/// Longest file.
const MOST_BYTES: u64 = 1 << 28;
/// Most pages.
const MOST_PAGES: usize = 1 << 22;
/// Deepest nesting of messages.
const MOST_DEPTH: usize = 16;
/// Levels with a page's size, as 4 KiB × 2^(9 × (level - 1)).
const PAGE_LEVELS: std::ops::RangeInclusive<u8> = 1..=3;
/// Bits of physical addresses that x86-64 can have.
const PHYSICAL_BITS: u32 = 52;
/// Present, writable, for user mode, accessed, dirty.
const RIGHTS: u64 = 0x67;
/// The entry is a page although its level could be a table.
const LARGE: u64 = 0x80;
/// CR4: five levels (LA57).
const FIVE_LEVELS: u64 = 1 << 12;

/// A page: its level, and its first physical byte.
type Page = (u8, u64);
/// By first virtual byte.
type Pages = BTreeMap<u64, Page>;

/// Reads the file; returns what [`physical_pages`] does.
///
/// # Errors
/// When it cannot be read, or what it says is impossible.
pub(in crate::import) fn events(path: &Path) -> Result<Vec<Event>, TraceError> {
    let mut text = Vec::new();
    let file = open_file(path)?;
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| TraceError::io(path, error))?;
    physical_pages(path, &text)
}

/// The root and all entries of tables that map the pages of a `v2p.textproto`; messages call it `path`.
///
/// # Errors
/// When what it says is impossible.
pub fn physical_pages(path: &Path, text: &[u8]) -> Result<Vec<Event>, TraceError> {
    pages(text)
        .and_then(|pages| tables(&pages))
        .map_err(|(offset, what)| TraceError::damaged(path, offset as u64, what))
}

/// What is wrong, and where.
type Wrong = (usize, &'static str);

/// A piece of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a [u8]),
    Open,
    Close,
    Colon,
}

/// Splits the text; also returns where each token begins.
fn tokens(text: &[u8]) -> impl Iterator<Item = Result<(usize, Token<'_>), Wrong>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at;
            let token = match *text.get(at)? {
                b'#' => {
                    at += text[at..]
                        .iter()
                        .position(|&byte| byte == b'\n')
                        .unwrap_or(text.len() - at);
                    continue;
                }
                b'{' | b'<' => Token::Open,
                b'}' | b'>' => Token::Close,
                b':' => Token::Colon,
                quote @ (b'"' | b'\'') => {
                    let rest = &text[at + 1..];
                    let escaped = |end: usize| {
                        rest[..end].iter().rev().take_while(|&&b| b == b'\\').count() % 2 == 1
                    };
                    let mut ends = rest.iter().enumerate().filter(|&(_, &byte)| byte == quote);
                    let Some((end, _)) = ends.find(|&(end, _)| !escaped(end)) else {
                        at = text.len();
                        return Some(Err((start, "a text has no end")));
                    };
                    at += end + 2;
                    return Some(Ok((start, Token::Word(&text[start..at]))));
                }
                byte if byte.is_ascii_alphanumeric() || b"_-+.[]/".contains(&byte) => {
                    let word = |b: &u8| b.is_ascii_alphanumeric() || b"_-+.[]/".contains(b);
                    at += text[at..].iter().take_while(|b| word(b)).count();
                    return Some(Ok((start, Token::Word(&text[start..at]))));
                }
                byte if byte.is_ascii_whitespace() || byte == b',' || byte == b';' => {
                    at += 1;
                    continue;
                }
                _ => {
                    at = text.len();
                    return Some(Err((start, "this is not the text of a protocol buffer")));
                }
            };
            at += 1;
            return Some(Ok((start, token)));
        }
    })
}

/// What a message said that was not closed yet.
#[derive(Default)]
struct Message<'a> {
    name: &'a [u8],
    page_size: Option<u64>,
    mappings: Vec<(usize, u64, u64)>,
    virtual_address: u64,
    physical_address: Option<u64>,
}

fn pages(text: &[u8]) -> Result<Pages, Wrong> {
    if text.len() as u64 > MOST_BYTES {
        return Err((MOST_BYTES as usize, "the file is longer than 256 MiB"));
    }
    let mut pages = Pages::new();
    let mut open = vec![Message::default()];
    let mut count = 0;
    let mut name: Option<&[u8]> = None;
    let mut value = false;
    for token in tokens(text) {
        let (at, token) = token?;
        match (token, name) {
            (Token::Word(word), Some(field)) if value => {
                let message = open.last_mut().expect("the file itself is one");
                let number = || number(word).ok_or((at, "this is not a number of 64 bits"));
                match field {
                    b"page_size" => message.page_size = Some(number()?),
                    b"virtual_address" => message.virtual_address = number()?,
                    b"physical_address" => message.physical_address = Some(number()?),
                    _ => {}
                }
                (name, value) = (None, false);
            }
            (Token::Word(word), None) => name = Some(word),
            (Token::Colon, Some(_)) if !value => value = true,
            (Token::Open, Some(field)) => {
                if open.len() > MOST_DEPTH {
                    return Err((at, "messages are nested too deeply"));
                }
                open.push(Message { name: field, ..Message::default() });
                (name, value) = (None, false);
            }
            (Token::Close, None) if open.len() > 1 => {
                let message = open.pop().expect("more than one");
                let around = open.last_mut().expect("the file itself is one");
                match message.name {
                    b"address_mapping" => {
                        let physical = message.physical_address.unwrap_or(0);
                        count += 1;
                        if count > MOST_PAGES {
                            return Err((at, "it has more than 4 Mi pages"));
                        }
                        around.mappings.push((at, message.virtual_address, physical));
                    }
                    b"address_mapping_group" => close(&message, at, &mut pages)?,
                    _ => {}
                }
            }
            _ => return Err((at, "this is not the text of a protocol buffer")),
        }
    }
    if open.len() > 1 || name.is_some() {
        return Err((text.len(), "the file ends within a message"));
    }
    Ok(pages)
}

/// Adds the pages of a group.
fn close(group: &Message<'_>, at: usize, pages: &mut Pages) -> Result<(), Wrong> {
    if group.mappings.is_empty() {
        return Ok(());
    }
    let size = group.page_size.ok_or((at, "a group of mappings has no page size"))?;
    let level = PAGE_LEVELS.into_iter().find(|&level| size == span(level));
    let level = level.ok_or((at, "a page size is none of x86-64's (4 KiB, 2 MiB and 1 GiB)"))?;
    for &(at, from, to) in &group.mappings {
        if from % size != 0 || to % size != 0 {
            return Err((at, "an address is not a multiple of its page's size"));
        }
        if from >> 56 != 0 || to >> PHYSICAL_BITS != 0 {
            return Err((at, "an address has more bits than x86-64 can translate"));
        }
        let before = pages.range(..=from).next_back();
        let after = pages.range(from..).next();
        if before.is_some_and(|(start, &(level, _))| start + span(level) > from)
            || after.is_some_and(|(&start, _)| start < from + size)
        {
            return Err((at, "a virtual address is mapped twice"));
        }
        pages.insert(from, (level, to));
    }
    Ok(())
}

/// Decimal, or hexadecimal behind `0x`.
fn number(word: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?;
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+')),
        None => word.parse().ok(),
    }
}

/// Bytes that an entry of a level covers.
fn span(level: u8) -> u64 {
    1 << (12 + 9 * (u32::from(level) - 1))
}

/// The tables that map the pages: the root, then each entry behind the one that leads to it.
fn tables(pages: &Pages) -> Result<Vec<Event>, Wrong> {
    let Some((&last, _)) = pages.last_key_value() else {
        return Err((0, "it maps no page"));
    };
    // Half of the address space: what is above has its highest bits set.
    let levels = if last >> 47 == 0 { 4 } else { 5 };
    let end = pages.values().map(|&(level, to)| to + span(level)).max().unwrap_or(0);
    // Tables by level and by the virtual address of what they cover, which are few against the pages.
    let mut free = end.next_multiple_of(span(1));
    let mut take = || {
        free += span(1);
        free - span(1)
    };
    let cr3 = take();
    let mut events = vec![Event::Root { cr3, cr4: if levels == 5 { FIVE_LEVELS } else { 0 } }];
    let mut tables: BTreeMap<(u8, u64), u64> = BTreeMap::new();
    for (&from, &(level, to)) in pages {
        let mut table = cr3;
        for level in (level + 1..=levels).rev() {
            let covered = from / span(level);
            table = *tables.entry((level, covered)).or_insert_with(|| {
                let next = take();
                events.push(Event::Entry {
                    address: slot(table, from, level),
                    level,
                    value: next | RIGHTS,
                });
                next
            });
        }
        let value = to | RIGHTS | if level > 1 { LARGE } else { 0 };
        events.push(Event::Entry { address: slot(table, from, level), level, value });
    }
    if free >> PHYSICAL_BITS != 0 {
        return Err((0, "there is no place for page tables behind the last page"));
    }
    Ok(events)
}

/// Where the entry of a virtual address is in a table of a level.
fn slot(table: u64, address: u64, level: u8) -> u64 {
    table + 8 * (address / span(level) % 512)
}
