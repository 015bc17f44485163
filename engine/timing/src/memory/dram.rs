//! Main memory: DDR4 channels, banks and open rows, or one latency and one bandwidth.
//!
//! Timing follows JEDEC's core parameters: a column access takes CL, an activation tRCD, a
//! precharge tRP; a burst holds the channel's 8-byte data bus for 8 transfers. Rows stay open until
//! another is needed, or their rank is refreshed. What a machine says of the rest, as gem5's DRAM
//! controller has it (Hansson et al., ISPASS 2014), holds too:
//!
//! - a row stays open for tRAS before it can be closed;
//! - a rank begins four activations in tFAW at most;
//! - each rank is refreshed every tREFI, when for tRFC nothing else begins there, and its rows are closed;
//!   a command that has begun is finished first;
//! - lines that are written back wait in a queue of their channel. When it is full, a batch leaves together,
//!   lines of one row after another. In front of the batch the bus waits for tRTW, behind it reads wait
//!   for tWTR and CL. A line that waits is read from the queue.
//!
//! How many lines make a batch leave is drawn for each: all that the queue has room for, or fewer,
//! by less than a batch. gem5's controller begins sooner where no read waits, which cannot be known
//! where requests do not come in the order of time. A fixed number would do what no machine does
//! for long: of a program that writes line after line, all channels' batches would leave at once,
//! or never two of them, all through a run as its first few lines have it, and that is several per
//! cent of its time (such accidents are to be drawn: Alameldeen and Wood, "Variability in
//! architectural simulations of multi-threaded workloads", HPCA 2003).
//!
//! Not modelled: bank groups, tRRD, tRTP, write recovery, and reordering by the controller beyond taking the
//! first gap of a bank and bus, and the order of a batch. A batch whose bus is booked already takes the bus
//! later than its banks, which nobody waits for.

use flatwalk_os::Random;
use flatwalk_paging::LINE_BYTES;

use crate::config::machine::{Machine, Memory};
use crate::counts::add;
use crate::memory::line::Line;
use crate::memory::slots::{Fit, Slots};

/// Goes into the seed: whoever draws has a word of its own, so that each draws its own sequence of
/// the one seed.
const SEED_WORD: u64 = u64::from_be_bytes(*b"\0batches");

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
    Fixed { latency: u64, pace: Pace, bus: Slots },
}

/// Times are in cycles; those that a machine leaves out are 0.
#[derive(Clone, Debug)]
struct Ddr4 {
    channel_bits: u32,
    column_bits: u32,
    /// Of the banks of a channel, and of those of a rank.
    bank_bits: u32,
    rank_bank_bits: u32,
    column: u64,
    activate: u64,
    precharge: u64,
    controller: u64,
    /// tRAS, tFAW.
    row_open: u64,
    four_activations: u64,
    /// tREFI, if there are refreshes, and tRFC.
    refresh_interval: Option<Divisor>,
    refresh: u64,
    /// tRTW, tWTR.
    read_to_write: u64,
    write_to_read: u64,
    /// Lines that a queue has room for, and lines of a batch.
    queue_lines: usize,
    batch_lines: usize,
    /// Draws when batches leave.
    random: Random,
    banks: Vec<Bank>,
    ranks: Vec<Rank>,
    channels: Vec<Channel>,
}

/// What a hit of its open row needs is in one line of the simulator's machine, and the rest in the next.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Bank {
    open_row: Option<u64>,
    /// Refreshes of its rank before the open row was last used.
    refreshes: u64,
    busy: Slots,
    /// From the precharge, or the activation, that opens a row until it may be closed.
    row: Slots,
}

#[derive(Clone, Debug)]
struct Rank {
    /// For tFAW from each activation.
    activations: Slots,
    /// How much earlier than at a multiple of tREFI it is refreshed: ranks take turns.
    phase: u64,
}

#[derive(Clone, Debug)]
struct Channel {
    bus: Slots,
    pace: Pace,
    writes: WriteQueue,
}

/// A read that is planned.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    at: u64,
    /// When the line would be there.
    pub ready: u64,
    steps: Steps,
}

/// What a read takes.
#[derive(Clone, Copy, Debug)]
enum Steps {
    /// Nothing: the line waits to be written.
    Queue,
    /// The bus.
    Fixed(Fit),
    /// A column access of a channel, and its bus.
    Ddr4(usize, ColumnAccess, Fit),
}

