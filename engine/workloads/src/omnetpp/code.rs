//! The instructions of the simulation.

use flatwalk_trace::BlockId;

use crate::program::{Assembler, FLAGS, registers};

registers!(32; EVENT, HEAP, COUNT, LAST, LAST_TIME, AT, CHILD, LEFT, RIGHT, LEFT_TIME, RIGHT_TIME, ORDER,
    PARENT, PARENT_TIME, MODULE, VTABLE, METHOD, STATE, FRAME, CHUNK, BIN, NEXT, ELEMENT, TAIL, LENGTH, TIME,
    GATE, LOW, MIDDLE, HIGH, WORD, COUNTER);

/// A function that takes a chunk from a bin or, if it is empty, from the top of the heap.
pub(super) struct Malloc {
    pub(super) bin: BlockId,
    pub(super) pop: BlockId,
    pub(super) top: BlockId,
}

impl Malloc {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            bin: work(assembler, 6).load(&[BIN], CHUNK).operation(&[CHUNK], &[FLAGS]).branch(),
            pop: work(assembler, 3).load(&[CHUNK], NEXT).store(&[BIN, NEXT]).return_(),
            top: work(assembler, 8)
                .load(&[BIN], CHUNK)
                .operation(&[CHUNK], &[NEXT])
                .store(&[BIN, NEXT])
                .store(&[CHUNK, LENGTH])
                .return_(),
        }
    }
}

/// A function that puts a chunk into its bin.
fn free(assembler: &mut Assembler) -> BlockId {
    work(assembler, 6).load(&[BIN], NEXT).store(&[CHUNK, NEXT]).store(&[BIN, CHUNK]).return_()
}

/// Instructions between those that matter here: checks, and arguments that are passed on.
fn work(assembler: &mut Assembler, count: usize) -> &mut Assembler {
    (0..count).fold(assembler, |assembler, _| assembler.operation(&[WORD], &[WORD]))
}

/// Fields of a new frame.
pub(super) const NEW_FIELDS: usize = 24;

pub(super) struct Code {
    // The main loop: the first of the heap is taken, and the last sinks from the top.
    pub(super) first: BlockId,
    pub(super) sink: BlockId,
    pub(super) children: BlockId,
    pub(super) tie: BlockId,
    pub(super) compare: BlockId,
    pub(super) rise: BlockId,
    pub(super) sunk: BlockId,
    pub(super) dispatch: BlockId,
    pub(super) handled: BlockId,
    // An event is put into the heap.
    pub(super) schedule: BlockId,
    pub(super) parent: BlockId,
    pub(super) lower: BlockId,
    pub(super) placed: BlockId,
    pub(super) new_message: Malloc,
    pub(super) new_element: Malloc,
    pub(super) free_message: BlockId,
    pub(super) free_element: BlockId,
    // A message follows the gates to another module.
    pub(super) send: BlockId,
    pub(super) gate: BlockId,
    pub(super) sent: BlockId,
    // A generator's timer.
    pub(super) timer: BlockId,
    pub(super) make: BlockId,
    pub(super) fill: BlockId,
    pub(super) again: BlockId,
    pub(super) timer_end: BlockId,
    // A frame comes to a port from above.
    pub(super) output: BlockId,
    pub(super) enqueue: BlockId,
    pub(super) enqueue_end: BlockId,
    pub(super) output_start: BlockId,
    pub(super) output_end: BlockId,
    // It is sent.
    pub(super) start: BlockId,
    pub(super) start_arrival: BlockId,
    pub(super) start_end: BlockId,
    pub(super) started: BlockId,
    // The port is free again.
    pub(super) transmitted: BlockId,
    pub(super) dequeue: BlockId,
    pub(super) dequeued: BlockId,
    pub(super) next_started: BlockId,
    pub(super) idle: BlockId,
    // A frame arrives from the line, and goes on to the relay or the host's sink.
    pub(super) arrive: BlockId,
    pub(super) arrived: BlockId,
    pub(super) relay: BlockId,
    pub(super) search: BlockId,
    pub(super) relay_on: BlockId,
    pub(super) relayed: BlockId,
    pub(super) deliver: BlockId,
    pub(super) delivered: BlockId,
}

