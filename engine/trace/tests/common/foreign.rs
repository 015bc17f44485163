//! Foreign traces, written byte by byte from their formats' descriptions.

/// ChampSim's, with 64 (`short`) and 96 (`long`) bytes an instruction.
pub mod champsim {
    /// (pc, branch, taken, writes, reads, stores, loads)
    pub type Line = (u64, u8, u8, [u8; 2], [u8; 4], [u64; 2], [u64; 4]);

    pub const LINES: [Line; 6] = [
        (0x40_1000, 0, 0, [10, 25], [10, 7, 0, 0], [0, 0], [0x7fff_0010, 0, 0, 0x7fff_0040]),
        (0x40_1003, 0, 0, [6, 0], [6, 3, 0, 0], [0x7fff_fff8, 0x1234_5678], [0, 0, 0, 0]),
        (0x40_1005, 1, 1, [26, 0], [26, 25, 0, 0], [0, 0], [0, 0, 0, 0]),
        (0x40_0ff0, 1, 1, [6, 26], [26, 6, 0, 0], [0x7fff_fff0, 0], [0, 0, 0, 0]),
        (0x50_0000, 1, 1, [6, 26], [6, 0, 0, 0], [0, 0], [0x7fff_fff0, 0, 0, 0]),
        (0x40_0ff5, 1, 1, [26, 0], [9, 0, 0, 0], [0, 0], [0, 0, 0, 0]),
    ];

    /// Accesses where lines, pages and addresses end, a call without a return, and returns without a call.
    pub fn far() -> Vec<Line> {
        let none = ([0, 0], [0; 4]);
        let plain = |pc, loads| (pc, 0, 0, [10, 0], [7, 0, 0, 0], none.0, loads);
        let ret = |pc| (pc, 1, 1, [6, 26], [6, 0, 0, 0], none.0, none.1);
        vec![
            plain(0x40_1000, [0xfff, 0x7f, u64::MAX - 5, u64::MAX]),
            (0x40_1004, 0, 0, [0, 0], [7, 0, 0, 0], [0x1fff, 1 << 56], none.1),
            (0x40_1008, 1, 1, [6, 26], [26, 6, 0, 0], none.0, none.1),
            ret(0x40_1008),
            ret(u64::MAX - 1),
            plain(u64::MAX, none.1),
        ]
    }

    pub fn short(lines: &[Line]) -> Vec<u8> {
        let mut out = Vec::new();
        for (pc, branch, taken, writes, reads, stores, loads) in lines {
            out.extend(pc.to_le_bytes());
            out.extend([*branch, *taken]);
            out.extend(writes);
            out.extend(reads);
            stores.iter().chain(loads).for_each(|address| out.extend(address.to_le_bytes()));
        }
        assert_eq!(out.len(), 64 * lines.len());
        out
    }

    pub fn long(lines: &[Line]) -> Vec<u8> {
        let mut out = Vec::new();
        for (pc, branch, taken, writes, reads, stores, loads) in lines {
            let start = out.len();
            out.extend(pc.to_le_bytes());
            out.extend([*branch, *taken]);
            out.extend([writes[0], writes[1], 0, 0]);
            out.extend(reads);
            out.resize(start + 24, 0);
            for address in [stores[0], 0, 0, stores[1]].iter().chain(loads) {
                out.extend(address.to_le_bytes());
            }
            out.extend([1, 1]);
            out.resize(start + 96, 0);
        }
        out
    }
}

/// DynamoRIO's, raw and in a zip archive.
pub mod drmemtrace {
    use std::io::Write;

    pub fn record(kind: u16, size: u16, value: u64) -> [u8; 12] {
        let mut out = [0; 12];
        out[0..2].copy_from_slice(&kind.to_le_bytes());
        out[2..4].copy_from_slice(&size.to_le_bytes());
        out[4..].copy_from_slice(&value.to_le_bytes());
        out
    }

    pub fn trace(file_type: u64, body: &[[u8; 12]]) -> Vec<u8> {
        let head = [
            record(25, 0, 5),           // header, version
            record(28, 12, 5),          // marker: version
            record(28, 9, file_type),   // marker: file type
            record(22, 0, 4711),        // thread
            record(24, 0, 4700),        // process
            record(28, 18, 4096),       // marker: page size
            record(28, 2, 0x0123_4567), // marker: time stamp
            record(28, 3, 1),           // marker: processor
        ];
        [&head[..], body, &[record(23, 0, 4711), record(26, 0, 0)]].concat().concat()
    }