/// An access to a column of a row that is open, or that is opened for it.
#[derive(Clone, Copy, Debug)]
struct ColumnAccess {
    bank: usize,
    row: u64,
    refreshes: u64,
    /// For how long the bank is held, and where.
    held: u64,
    busy: Fit,
    opening: Option<Opening>,
    /// When data come or go.
    data: u64,
}

/// A row is opened: for how long it must stay open, and where that and the activation fit.
#[derive(Clone, Copy, Debug)]
struct Opening {
    open: u64,
    row: Fit,
    activation: Fit,
}

/// What a line takes of a bus. That is no whole number of cycles, as bookings are, so what one line
/// leaves of a cycle is the next one's: many lines together take as long as the bandwidth says.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Of each line, in 2^-32 cycles.
    line: u64,
    /// Of the next cycle, what is taken already.
    taken: u32,
}

impl Pace {
    fn new(cycles: f64) -> Self {
        // Validated: of a line, at least a byte in a second.
        #[allow(clippy::cast_sign_loss)]
        let line = (cycles * 2_f64.powi(32)).round() as u64;
        // What all lines take together is rounded up.
        Self { line, taken: u32::MAX }
    }

    /// Cycles that the next line takes.
    #[inline]
    fn next(&mut self) -> u64 {
        let taken = u64::from(self.taken) + self.line;
        self.taken = taken as u32;
        taken >> 32
    }
}

/// Lines that wait to be written.
#[derive(Clone, Debug, Default)]
struct WriteQueue {
    /// Those that have waited longest come first.
    lines: Vec<Line>,
    /// Lines that make the next batch leave, once that is drawn.
    full: Option<usize>,
    /// A bit for each of them, at a place that a few others have, too: most lines that are looked for are
    /// not there.
    filter: [u64; FILTER_BITS / 64],
}

/// Bits of a queue's filter: twenty times as many as most queues have lines.
const FILTER_BITS: usize = 1024;

impl WriteQueue {
    /// Where in the filter a line's bit is: a word, and the bit there.
    #[inline]
    fn place(line: Line) -> (usize, u64) {
        let place = (line.0 ^ line.0 >> 10) as usize % FILTER_BITS;
        (place / 64, 1 << (place % 64))
    }

    #[inline]
    fn contains(&self, line: Line) -> bool {
        let (word, bit) = Self::place(line);
        self.filter[word] & bit != 0 && self.lines.contains(&line)
    }

    fn push(&mut self, line: Line) {
        self.note(line);
        self.lines.push(line);
    }

    fn note(&mut self, line: Line) {
        let (word, bit) = Self::place(line);
        self.filter[word] |= bit;
    }

    /// Takes the lines out that have waited longest, at most `most`.
    fn take(&mut self, most: usize) -> Vec<Line> {
        let taken = self.lines.drain(..most.min(self.lines.len())).collect();
        self.filter = [0; FILTER_BITS / 64];
        for place in 0..self.lines.len() {
            self.note(self.lines[place]);
        }
        taken
    }
}