impl Code {
    #[expect(clippy::too_many_lines, reason = "a listing of the program's code, block by block")]
    pub(super) fn new(assembler: &mut Assembler) -> Self {
        Self {
            first: work(assembler, 4)
                .load(&[HEAP], EVENT)
                .load(&[HEAP, COUNT], LAST)
                .load(&[LAST], LAST_TIME)
                .operation(&[], &[AT])
                .operation(&[COUNT], &[COUNT])
                .fall(),
            sink: assembler
                .operation(&[AT], &[CHILD])
                .operation(&[CHILD, COUNT], &[FLAGS])
                .branch(),
            children: assembler
                .load(&[HEAP, CHILD], LEFT)
                .load(&[HEAP, CHILD], RIGHT)
                .load(&[LEFT], LEFT_TIME)
                .load(&[RIGHT], RIGHT_TIME)
                .operation(&[LEFT_TIME, RIGHT_TIME], &[FLAGS])
                .branch(),
            tie: assembler
                .load(&[LEFT], ORDER)
                .load(&[RIGHT], WORD)
                .operation(&[ORDER, WORD], &[FLAGS])
                .fall(),
            compare: assembler
                .operation(&[FLAGS, LEFT, RIGHT], &[LEFT])
                .operation(&[FLAGS, LEFT_TIME, RIGHT_TIME], &[LEFT_TIME])
                .operation(&[LEFT_TIME, LAST_TIME], &[FLAGS])
                .branch(),
            rise: assembler
                .store(&[HEAP, AT, LEFT])
                .store_bytes(4, &[LEFT, AT])
                .operation(&[CHILD], &[AT])
                .jump(),
            sunk: assembler.store(&[HEAP, AT, LAST]).store_bytes(4, &[LAST, AT]).fall(),
            dispatch: work(assembler, 20)
                .load(&[EVENT], TIME)
                .load(&[EVENT], MODULE)
                .load(&[MODULE], VTABLE)
                .load(&[VTABLE], METHOD)
                .call_through(METHOD),
            handled: work(assembler, 8).operation(&[COUNTER], &[FLAGS]).branch(),
            schedule: work(assembler, 25)
                .store(&[EVENT, TIME])
                .store(&[EVENT, MODULE])
                .store(&[EVENT, ORDER])
                .operation(&[COUNT], &[AT])
                .fall(),
            parent: assembler
                .operation(&[AT], &[PARENT])
                .load(&[HEAP, PARENT], PARENT)
                .load(&[PARENT], PARENT_TIME)
                .operation(&[PARENT_TIME, TIME], &[FLAGS])
                .branch(),
            lower: assembler
                .store(&[HEAP, AT, PARENT])
                .store_bytes(4, &[PARENT, AT])
                .operation(&[AT], &[AT])
                .operation(&[AT], &[FLAGS])
                .branch(),
            placed: assembler.store(&[HEAP, AT, EVENT]).store_bytes(4, &[EVENT, AT]).return_(),
            new_message: Malloc::new(assembler),
            new_element: Malloc::new(assembler),
            free_message: free(assembler),
            free_element: free(assembler),
            send: work(assembler, 25).fall(),
            gate: work(assembler, 3).load(&[GATE], GATE).operation(&[GATE], &[FLAGS]).branch(),
            sent: work(assembler, 10).return_(),
            timer: work(assembler, 12)
                .load(&[MODULE], STATE)
                .operation(&[STATE], &[FLAGS])
                .branch(),
            make: work(assembler, 4).call(),
            fill: work(assembler, 30)
                .then(|assembler| {
                    (0..NEW_FIELDS).fold(assembler, |assembler, _| assembler.store(&[CHUNK, WORD]))
                })
                .call(),
            again: work(assembler, 40).load(&[MODULE], COUNTER).store(&[MODULE, COUNTER]).call(),
            timer_end: work(assembler, 4).return_(),
            output: work(assembler, 12)
                .operation(&[EVENT], &[FRAME])
                .load(&[MODULE], STATE)
                .operation(&[STATE], &[FLAGS])
                .branch(),
            enqueue: work(assembler, 6).call(),
            enqueue_end: work(assembler, 6)
                .load(&[MODULE], TAIL)
                .store(&[CHUNK, FRAME])
                .store(&[CHUNK, TAIL])
                .store(&[TAIL, CHUNK])
                .store(&[MODULE, CHUNK])
                .return_(),
            output_start: assembler.call(),
            output_end: assembler.return_(),
            start: work(assembler, 20)
                .load(&[FRAME], LENGTH)
                .operation(&[LENGTH, TIME], &[TIME])
                .store(&[MODULE, FRAME])
                .load(&[MODULE], GATE)
                .call(),
            start_arrival: work(assembler, 4).call(),
            start_end: work(assembler, 8).call(),
            started: work(assembler, 4).return_(),
            transmitted: work(assembler, 12)
                .load(&[MODULE], COUNTER)
                .store(&[MODULE, COUNTER])
                .load(&[MODULE], ELEMENT)
                .operation(&[ELEMENT], &[FLAGS])
                .branch(),
            dequeue: work(assembler, 6)
                .load(&[ELEMENT], FRAME)
                .load(&[ELEMENT], NEXT)
                .store(&[MODULE, NEXT])
                .call(),
            dequeued: work(assembler, 2).call(),
            next_started: assembler.return_(),
            idle: assembler.store(&[MODULE]).return_(),
            arrive: work(assembler, 25)
                .operation(&[EVENT], &[FRAME])
                .load(&[FRAME], LENGTH)
                .load(&[MODULE], COUNTER)
                .operation(&[COUNTER, LENGTH], &[COUNTER])
                .store(&[MODULE, COUNTER])
                .call(),
            arrived: assembler.return_(),
            relay: work(assembler, 15)
                .operation(&[EVENT], &[FRAME])
                .load(&[FRAME], WORD)
                .operation(&[], &[LOW])
                .fall(),
            search: assembler
                .operation(&[LOW, HIGH], &[MIDDLE])
                .load(&[MODULE, MIDDLE], VTABLE)
                .operation(&[VTABLE, WORD], &[FLAGS])
                .operation(&[FLAGS, LOW, MIDDLE], &[LOW])
                .operation(&[LOW, HIGH], &[FLAGS])
                .branch(),
            relay_on: work(assembler, 10).call(),
            relayed: assembler.return_(),
            deliver: work(assembler, 15)
                .operation(&[EVENT], &[FRAME])
                .load(&[FRAME], TIME)
                .load(&[MODULE], COUNTER)
                .operation(&[COUNTER, TIME], &[COUNTER])
                .store(&[MODULE, COUNTER])
                .call(),
            delivered: assembler.return_(),
        }
    }
}
