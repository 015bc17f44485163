//! Main memory: DDR4 channels, banks and open rows, or one latency and one bandwidth.
//!
//! Timing follows JEDEC's core parameters: a column access takes CL, an activation tRCD, a
//! precharge tRP; a burst holds the channel's 8-byte data bus for 8 transfers. Rows stay open until
//! another is needed. Not modelled: refresh, write-to-read turnaround, four-activate windows, and
//! reordering by the controller beyond taking the first gap of a bank and bus.

use crate::config::machine::{Machine, Memory};
use crate::counts::add;
use crate::memory::line::Line;
use crate::memory::slots::Slots;

/// What memory did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DramStatistics {
    /// Lines read.
    pub reads: u64,
    /// Lines written back.
    pub writes: u64,
    /// Accesses that found their row open.
    pub row_hits: u64,
    /// Accesses that did not.
    pub row_misses: u64,
    /// Sum of read latencies in cycles, queueing included.
    pub read_cycles: u64,
}

add!(DramStatistics { reads, writes, row_hits, row_misses, read_cycles });

/// Main memory.
#[derive(Clone, Debug)]
pub struct Dram {
    kind: Kind,
    /// What it did.
    pub statistics: DramStatistics,
}

#[derive(Clone, Debug)]
enum Kind {
    Ddr4(Box<Ddr4>),
    Fixed { latency: u64, transfer: u64, bus: Slots },
}

#[derive(Clone, Debug)]
struct Ddr4 {
    channel_bits: u32,
    column_bits: u32,
    bank_bits: u32,
    column: u64,
    activate: u64,
    precharge: u64,
    burst: u64,
    controller: u64,
    banks: Vec<Bank>,
    buses: Vec<Slots>,
}

#[derive(Clone, Debug)]
struct Bank {
    open_row: Option<u64>,
    busy: Slots,
}

impl Dram {
    /// The memory of `machine`.
    pub fn new(machine: &Machine, memory: &Memory) -> Self {
        let kind = match *memory {
            Memory::Ddr4 {
                channels,
                ranks,
                banks,
                row_bytes,
                data_rate_mts,
                cl_ns,
                rcd_ns,
                rp_ns,
                controller_ns,
            } => {
                let bank = Bank { open_row: None, busy: Slots::new(1) };
                Kind::Ddr4(Box::new(Ddr4 {
                    channel_bits: channels.ilog2(),
                    column_bits: (row_bytes / 64).ilog2(),
                    bank_bits: (ranks * banks).ilog2(),
                    column: machine.cycles(cl_ns),
                    activate: machine.cycles(rcd_ns),
                    precharge: machine.cycles(rp_ns),
                    burst: machine.cycles(8.0 * 1000.0 / f64::from(data_rate_mts)),
                    controller: machine.cycles(controller_ns),
                    banks: vec![bank; (channels * ranks * banks) as usize],
                    buses: vec![Slots::new(1); channels as usize],
                }))
            }
            Memory::Fixed { latency_ns, bandwidth_gbs } => Kind::Fixed {
                latency: machine.cycles(latency_ns),
                transfer: machine.cycles(64.0 / bandwidth_gbs),
                bus: Slots::new(1),
            },
        };
        Self { kind, statistics: DramStatistics::default() }
    }

    /// Reads a line asked for at `at`; returns when it is there.
    #[inline]
    pub fn read(&mut self, line: Line, at: u64, frontier: u64) -> u64 {
        let done = self.access(line, at, frontier);
        self.statistics.reads += 1;
        self.statistics.read_cycles += done - at;
        done
    }

    /// Writes a line back. Nobody waits for it, but it takes its bank's and bus's time.
    #[inline]
    pub fn write(&mut self, line: Line, at: u64, frontier: u64) {
        self.access(line, at, frontier);
        self.statistics.writes += 1;
    }

    /// Opens the row of a line, in no time and without counting.
    #[inline]
    pub fn warm(&mut self, line: Line) {
        if let Kind::Ddr4(ddr4) = &mut self.kind {
            let (_, bank, row) = ddr4.locate(line);
            ddr4.banks[bank].open_row = Some(row);
        }
    }