impl Dram {
    /// The memory of `machine`.
    pub fn new(machine: &Machine, memory: &Memory, seed: u64) -> Self {
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
                ras_ns,
                faw_ns,
                refi_ns,
                rfc_ns,
                write_queue,
                write_batch,
                rtw_ns,
                wtr_ns,
            } => {
                let bank =
                    Bank { open_row: None, refreshes: 0, busy: Slots::new(1), row: Slots::new(1) };
                let refresh_interval = machine.cycles(refi_ns);
                let rank = |rank: u32| Rank {
                    activations: Slots::new(4),
                    phase: refresh_interval * u64::from(2 * (ranks - rank % ranks) - 1)
                        / u64::from(2 * ranks),
                };
                // A line is 8 transfers.
                let burst = 8.0 * f64::from(machine.frequency_mhz) / f64::from(data_rate_mts);
                let channel = Channel {
                    bus: Slots::new(1),
                    pace: Pace::new(burst),
                    writes: WriteQueue::default(),
                };
                Kind::Ddr4(Box::new(Ddr4 {
                    channel_bits: channels.ilog2(),
                    column_bits: (row_bytes / LINE_BYTES).ilog2(),
                    bank_bits: (ranks * banks).ilog2(),
                    rank_bank_bits: banks.ilog2(),
                    column: machine.cycles(cl_ns),
                    activate: machine.cycles(rcd_ns),
                    precharge: machine.cycles(rp_ns),
                    controller: machine.cycles(controller_ns),
                    row_open: machine.cycles(ras_ns),
                    four_activations: machine.cycles(faw_ns),
                    refresh_interval: Divisor::new(refresh_interval),
                    refresh: machine.cycles(rfc_ns),
                    read_to_write: machine.cycles(rtw_ns),
                    write_to_read: machine.cycles(wtr_ns),
                    queue_lines: write_queue as usize,
                    batch_lines: write_batch as usize,
                    random: Random::new(seed ^ SEED_WORD),
                    banks: vec![bank; (channels * ranks * banks) as usize],
                    ranks: (0..channels * ranks).map(rank).collect(),
                    channels: vec![channel; channels as usize],
                }))
            }
            Memory::Fixed { latency_ns, bandwidth_gbs } => Kind::Fixed {
                latency: machine.cycles(latency_ns),
                pace: Pace::new(
                    LINE_BYTES as f64 / bandwidth_gbs * f64::from(machine.frequency_mhz) / 1000.0,
                ),
                bus: Slots::new(1),
            },
        };
        Self { kind, statistics: DramStatistics::default() }
    }

    /// A read of a line that is asked for at `at`; nothing is booked.
    #[inline]
    pub fn plan_read(&self, line: Line, at: u64) -> Read {
        let (ready, steps) = match &self.kind {
            Kind::Fixed { latency, pace, bus } => {
                let fit = bus.fit(at, pace.clone().next());
                (fit.from + latency, Steps::Fixed(fit))
            }
            Kind::Ddr4(ddr4) => ddr4.plan_read(line, at),
        };
        Read { at, ready, steps }
    }

    /// Books a read that was planned; nothing has been booked since.
    #[inline]
    pub fn book_read(&mut self, read: &Read, frontier: u64) {
        match (&mut self.kind, &read.steps) {
            (Kind::Fixed { pace, bus, .. }, &Steps::Fixed(fit)) => {
                bus.book_fit(fit, pace.next(), frontier);
            }
            (Kind::Ddr4(ddr4), &Steps::Ddr4(channel, ref column, fit)) => {
                ddr4.book_column(column, frontier, &mut self.statistics);
                let Channel { bus, pace, .. } = &mut ddr4.channels[channel];
                bus.book_fit(fit, pace.next(), frontier);
            }
            _ => {}
        }
        self.statistics.reads += 1;
        self.statistics.read_cycles += read.ready - read.at;
    }

    /// Writes a line back. Nobody waits for it, but it takes its bank's and bus's time.
    #[inline]
    pub fn write(&mut self, line: Line, at: u64, frontier: u64) {
        match &mut self.kind {
            Kind::Fixed { pace, bus, .. } => {
                bus.take(at, pace.next(), frontier);
            }
            Kind::Ddr4(ddr4) => ddr4.write(line, at, frontier, &mut self.statistics),
        }
        self.statistics.writes += 1;
    }

    /// Opens the row of a line, in no time and without counting.
    #[inline]
    pub fn warm(&mut self, line: Line) {
        if let Kind::Ddr4(ddr4) = &mut self.kind {
            let (_, bank, row) = ddr4.locate(line);
            ddr4.banks[bank].open_row = Some(row);
            // Whenever the clock goes on, the row is open.
            ddr4.banks[bank].refreshes = u64::MAX;
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

    /// A number by which lines are ordered as by their channels, banks and rows.
    fn order(&self, line: Line) -> u64 {
        let (_, bank, row) = self.locate(line);
        // A row's number leaves more bits than a bank's has.
        (bank as u64).rotate_right(self.channel_bits + self.bank_bits) | row
    }

    #[inline]
    fn plan_read(&self, line: Line, at: u64) -> (u64, Steps) {
        let (channel, _, _) = self.locate(line);
        let Channel { bus, pace, writes } = &self.channels[channel];
        if writes.contains(line) {
            return (at + self.controller, Steps::Queue);
        }
        let burst = pace.clone().next();
        // Half of the controller's time before the bank sees the request, half after.
        let column = self.plan_column(line, burst, at + self.controller / 2);
        let fit = bus.fit(column.data, burst);
        let ready = fit.from + burst + self.controller.div_ceil(2);
        (ready, Steps::Ddr4(channel, column, fit))
    }

    fn write(&mut self, line: Line, at: u64, frontier: u64, counts: &mut DramStatistics) {
        let (channel, _, _) = self.locate(line);
        if self.queue_lines == 0 {
            let burst = self.channels[channel].pace.next();
            let data = self.column_access(line, burst, at + self.controller / 2, frontier, counts);
            self.channels[channel].bus.take(data, burst, frontier);
            return;
        }
        let waiting = &mut self.channels[channel].writes;
        if waiting.contains(line) {
            return;
        }
        waiting.push(line);
        let full = *waiting.full.get_or_insert_with(|| {
            self.queue_lines - self.random.below(self.batch_lines as u64) as usize
        });
        if waiting.lines.len() >= full {
            waiting.full = None;
            self.write_batch(channel, at + self.controller / 2, frontier, counts);
        }
    }

    /// Writes the lines that have waited longest, by bank and row.
    fn write_batch(&mut self, channel: usize, at: u64, frontier: u64, counts: &mut DramStatistics) {
        let mut batch = self.channels[channel].writes.take(self.batch_lines);
        in_order(&mut batch, |line| self.order(line));
        let begin = self.channels[channel].bus.earliest(at);
        let mut data: Vec<_> = batch
            .into_iter()
            .map(|line| {
                let burst = self.channels[channel].pace.next();
                (self.column_access(line, burst, begin, frontier, counts), burst)
            })
            .collect();
        in_order(&mut data, |(data, _)| data);
        let (first, _) = data[0];
        let end = data.into_iter().fold(first, |end, (data, burst)| end.max(data) + burst);
        let from = first.saturating_sub(self.read_to_write).max(frontier);
        let until = end + self.write_to_read + self.column;
        self.channels[channel].bus.book(from, until, frontier);
    }

    /// Opens the line's row if it is not open, and accesses its column for a burst; returns when
    /// data come or go.
    fn column_access(
        &mut self,
        line: Line,
        burst: u64,
        at: u64,
        frontier: u64,
        counts: &mut DramStatistics,
    ) -> u64 {
        let column = self.plan_column(line, burst, at);
        self.book_column(&column, frontier, counts);
        column.data
    }

    /// The same, and nothing is booked.
    fn plan_column(&self, line: Line, burst: u64, at: u64) -> ColumnAccess {
        let (_, number, row) = self.locate(line);
        let rank = number >> self.rank_bank_bits;
        let bank = &self.banks[number];
        let activations = &self.ranks[rank].activations;
        let (mut start, mut refreshes) = self.after_refresh(rank, at);
        // A start that suits the bank, the row before, the rank's activations and its refreshes.
        loop {
            let open_row = bank.open_row.filter(|_| bank.refreshes >= refreshes);
            let hit = open_row == Some(row);
            let close = if hit || open_row.is_none() { 0 } else { self.precharge };
            let prepare = if hit { 0 } else { close + self.activate };
            // Column accesses to an open row are pipelined, so a bank is held for row work and
            // burst. It has no more than one in a cycle.
            let held = prepare + burst.max(1);
            let busy = bank.busy.fit(start, held);
            let opening = (!hit).then(|| {
                let open = if self.row_open > 0 { close + self.row_open } else { 0 };
                let row = bank.row.fit(busy.from, open);
                let activation = activations.fit(row.from + close, self.four_activations);
                Opening { open, row, activation }
            });
            let next = opening.map_or(busy.from, |opening| opening.activation.from - close);
            if next == start {
                let data = start + prepare + self.column;
                return ColumnAccess { bank: number, row, refreshes, held, busy, opening, data };
            }
            (start, refreshes) = self.after_refresh(rank, next);
        }
    }

    /// Books a column access that was planned; nothing has been booked since.
    #[inline]
    fn book_column(&mut self, column: &ColumnAccess, frontier: u64, counts: &mut DramStatistics) {
        let bank = &mut self.banks[column.bank];
        bank.open_row = Some(column.row);
        bank.refreshes = column.refreshes;
        bank.busy.book_fit(column.busy, column.held, frontier);
        if let Some(Opening { open, row, activation }) = column.opening {
            bank.row.book_fit(row, open, frontier);
            let activations = &mut self.ranks[column.bank >> self.rank_bank_bits].activations;
            activations.book_fit(activation, self.four_activations, frontier);
        }
        counts.row_hits += u64::from(column.opening.is_none());
        counts.row_misses += u64::from(column.opening.is_some());
    }

    /// The first cycle from `at` on at which the rank is not refreshed, and how often it has been by then.
    fn after_refresh(&self, rank: usize, at: u64) -> (u64, u64) {
        let Some(interval) = self.refresh_interval else { return (at, 0) };
        let counted = at + self.ranks[rank].phase;
        let refreshes = interval.quotient(counted);
        let since = counted - refreshes * interval.by;
        (at + self.refresh.saturating_sub(since), refreshes)
    }
}

/// A number that others are divided by, mostly by a multiplication, which takes a processor far less time.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    by: u64,
    /// What 2^64 - 1 is divided by it.
    reciprocal: u64,
}