    /// One thread's file, whose stretches begin at the given times.
    pub fn thread(file_type: u64, id: u64, stretches: &[(u64, &[[u8; 12]])]) -> Vec<u8> {
        let mut out = [
            record(25, 0, 7),
            record(28, 12, 7),
            record(28, 9, file_type),
            record(22, 4, id),
            record(24, 4, 4700),
        ]
        .to_vec();
        for (time, body) in stretches {
            out.extend([record(28, 2, *time), record(28, 3, u64::MAX)]);
            out.extend(*body);
        }
        out.extend([record(23, 4, id), record(26, 0, 0)]);
        out.concat()
    }

    /// Records of machine code, eight bytes in each.
    pub fn code(bytes: &[u8]) -> Vec<[u8; 12]> {
        let word = |part: &[u8]| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            record(47, part.len() as u16, u64::from_le_bytes(word))
        };
        bytes.chunks(8).map(word).collect()
    }

    /// A synthetic instruction: 22 bits of categories, flags read and written, registers. What is between
    /// its end and the multiple of four may be anything.
    pub fn synthetic(category: u32, flags: [bool; 2], writes: &[u8], reads: &[u8]) -> Vec<u8> {
        let [reads_flags, writes_flags] = flags.map(u32::from);
        let counts = (reads.len() << 4 | writes.len()) as u32;
        let header = category << 10 | reads_flags << 9 | writes_flags << 8 | counts;
        let mut out = header.to_le_bytes().to_vec();
        if !writes.is_empty() || !reads.is_empty() {
            out.push(4); // the operands' size
            out.extend(writes.iter().chain(reads));
            out.resize(out.len().next_multiple_of(4), 0xee);
        }
        out
    }

    /// Synthetic instructions in place of machine code, some of them twice, and with their lengths.
    pub fn with_synthetic() -> Vec<[u8; 12]> {
        let mut out = code(&synthetic(0x42, [false; 2], &[10], &[12, 8]));
        out.extend([record(10, 5, 0x1000), record(0, 8, 0x7000_0000)]);
        out.extend(code(&synthetic(0x100, [true, true], &[3, 6], &[25, 26, 4, 5, 7, 9])));
        out.push(record(10, 3, 0x1005));
        out.extend(code(&synthetic(8, [true, false], &[], &[])));
        out.push(record(49, 2, 0x1008)); // untaken
        out.extend(code(&synthetic(8, [false; 2], &[20], &[20])));
        out.push(record(28, 29, 0x1000)); // marker: branch target
        out.push(record(15, 2, 0x100a));
        out.extend([record(1, 8, 0x7fff_fff8), record(10, 5, 0x1000), record(0, 8, 0x7000_0008)]);
        out
    }

    /// A map of virtual to physical pages.
    pub fn v2p(groups: &[(u64, &[(u64, u64)])]) -> String {
        let page = |&(from, to): &(u64, u64)| {
            let from =
                if from == 0 { String::new() } else { format!("    virtual_address: {from}\n") };
            format!("  address_mapping {{\n{from}    physical_address: {to:#x}\n  }}\n")
        };
        let group = |(size, pages): &(u64, &[(u64, u64)])| {
            let pages: String = pages.iter().map(page).collect();
            let about = "  information {\n    page_count: 0x1\n  }\n";
            format!("address_mapping_group {{\n  page_size: {size:#x}\n{pages}{about}}}\n")
        };
        let groups: String = groups.iter().map(group).collect();
        let head = "# VirtualToPhysical\n# Instance name: \"test {\n";
        format!("{head}{groups}information {{\n  page_count: 0x1\n  name: 'a \\' b'\n}}\n")
    }

    pub fn plain() -> Vec<[u8; 12]> {
        vec![
            record(10, 3, 0x1000), // mov
            record(0, 8, 0x7000_0000),
            record(3, 1, 0x9999), // prefetch
            record(10, 4, 0x1003),
            record(0, 4, 0x7000_0008),
            record(1, 4, 0x7000_0008),
            record(48, 2, 0x1007), // taken
            record(10, 2, 0x2000), // rep movsb
            record(0, 1, 0x7100_0000),
            record(1, 1, 0x7200_0000),
            record(29, 2, 0x2000), // again
            record(0, 1, 0x7100_0001),
            record(1, 1, 0x7200_0001),
            record(14, 5, 0x2002), // call
            record(1, 8, 0x7fff_fff8),
            record(28, 2, 0x0123_4568),
            record(22, 0, 4712), // another thread
            record(10, 1, 0x3000),
            record(22, 0, 4711),
            record(28, 24, 0), // marker in front of the return
            record(16, 1, 0x5000),
            record(0, 8, 0x7fff_fff8),
        ]
    }

    /// A `mov` that does not fit into one record of machine code.
    pub const LONG_CODE: [u8; 10] = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8];

    /// The largest access where no address is left, and sizes that no access has.
    pub fn far() -> Vec<[u8; 12]> {
        let fetch = |pc| record(10, 1, pc);
        let data = [(65535, 1 << 63), (0, 0x1000), (16384, (1 << 57) - 1), (8, u64::MAX - 5)];
        let accesses = data.iter().enumerate().flat_map(|(number, &(size, address))| {
            [fetch(0x1000 + number as u64), record(number as u16 % 2, size, address)]
        });
        accesses.chain([fetch(u64::MAX)]).collect()
    }

    pub fn with_code() -> Vec<[u8; 12]> {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        vec![
            record(47, 8, word(&LONG_CODE[..8])),
            record(47, 2, word(&LONG_CODE[8..])),
            record(10, 10, 0x1000),
            record(47, 2, word(&[0xeb, 0xf4])),
            record(28, 29, 0x1000), // marker: branch target, between code and fetch
            record(11, 2, 0x100a),
            record(10, 10, 0x1000),       // known by now
            record(47, 1, word(&[0x90])), // new code at an old address
            record(10, 1, 0x1000),
        ]
    }

    /// A zip archive by hand: local headers, data, central directory, its end.
    pub fn zip(members: &[(&str, &[u8])], deflate: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut directory = Vec::new();
        for (name, data) in members {
            let stored = if deflate {
                let mut encoder =
                    flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
                encoder.write_all(data).expect("compressed");
                encoder.finish().expect("compressed")
            } else {
                data.to_vec()
            };
            let mut crc = flate2::Crc::new();
            crc.update(data);
            let mut common = Vec::new();
            common.extend(20_u16.to_le_bytes()); // version needed
            common.extend(0_u16.to_le_bytes()); // flags
            common.extend((8 * u16::from(deflate)).to_le_bytes());
            common.extend(0x21_0000_u32.to_le_bytes()); // time and date
            common.extend(crc.sum().to_le_bytes());
            common.extend((stored.len() as u32).to_le_bytes());
            common.extend((data.len() as u32).to_le_bytes());
            common.extend((name.len() as u16).to_le_bytes());
            common.extend(0_u16.to_le_bytes()); // extra
            directory.extend(b"PK\x01\x02");
            directory.extend(20_u16.to_le_bytes()); // made by
            directory.extend(&common);
            directory.extend([0; 10]); // comment, disk, attributes
            directory.extend((out.len() as u32).to_le_bytes());
            directory.extend(name.as_bytes());
            out.extend(b"PK\x03\x04");
            out.extend(&common);
            out.extend(name.as_bytes());
            out.extend(stored);
        }
        let start = out.len() as u32;
        out.extend(&directory);
        out.extend(b"PK\x05\x06");
        out.extend([0; 4]);
        out.extend((members.len() as u16).to_le_bytes());
        out.extend((members.len() as u16).to_le_bytes());
        out.extend((directory.len() as u32).to_le_bytes());
        out.extend(start.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        out
    }
}

/// Valgrind's.
pub mod lackey {
    pub const TEXT: &str = "==12== Lackey, an example Valgrind tool\n\
        ==12== Command: ls\n\
        --12-- warning\n\
        \n\
        I  0401ab70,3\n\
        I  0401ab73,5\n \
        S 1fff000608,8\n\
        I  04020000,4\r\n \
        M 00001000,4\n \
        L 2000,16\n\
        ==12== Counted 1 call\n";
}