    fn access(&mut self, line: Line, at: u64, frontier: u64) -> u64 {
        match &mut self.kind {
            Kind::Fixed { latency, transfer, bus } => bus.take(at, *transfer, frontier) + *latency,
            Kind::Ddr4(ddr4) => {
                let (done, hit) = ddr4.access(line, at, frontier);
                self.statistics.row_hits += u64::from(hit);
                self.statistics.row_misses += u64::from(!hit);
                done
            }
        }
    }
}

impl Ddr4 {
    /// Lines are interleaved over channels, then fill a row; the bank is permuted by the row's low
    /// bits so that strides of a row size spread over banks (Zhang et al., MICRO 2000).
    fn locate(&self, line: Line) -> (usize, usize, u64) {
        let channel = line.0 & ((1 << self.channel_bits) - 1);
        let rest = line.0 >> (self.channel_bits + self.column_bits);
        let row = rest >> self.bank_bits;
        let bank = (rest ^ row) & ((1 << self.bank_bits) - 1);
        (channel as usize, (channel << self.bank_bits | bank) as usize, row)
    }

    fn access(&mut self, line: Line, at: u64, frontier: u64) -> (u64, bool) {
        let (channel, bank, row) = self.locate(line);
        let bank = &mut self.banks[bank];
        let hit = bank.open_row == Some(row);
        let prepare = match bank.open_row {
            Some(_) if hit => 0,
            Some(_) => self.precharge + self.activate,
            None => self.activate,
        };
        bank.open_row = Some(row);
        // Half of the controller's time before the bank sees the request, half after.
        let arrival = at + self.controller / 2;
        // Column accesses to an open row are pipelined, so a bank is held for row work and burst.
        let start = bank.busy.take(arrival, prepare + self.burst, frontier);
        let data = start + prepare + self.column;
        let burst_start = self.buses[channel].take(data, self.burst, frontier);
        (burst_start + self.burst + self.controller.div_ceil(2), hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ddr4() -> Dram {
        // 1 GHz: a cycle is a nanosecond. A burst at 8000 MT/s lasts one cycle.
        let memory = Memory::Ddr4 {
            channels: 2,
            ranks: 1,
            banks: 4,
            row_bytes: 1024,
            data_rate_mts: 8000,
            cl_ns: 10.0,
            rcd_ns: 20.0,
            rp_ns: 40.0,
            controller_ns: 6.0,
        };
        let machine = crate::tests::testing::machine();
        Dram::new(&machine, &memory)
    }

    #[test]
    fn latencies_by_hand() {
        let mut dram = ddr4();
        // Closed bank: 3 + 20 + 10 + 1 + 3.
        assert_eq!(dram.read(Line(0), 0, 0), 37);
        // Same row (line 2 is the next of channel 0), much later: 3 + 10 + 1 + 3.
        assert_eq!(dram.read(Line(2), 1000, 0), 1017);
        // Another row of the same bank: 16 columns × 2 channels × 4 banks = 128 lines further, and
        // the permutation moves row 1 of bank 1 there. 3 + 40 + 20 + 10 + 1 + 3.
        assert_eq!(dram.read(Line(128 + 32), 2000, 0), 2077);
        assert_eq!((dram.statistics.row_hits, dram.statistics.row_misses), (1, 2));
    }

    #[test]
    fn a_bus_carries_one_burst_at_a_time() {
        let mut dram = ddr4();
        dram.read(Line(0), 0, 0);
        dram.read(Line(32), 0, 0);
        // Two banks of one channel have their data at the same time: the second waits one burst.
        let first = dram.read(Line(0), 1000, 0);
        let second = dram.read(Line(32), 1000, 0);
        let other_channel = dram.read(Line(1), 1000, 0);
        assert_eq!((first, second), (1017, 1018));
        assert_eq!(other_channel, 1037);
    }
}