impl Divisor {
    /// `None` if `by` is 0.
    fn new(by: u64) -> Option<Self> {
        Some(Self { by, reciprocal: u64::MAX.checked_div(by)? })
    }

    /// `n` divided by it, rounded down.
    #[inline]
    fn quotient(self, n: u64) -> u64 {
        // The reciprocal lacks at most 1 of 2^64 / `by`, so their product lacks less than 2^64 / `by`.
        if n < self.reciprocal {
            ((u128::from(n + 1) * u128::from(self.reciprocal)) >> 64) as u64
        } else {
            n / self.by
        }
    }
}

/// Items that are ordered without branches, at most.
const FEW: usize = 32;

/// Orders items by their keys; those with the same key stay as they stand. A few are put at once where they
/// belong, as far back as there are others that come before: how a sort goes on, a processor cannot predict.
fn in_order<T: Copy>(items: &mut [T], key: impl Fn(T) -> u64) {
    if items.len() > FEW {
        items.sort_by_key(|&item| key(item));
        return;
    }
    let mut keys = [0; FEW];
    keys.iter_mut().zip(&*items).for_each(|(its, &item)| *its = key(item));
    let keys = &keys[..items.len()];
    let Some(&first) = items.first() else { return };
    let mut ordered = [first; FEW];
    for (place, &item) in items.iter().enumerate() {
        let its = keys[place];
        let before = keys[..place].iter().map(|&key| u64::from(key <= its)).sum::<u64>();
        let behind = keys[place + 1..].iter().map(|&key| u64::from(key < its)).sum::<u64>();
        ordered[(before + behind) as usize] = item;
    }
    items.copy_from_slice(&ordered[..items.len()]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    impl Dram {
        /// Reads a line asked for at `at`; returns when it is there.
        fn read(&mut self, line: Line, at: u64, frontier: u64) -> u64 {
            let read = self.plan_read(line, at);
            self.book_read(&read, frontier);
            read.ready
        }
    }

    /// 1 GHz: a cycle is a nanosecond. A burst at 8000 MT/s lasts one cycle.
    fn ddr4(more: Value) -> Dram {
        let mut memory = json!({
            "kind": "ddr4", "channels": 2, "ranks": 1, "banks": 4, "row_bytes": 1024,
            "data_rate_mts": 8000, "cl_ns": 10.0, "rcd_ns": 20.0, "rp_ns": 40.0, "controller_ns": 6.0,
        });
        let Value::Object(more) = more else { panic!("{more}") };
        memory.as_object_mut().unwrap().extend(more);
        let machine = crate::tests::testing::machine();
        Dram::new(&machine, &serde_json::from_value(memory).unwrap(), 1)
    }

    /// A line of channel 0. Row 1's banks are permuted: bank 0 of it is where bank 1 would be.
    fn at(bank: u64, row: u64) -> Line {
        Line(((row << 2 | (bank ^ row & 3)) << 4) << 1)
    }

    #[test]
    fn latencies_by_hand() {
        let mut dram = ddr4(json!({}));
        // Closed bank: 3 + 20 + 10 + 1 + 3.
        assert_eq!(dram.read(Line(0), 0, 0), 37);
        // Same row (line 2 is the next of channel 0), much later: 3 + 10 + 1 + 3.
        assert_eq!(dram.read(Line(2), 1000, 0), 1017);
        // Another row of the same bank: 16 columns × 2 channels × 4 banks = 128 lines further, and
        // the permutation moves row 1 of bank 1 there. 3 + 40 + 20 + 10 + 1 + 3.
        assert_eq!(at(0, 1), Line(128 + 32));
        assert_eq!(dram.read(Line(128 + 32), 2000, 0), 2077);
        assert_eq!((dram.statistics.row_hits, dram.statistics.row_misses), (1, 2));
    }

    #[test]
    fn a_bus_carries_one_burst_at_a_time() {
        let mut dram = ddr4(json!({}));
        dram.read(Line(0), 0, 0);
        dram.read(Line(32), 0, 0);
        // Two banks of one channel have their data at the same time: the second waits one burst.
        let first = dram.read(Line(0), 1000, 0);
        let second = dram.read(Line(32), 1000, 0);
        let other_channel = dram.read(Line(1), 1000, 0);
        assert_eq!((first, second), (1017, 1018));
        assert_eq!(other_channel, 1037);
    }

    #[test]
    fn what_a_burst_leaves_of_a_cycle_is_the_next_ones() {
        // 8 transfers at 2400 MT/s take 3 1/3 cycles: together they are over after 4, 7, 10, 14.
        let mut dram = ddr4(json!({ "data_rate_mts": 2400 }));
        dram.warm(Line(0));
        dram.warm(Line(1));
        let read = |dram: &mut Dram, line| dram.read(Line(line), 1000, 0) - (1000 + 3 + 10 + 3);
        assert_eq!([0, 2, 4, 6].map(|line| read(&mut dram, line)), [4, 7, 10, 14]);
        assert_eq!(read(&mut dram, 1), 4, "each channel has a bus of its own");
        // A line that is written takes its part, too: 17.
        dram.write(Line(8), 1000, 0);
        assert_eq!(read(&mut dram, 10), 20);
    }

    #[test]
    fn many_lines_take_as_long_as_the_bandwidth_says() {
        const LINES: u32 = 100_000;
        let machines =
            [("emt", 76.8), ("skylake-server", 76.8), ("zen4", 83.2), ("golden-cove", 51.2)];
        for (name, gb_per_second) in machines {
            let mut machine = crate::tests::testing::shipped_machine(name);
            let mut memory = machine.memory.take().unwrap();
            // Refreshes would take their share.
            if let Memory::Ddr4 { refi_ns, .. } = &mut memory {
                *refi_ns = 0.0;
            }
            let mut dram = Dram::new(&machine, &memory, 1);
            let mut read = |line: u32| dram.read(Line(u64::from(line)), 0, 0);
            let first = read(0);
            let last = (1..=LINES).map(&mut read).max().unwrap();
            let ns = (last - first) as f64 * 1000.0 / f64::from(machine.frequency_mhz);
            let found = 64.0 * f64::from(LINES) / ns;
            assert!((found / gb_per_second - 1.0).abs() < 1e-3, "{name}: {found}");
        }
    }

    #[test]
    fn a_row_stays_open_for_tras() {
        let mut dram = ddr4(json!({ "ras_ns": 100.0 }));
        // Activated at 3, so closed from 103 on: 103 + 40 + 20 + 10 + 1 + 3.
        assert_eq!(dram.read(at(0, 0), 0, 0), 37);
        assert_eq!(dram.read(at(0, 1), 10, 0), 177);
        // Activated at 143; one that is asked for later in program order and earlier in time waits for
        // the gap behind it: 243 + 40 + 20 + 10 + 1 + 3.
        assert_eq!(dram.read(at(0, 2), 50, 0), 317);
        // A row that is open is read at once, and another bank does not wait.
        assert_eq!(dram.read(at(0, 2), 330, 0), 347);
        assert_eq!(dram.read(at(1, 0), 10, 0), 47);
    }

    #[test]
    fn four_activations_in_tfaw() {
        let mut dram = ddr4(json!({ "banks": 8, "faw_ns": 90.0 }));
        let line = |bank: u64| Line((bank << 4) << 1);
        // Four banks are activated at 3; each burst waits for the bus.
        assert_eq!([0, 1, 2, 3].map(|bank| dram.read(line(bank), 0, 0)), [37, 38, 39, 40]);
        // The fifth at 93; the first one's row is open.
        assert_eq!(dram.read(line(4), 0, 0), 93 + 20 + 10 + 1 + 3);
        assert_eq!(dram.read(line(0), 60, 0), 77);
        // Long after, none waits.
        assert_eq!(dram.read(line(5), 500, 0), 537);
    }

    #[test]
    fn refreshes_make_wait_and_close_rows() {
        let mut dram = ddr4(json!({ "refi_ns": 1000.0, "rfc_ns": 200.0 }));
        // The only rank of a channel is refreshed in 500..700, 1500..1700 and so on.
        assert_eq!(dram.read(at(0, 0), 0, 0), 37);
        assert_eq!(dram.read(at(0, 0), 400, 0), 417);
        // In the refresh: from 700 on the closed row is opened, 20 + 10 + 1 + 3.
        assert_eq!(dram.read(at(0, 0), 550, 0), 734);
        // Later it is open, and after the next refresh closed.
        assert_eq!(dram.read(at(0, 0), 1400, 0), 1417);
        assert_eq!(dram.read(at(0, 0), 1800, 0), 1837);
        assert_eq!((dram.statistics.row_hits, dram.statistics.row_misses), (2, 3));
    }

    #[test]
    fn ranks_are_refreshed_in_turn() {
        let mut dram = ddr4(json!({ "ranks": 2, "refi_ns": 1000.0, "rfc_ns": 200.0 }));
        // The second rank in 750..950, the first in 250..450.
        let line = |bank: u64| Line((bank << 4) << 1);
        assert_eq!(dram.read(line(0), 300, 0), 450 + 34);
        assert_eq!(dram.read(line(4), 300, 0), 337);
        assert_eq!(dram.read(line(4), 797, 0), 950 + 34);
        assert_eq!(dram.read(line(0), 797, 0), 814);
    }

    /// The write queue of a channel.
    fn queue(dram: &mut Dram, channel: usize) -> &mut WriteQueue {
        match &mut dram.kind {
            Kind::Ddr4(ddr4) => &mut ddr4.channels[channel].writes,
            Kind::Fixed { .. } => panic!("no queue"),
        }
    }

    #[test]
    fn writes_wait_and_leave_in_a_batch() {
        let settings = json!({ "write_queue": 3, "write_batch": 2, "rtw_ns": 5.0, "wtr_ns": 7.0 });
        let mut dram = ddr4(settings);
        queue(&mut dram, 0).full = Some(3);
        assert_eq!(dram.read(at(0, 0), 0, 0), 37);
        dram.write(at(1, 0), 100, 0);
        dram.write(at(1, 0), 100, 0);
        dram.write(at(1, 1), 100, 0);
        assert_eq!(dram.statistics.row_misses, 1, "they wait, and the second is the first");
        // A line that waits comes from the queue.
        assert_eq!(dram.read(at(1, 1), 150, 0), 156);
        // The third makes the first two leave at 203: row 0 is opened, 203 + 20 + 10 = 233, then row 1
        // from 224 on, 224 + 40 + 20 + 10 = 294. The bus is taken from 228 to 295 + 7 + 10.
        dram.write(at(2, 0), 200, 0);
        assert_eq!(dram.statistics.row_misses, 3);
        // A read whose data would come at 229 comes behind the batch; one at 226 is in front of it.
        assert_eq!(dram.read(at(0, 0), 216, 0), 312 + 1 + 3);
        assert_eq!(dram.read(at(0, 0), 213, 0), 230);
        assert_eq!(dram.read(at(2, 0), 400, 0), 406, "the third still waits");
        assert_eq!((dram.statistics.reads, dram.statistics.writes), (5, 4));
    }

    #[test]
    fn when_a_batch_leaves_is_drawn() {
        let mut dram = ddr4(json!({ "write_queue": 20, "write_batch": 5 }));
        let (mut seen, mut before) = ([0_u32; 21], 0);
        for number in 0..10_000 {
            dram.write(at(number % 4, number / 4), 1000 * number, 0);
            let waiting = queue(&mut dram, 0).lines.len();
            if waiting < before {
                assert_eq!(before + 1 - waiting, 5);
                seen[before + 1] += 1;
            }
            before = waiting;
        }
        // 2000 batches, 400 at each of five levels; 5 of their deviations are 90.
        assert!(seen[..16].iter().all(|&count| count == 0), "{seen:?}");
        assert!(seen[16..].iter().all(|count| (310..=490).contains(count)), "{seen:?}");
    }

    /// A stream of stores: each line is read while few others are, and one from long before it is
    /// written back. Cycles per line, where so many lines wait in the channels' queues at first.
    fn stream(levels: [u64; 4]) -> f64 {
        const LINES: u64 = 40_000;
        let mut dram = ddr4(json!({
            "channels": 4, "ranks": 2, "banks": 16, "row_bytes": 8192, "data_rate_mts": 2400,
            "cl_ns": 14.0, "rcd_ns": 14.0, "rp_ns": 14.0, "controller_ns": 20.0, "ras_ns": 32.0,
            "write_queue": 54, "write_batch": 16, "rtw_ns": 2.0, "wtr_ns": 5.0,
        }));
        let first = 1 << 24;
        for (channel, level) in (0..).zip(levels) {
            (0..level).for_each(|number| dram.write(Line(number << 2 | channel), 0, 0));
        }
        let (mut arrived, mut now) = ([0; 6], 0);
        for number in 0..LINES {
            let slot = number as usize % arrived.len();
            now = arrived[slot].max(now + 10);
            arrived[slot] = dram.read(Line(first + number), now, now);
            dram.write(Line(first + number - (1 << 18)), now, now);
        }
        now as f64 / LINES as f64
    }

    #[test]
    fn a_stream_takes_as_long_whatever_its_channels_begin_with() {
        let alike = stream([0; 4]);
        for levels in [[0, 4, 8, 12], [0, 8, 0, 8], [1, 3, 30, 21]] {
            let apart = stream(levels);
            assert!((apart / alike - 1.0).abs() < 0.02, "{alike} and {apart} from {levels:?} on");
        }
    }

    #[test]
    fn a_queue_knows_which_lines_wait() {
        let mut queue = WriteQueue::default();
        // Some of them share a bit of the filter.
        let lines: Vec<Line> = (0..400).map(|n| Line(n % 40 + (n / 40) * 1025)).collect();
        let places: std::collections::HashSet<_> =
            lines.iter().map(|&line| WriteQueue::place(line)).collect();
        assert!(places.len() < lines.len());
        for (number, &line) in lines.iter().enumerate() {
            assert!(!queue.contains(line));
            queue.push(line);
            if queue.lines.len() == 50 {
                assert_eq!(queue.take(20), lines[number - 49..number - 29]);
            }
            assert!(lines.iter().all(|&line| queue.contains(line) == queue.lines.contains(&line)));
        }
    }

    proptest! {
        #[test]
        fn a_divisor_divides(by_bits in 0u32..64, by: u64, n_bits in 0u32..64, n: u64) {
            let (by, n) = ((by >> by_bits).max(1), n >> n_bits);
            let divisor = Divisor::new(by).unwrap();
            let multiple = n / by * by;
            for n in [n, multiple, multiple.saturating_sub(1), divisor.reciprocal, u64::MAX] {
                prop_assert_eq!(divisor.quotient(n), n / by);
            }
        }

        #[test]
        fn items_are_put_in_the_order_of_a_stable_sort(
            most in prop::sample::select(vec![1_u64, 3, 20, u64::MAX]),
            keys in prop::collection::vec(any::<u64>(), 0..2 * FEW),
        ) {
            let mut items: Vec<_> = keys.iter().map(|key| key % most).zip(0..).collect();
            let mut sorted = items.clone();
            sorted.sort_by_key(|&(key, _)| key);
            in_order(&mut items, |(key, _)| key);
            prop_assert_eq!(items, sorted);
        }
    }

    #[test]
    fn no_interval_is_no_divisor() {
        assert!(Divisor::new(0).is_none());
    }

    #[test]
    fn lines_are_ordered_as_by_banks_and_rows() {
        let dram = ddr4(json!({ "channels": 4, "ranks": 2, "banks": 8 }));
        let Kind::Ddr4(ddr4) = &dram.kind else { panic!("not the one asked for") };
        let mut random = Random::new(1);
        let line = |random: &mut Random| Line(random.below(1 << 58) >> random.below(58));
        for _ in 0..10_000 {
            let [one, other] = [line(&mut random), line(&mut random)];
            let expected = ddr4.locate(one).cmp(&ddr4.locate(other));
            assert_eq!(ddr4.order(one).cmp(&ddr4.order(other)), expected);
        }
    }

    #[test]
    fn functional_warming_keeps_rows() {
        let mut dram =
            ddr4(json!({ "refi_ns": 1000.0, "rfc_ns": 200.0, "write_queue": 3, "write_batch": 2 }));
        dram.warm(at(0, 3));
        // 34 refreshes later by the clock, which did not run.
        assert_eq!(dram.read(at(0, 3), 34_000, 0), 34_017);
        assert_eq!(dram.read(at(0, 3), 34_800, 0), 34_837, "the next refresh closes it");
    }
}
