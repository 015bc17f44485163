//! The markers of `flatwalk.h`, as they stand in a program's code.

/// `nopl 0x464c57NN(%rax,%rax,1)`: a marker of number `NN`.
const MARKER: [u8; 4] = [0x0f, 0x1f, 0x84, 0x00];
const MARKER_NUMBER: u32 = 0x464c_5700;
/// `nopl disp32(%rip)`: follows a named marker and points at the name.
const POINTER: [u8; 3] = [0x0f, 0x1f, 0x05];

/// A marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// `flatwalk_start()`
    Start,
    /// `flatwalk_stop()`
    Stop,
    /// `flatwalk_mark(…)`; the next instruction points at the name.
    Named,
}

impl Marker {
    /// The marker that an instruction is, if it is one.
    pub fn of(code: &[u8]) -> Option<Marker> {
        let rest = code.strip_prefix(&MARKER)?;
        let number = u32::from_le_bytes(rest.try_into().ok()?);
        match number.checked_sub(MARKER_NUMBER)? {
            1 => Some(Marker::Start),
            2 => Some(Marker::Stop),
            3 => Some(Marker::Named),
            _ => None,
        }
    }
}

/// Where the name of a named marker is, given the instruction that follows the marker.
pub fn name_address(address: u64, code: &[u8]) -> Option<u64> {
    let offset = i32::from_le_bytes(code.strip_prefix(&POINTER)?.try_into().ok()?);
    Some((address + code.len() as u64).wrapping_add_signed(i64::from(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_recognised_by_their_number() {
        let marker = |number| [0x0f, 0x1f, 0x84, 0x00, number, 0x57, 0x4c, 0x46];
        let found = [0, 1, 2, 3, 4].map(|number| Marker::of(&marker(number)));
        let expected = [Marker::Start, Marker::Stop, Marker::Named].map(Some);
        assert_eq!(found[1..4], expected);
        assert_eq!([found[0], found[4]], [None, None]);
        assert_eq!(Marker::of(&[0x0f, 0x1f, 0x84, 0x00, 1, 0, 0, 0]), None);
        assert_eq!(Marker::of(&[0x90]), None);
    }

    #[test]
    fn names_are_relative_to_the_next_instruction() {
        let code = [0x0f, 0x1f, 0x05, 0xf9, 0xff, 0xff, 0xff];
        assert_eq!(name_address(0x40_1000, &code), Some(0x40_1000));
        assert_eq!(name_address(0x40_1000, &[0x90]), None);
    }
}
